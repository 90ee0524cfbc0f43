"""The server: it recovers its state, listens, serves until it is stopped, and leaves a snapshot.

`serve` runs it as a process of its own, which a signal stops. `run` is the server without its process: other programs,
such as tests, run it in a thread beside other things.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field, replace

import tracker
from tracker.journal import Journal, JournalGoneError, JournalLockedError
from tracker.security.audit import Audit
from tracker.security.guard import Security
from tracker.security.transport import Transport, add_port, cannot_listen
from tracker.wire.addresses import UNIX, CannotListenError, host_and_port

from . import replayable
from .admission import Admission
from .calls import Calls
from .intake import collect_garbage_rarely, return_large_blocks
from .inventory import Inventory, Surveys
from .lanes import TURN_S, Lanes
from .limits import Limits
from .lookups import Lookups, PageSource
from .measures import JobLabels, Measures
from .metrics import Metrics, ServingMetrics
from .notices import Notices
from .owning import Leadership, Readiness, own
from .replayable import Followed, RecoveredState
from .sequencer import Clock, JournalHealth, Sequencer, Snapshots
from .service import SERVICE, Administration, HandOver, Service
from .ticking import Ticker
from .watching import Readers

__all__ = ["CannotListenError", "Options", "Started", "run", "serve"]

log = logging.getLogger("tracker.server")

_SLACK = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a server.

    Raises:
        ValueError: `retention_s` or `snapshot_bytes` is negative.

    >>> Options(listen="127.0.0.1:0", journal="memory").reflection
    False
    """

    listen: str = "127.0.0.1:7654"  #: HOST:PORT, where port 0 picks one; or unix:PATH
    journal: str = "sqlite:tracker.db"  #: ``memory``, ``sqlite:PATH``, …: see `tracker.journal.open_journal`
    retention_s: int = 24 * 3600  #: seconds that ended substreams and events are kept, for jobs without a retention
    snapshot_bytes: int = 256 << 20  #: bytes that are journaled between two snapshots, at least
    limits: Limits = field(default_factory=Limits)
    reflection: bool = False  #: serve gRPC reflection, which lists services and messages
    accept_loss: bool = False  #: start even if acknowledged records are lost
    set_aside: frozenset[int] = frozenset()  #: numbers of journal records to leave out from now on
    standby: bool = False  #: wait while another server uses the journal, and take over when it ends
    page: bool = True  #: serve the status page, too, where the metrics are
    security: Security = field(default_factory=Security)  #: who may call
    audit: str = ""  #: the file of the audit log; ``-``: standard error; "": none
    metrics: str = ""  #: HOST:PORT of `/metrics`, `/healthz` and `/readyz`; port 0 picks one; "" serves none

    def __post_init__(self) -> None:
        if self.retention_s < 0 or self.snapshot_bytes < 0:
            raise ValueError("retention and the bytes between snapshots must not be negative")


@dataclass(frozen=True, slots=True)
class Started:
    """A server that is ready."""

    address: str  #: where it listens, as callers have to name it
    #: Carries out the timers that are due, waits until they have taken effect, and returns when the next one is due. To
    #: be awaited on the server's loop, by callers whose clock is not the machine's.
    tick: Callable[[], Awaitable[int | None]]
    metrics: str = ""  #: the URL of the metrics; "" if `Options.metrics` is


async def serve(options: Options) -> bool:
    """Serve until SIGTERM or SIGINT, or until the journal was handed to a standby; return whether it was.

    Print ``listening on ADDRESS`` when ready.

    With `options.metrics`, a second line has ``metrics on http://HOST:PORT``. That address answers from the beginning:
    while the journal is read, `/readyz` answers that the server is not ready yet.

    Raises:
        ValueError: `options.listen`, `options.metrics` or `options.journal` has a wrong form; the tokens file or the
            certificate cannot be used; or they protect nothing where the server would listen.
        CannotListenError: another program uses the address, or this machine does not have it.
        tracker.journal.JournalError: the journal cannot be opened, or another process uses it.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sys.setswitchinterval(TURN_S)
    return_large_blocks()
    collecting = asyncio.create_task(collect_garbage_rarely())

    def ready(started: Started) -> None:
        gc.freeze()  # the recovered state lives on: the garbage collector need not scan it again and again
        print(f"listening on {started.address}", flush=True)
        if started.metrics:
            print(f"metrics on {started.metrics}", flush=True)

    try:
        return await run(options, stop, ready)
    finally:
        collecting.cancel()


async def run(
    options: Options,
    stop: asyncio.Event,
    ready: Callable[[Started], None],
    wall: Callable[[], int] = time.time_ns,
    elapsed: Callable[[], int] = time.monotonic_ns,
) -> bool:
    """Serve until `stop` is set, or until the journal was handed to a standby; return whether it was.

    Signals, stdout and other settings of the process stay as they are.

    Args:
        stop: set on the running loop, it stops the server.
        ready: called once when the server accepts calls.
        wall: the machine's clock, in ns since the Unix epoch.
        elapsed: a monotonic clock, in ns.

    Raises:
        ValueError, CannotListenError, tracker.journal.JournalError: as for `serve`.
    """
    return await _Server(options, stop, ready, wall, elapsed).run()


class _Server:
    """A server's process, with one journal after the other while it stands by."""

    def __init__(
        self,
        options: Options,
        stop: asyncio.Event,
        ready: Callable[[Started], None],
        wall: Callable[[], int],
        elapsed: Callable[[], int],
    ) -> None:
        self._options = options
        self._stop = stop
        self._ready = ready
        self._wall = wall
        self._elapsed = elapsed
        self.readiness = Readiness()
        self.metrics = Metrics(self.readiness)
        self.source = PageSource(options.journal.partition(":")[0])
        self.audit: Audit | None = None
        self._url = ""

    async def run(self) -> bool:
        """Serve until the server is stopped, or has handed over its journal; return whether it has."""
        options = self._options
        options.security.check_exposed(options.listen)
        if options.metrics:
            options.security.check_exposed(options.metrics, "the status page and the metrics")
        if not options.listen.startswith(UNIX):
            host_and_port(options.listen)
            if not options.standby:  # which may take over the address, too
                await asyncio.to_thread(_check_free, options.listen)
        async with AsyncExitStack() as stack:
            # Also while it recovers, or stands by.
            stack.callback(asyncio.create_task(options.security.guard.follow()).cancel)
            if options.metrics:
                await self._show(stack)
            if options.audit:
                self.audit = Audit(options.audit, lambda: self._wall() / 1e9)
            return await self._own_and_serve()

    async def _show(self, stack: AsyncExitStack) -> None:
        """Serve the metrics and the page, until the stack is closed."""
        # Loading these takes a third as long as all the rest, and most trackers of tests and drivers show nothing.
        from starlette.middleware import Middleware

        from tracker.page.application import Page
        from tracker.security.http import HttpGuard, JobAccess, serving
        from tracker.web.listening import application

        security, listen = self._options.security, self._options.metrics
        page = Page(self.source, JobAccess())
        guarded = Middleware(HttpGuard, guard=security.guard, listen=listen)
        routes = page.routes() if self._options.page else ()
        readiness = self.readiness
        site = application(self.metrics.scrape, readiness.missing, routes, [guarded], lambda: readiness.is_standby)
        self._url = await stack.enter_async_context(serving(site, listen, security.certificate))
        stack.callback(page.close)

    async def _own_and_serve(self) -> bool:
        options = self._options
        while True:
            journal, followed = await own(
                options.journal, options.standby, self._stop, self.readiness, options.accept_loss
            )
            if journal is None:
                return False
            if self.readiness.is_standby:  # a loss that came after the operator's decision is none that was accepted
                options = replace(options, accept_loss=False)
            with closing(journal):
                self.readiness.recovering()
                try:
                    return await self._serve(options, journal, followed)
                except JournalLockedError as error:  # another standby was quicker
                    if not options.standby:
                        raise
                    log.info("standing by again: %s", error)

    async def _serve(self, options: Options, journal: Journal, followed: Followed | None) -> bool:
        # In a thread, so that the event loop answers meanwhile that the server lives, and is not ready.
        recovered = await asyncio.to_thread(
            replayable.recover,
            journal,
            options.retention_s * 1_000_000_000,
            self._wall(),
            options.accept_loss,
            options.set_aside,
            followed,
        )
        clock = Clock(recovered.state.at, self._wall, self._elapsed)
        leader = _Leader(self, options, recovered, clock, self._stop)
        certificate = options.security.certificate
        address = add_port(leader.transport.server, options.listen, certificate)
        await leader.start()
        log.info(
            "serving",
            extra={
                "version": tracker.__version__,
                "journal": options.journal,
                "address": address,
                "tls": certificate is not None,
                "open": options.security.guard.is_open,
                **({"metrics": self._url} if self._url else {}),
            },
        )
        self._ready(Started(address, leader.ticker.tick_due, self._url))
        await self._stop.wait()
        log.info("stopping")
        handed_over = await leader.stop()
        log.info("stopped")
        return handed_over


class _Leader:
    """A server that has a journal: all that answers, from the state that was recovered.

    Args:
        stop: set when the server is to stop, by this one too.
    """

    def __init__(
        self, server: _Server, options: Options, recovered: RecoveredState, clock: Clock, stop: asyncio.Event
    ) -> None:
        state, journal, limits = recovered.state.tracker, recovered.journal, options.limits
        self._journal = journal
        self._readiness = server.readiness
        self._clock = clock
        self._stop = stop
        self._gone: JournalGoneError | None = None
        self._lanes = lanes = Lanes()
        self._readers = Readers(state, lanes, limits)
        self._notices = Notices(state)
        surveys = Surveys(state, lanes)
        labels = JobLabels(limits.max_metric_jobs, lambda job: state.find(job) is not None)
        self._measures = Measures(labels, state.find)
        self._measures.began(state.jobs())
        health = JournalHealth(self._works, self._measures)
        snapshots = Snapshots(journal, self._measures, options.snapshot_bytes)
        self._sequencer = Sequencer(recovered, lanes, limits, clock, health, snapshots, self._done)
        self._leadership = Leadership(journal, self._readers.send_away)
        self._hand_over = HandOver(journal, self._sequencer, stop)
        calls = Calls(limits, options.security.guard, server.audit, self._leadership, self._measures)
        self._service = Service(
            calls,
            Admission(state, lanes, limits),
            self._sequencer,
            self._readers,
            self._notices,
            Lookups(state, self._readers, calls.intake, limits, journal.name),
            Administration(calls, self._sequencer, self._hand_over, journal.name),
        )
        largest = limits.max_message_bytes + _SLACK  # up to it, the server refuses a message with a reason
        self.transport = Transport(SERVICE, self._service.handlers(), largest, _connections(limits))
        if options.reflection:
            self.transport.reflect()
        self.ticker = Ticker(state, self._sequencer, lanes, clock, self._notices)
        self._tasks: set[asyncio.Task[None]] = set()
        inventory = Inventory(state, lanes, self._readers, surveys, limits.max_metric_names)
        server.source.attach(state, self._readers, surveys)
        server.metrics.serves(
            ServingMetrics(self._measures, labels, inventory, clock, self._sequencer, calls.intake, self._readers)
        )

    # ---------------------------------------------------------------- what it learns

    def _done(self, job: str, at: int, is_news: bool) -> None:
        self.ticker.look()
        self._readers.carried_out(job)
        if not is_news:
            return
        self._readers.news(job)
        self._notices.news(job)
        self._measures.news(job, (self._clock.now() - at) / 1e9)

    def _works(self, works: bool) -> None:
        self._readiness.journal_works(works)
        if not self._stop.is_set():
            task = asyncio.create_task(self.transport.set_health(works))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _leave(self, error: JournalGoneError) -> None:
        log.error("this server cannot continue: %s", error)
        self._gone = self._gone or error
        self._sequencer.leave()
        self._stop.set()

    # ---------------------------------------------------------------- its life

    async def start(self) -> None:
        """Accept calls."""
        loop, readers = asyncio.get_running_loop(), self._readers

        def leave_soon(error: JournalGoneError) -> None:
            loop.call_soon_threadsafe(self._leave, error)

        self._journal.when_gone(leave_soon)
        self._sequencer.start()
        self._ticking = asyncio.create_task(self.ticker.run())
        self._following = asyncio.create_task(
            self._leadership.follow(lambda: readers.waits > 0 or bool(readers.watches))
        )
        await self.transport.start()
        self._readiness.serving()

    async def stop(self) -> bool:
        """Finish what was accepted, and release the journal; return whether it was handed over.

        Raises:
            tracker.journal.JournalGoneError: the journal was no longer this server's.
        """
        self._readiness.stopping()
        await self.transport.leave()
        self._following.cancel()
        self._ticking.cancel()
        with suppress(asyncio.CancelledError):
            await self._ticking
        self._readers.stop()
        self._service.stop()
        await self.transport.stop(0 if self._gone else self._hand_over.grace_s)
        # A program that ends lets no thread begin any more, so the tracker in it leaves no snapshot.
        ends = not threading.main_thread().is_alive()
        await self._sequencer.stop(keep_snapshot=not (self._hand_over.asked or ends))
        self._leadership.close()
        self._lanes.close()
        if self._gone is not None:
            raise self._gone
        await self._hand_over.finish()
        return self._hand_over.asked


def _connections(limits: Limits) -> list[tuple[str, int]]:
    calls = limits.max_calls + limits.max_watchers + limits.max_report_streams
    return [
        # gRPC bounds the calls that wait to be accepted by 1,000 and 3,000. Beyond that it answers with a bare
        # CANCELLED, and not always. Our limits refuse with a reason.
        ("grpc.server.max_pending_requests", calls),
        ("grpc.server.max_pending_requests_hard_limit", 2 * calls),
        ("grpc.max_concurrent_streams", limits.max_connection_streams),
        # The server closes a connection that nobody uses after a while.
        ("grpc.max_connection_idle_ms", 600_000),
        ("grpc.server_handshake_timeout_ms", 10_000),
    ]


def _check_free(listen: str) -> None:
    """Check that an address can be bound, before a file is made; another program may still be quicker."""
    host, port = host_and_port(listen)
    try:
        places = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(listen) from error
    for family, *_, place in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
            return
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:  # gRPC listens at [::] where there is only IPv4, too
                return
    raise cannot_listen(listen)
