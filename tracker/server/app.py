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
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]
from starlette.middleware import Middleware

import tracker
from tracker.journal import Journal, JournalGoneError, JournalLockedError
from tracker.page.application import Page
from tracker.security.audit import Audit
from tracker.security.certificates import Certificate
from tracker.security.http import HttpGuard, JobAccess, serving
from tracker.security.settings import Security
from tracker.web.application import application
from tracker.web.listening import CannotListenError
from tracker.wire.addresses import host_and_port

from . import replayable
from .clock import Clock
from .handover import HandOver
from .inventory import Inventory
from .joblabels import JobLabels
from .lanes import TURN_S, Lanes
from .leading import Leadership
from .limits import Limits
from .measures import Measures
from .metrics import Metrics, ServingMetrics
from .notices import Notices
from .owning import own
from .pagesource import PageSource
from .processmemory import collect_garbage_rarely, return_large_blocks
from .readiness import Readiness
from .replayable import Followed
from .sequencer import Sequencer
from .service import SERVICE, Service
from .surveys import Surveys
from .ticking import Ticker
from .turns import Notifier, Turns
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

    listen: str = "127.0.0.1:7654"  #: HOST:PORT; port 0 picks one
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

    host: str  #: as in `Options.listen`
    port: int  #: the port on which it listens
    #: Carries out the timers that are due, waits until they have taken effect, and returns when the next one is due. To
    #: be awaited on the server's loop, by callers whose clock is not the machine's.
    tick: Callable[[], Awaitable[int | None]]
    metrics: str = ""  #: the URL of the metrics; "" if `Options.metrics` is


async def serve(options: Options) -> bool:
    """Serve until SIGTERM or SIGINT, or until the journal was handed to a standby; return whether it was.

    Print ``listening on HOST:PORT`` when ready.

    With `options.metrics`, a second line has ``metrics on http://HOST:PORT``. That address answers from the beginning:
    while the journal is read, `/readyz` tells that the server is not ready yet.

    Args:
        options: where to listen, which journal to use, and the limits.

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
        print(f"listening on {started.host}:{started.port}", flush=True)
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
        options: as for `serve`.
        stop: set on the running loop, it stops the server.
        ready: called once when the server accepts calls.
        wall: the machine's clock, in ns since the Unix epoch.
        elapsed: a monotonic clock, in ns.

    Raises:
        ValueError, CannotListenError, tracker.journal.JournalError: as for `serve`.
    """
    options.security.check_exposed(options.listen)
    if options.metrics:
        options.security.check_exposed(options.metrics, "the status page and the metrics")
    guard, certificate = options.security.guard, options.security.certificate
    host_and_port(options.listen)
    if not options.standby:  # which may take over the address, too
        await asyncio.to_thread(_check_free, options.listen)
    readiness = Readiness()
    metrics = Metrics(readiness)
    source = PageSource(options.journal.partition(":")[0])
    async with AsyncExitStack() as stack:
        stack.callback(asyncio.create_task(guard.follow()).cancel)  # also while it recovers, or stands by
        url = ""
        if options.metrics:
            page = Page(source, JobAccess())
            guarded = Middleware(HttpGuard, guard=guard, listen=options.metrics)
            routes = page.routes() if options.page else ()
            site = application(metrics.scrape, readiness.missing, routes, [guarded], lambda: readiness.is_standby)
            url = await stack.enter_async_context(serving(site, options.metrics, certificate))
            stack.callback(page.close)
        audit = Audit(options.audit, lambda: wall() / 1e9) if options.audit else None
        while True:
            journal, followed = await own(options.journal, options.standby, stop, readiness, options.accept_loss)
            if journal is None:
                return False
            if readiness.is_standby:  # a loss that came after the operator's decision is none that was accepted
                options = replace(options, accept_loss=False)
            with closing(journal):
                readiness.recovering()
                try:
                    return await _run(
                        options, journal, followed, stop, ready, wall, elapsed, readiness, source, metrics, url, audit
                    )
                except JournalLockedError as error:  # another standby was quicker
                    if not options.standby:
                        raise
                    log.info("standing by again: %s", error)


async def _run(
    options: Options,
    journal: Journal,
    followed: Followed | None,
    stop: asyncio.Event,
    ready: Callable[[Started], None],
    wall: Callable[[], int],
    elapsed: Callable[[], int],
    readiness: Readiness,
    source: PageSource,
    metrics: Metrics,
    url: str,
    audit: Audit | None,
) -> bool:
    guard, certificate = options.security.guard, options.security.certificate
    # In a thread, so that the event loop answers meanwhile that the server lives, and is not ready.
    state, number = await asyncio.to_thread(
        replayable.recover,
        journal,
        options.retention_s * 1_000_000_000,
        wall(),
        options.accept_loss,
        options.set_aside,
        followed,
    )
    clock = Clock(state.at, wall, elapsed)
    lanes, turns = Lanes(), Turns()
    notifier = Notifier(turns)
    readers = Readers(state.tracker, lanes, notifier, turns, options.limits)
    surveys = Surveys(state.tracker, lanes)
    source.attach(state.tracker, readers, surveys)
    notices = Notices(state.tracker)
    labels = JobLabels(options.limits.max_metric_jobs, lambda job: state.tracker.find(job) is not None)
    measures = Measures(labels, state.tracker.find)
    measures.began(state.tracker.jobs())
    health_service = health.aio.HealthServicer()
    tasks: set[asyncio.Task[None]] = set()

    def news(job: str, at: int) -> None:
        readers.news(job)
        notices.news(job)
        measures.news(job, (clock.now() - at) / 1e9)

    def works(works: bool) -> None:
        readiness.journal_works(works)
        if not stop.is_set():
            task = asyncio.create_task(_set_health(health_service, works))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    sequencer = Sequencer(
        state, lanes, journal, number, options.limits, clock, news, works, options.snapshot_bytes, measures
    )
    leadership = Leadership(journal, readers.send_away)
    hand_over = HandOver(journal, sequencer, stop)
    service = Service(
        state.tracker,
        sequencer,
        lanes,
        readers,
        options.limits,
        notices,
        journal.name,
        measures,
        guard,
        audit,
        leadership,
        hand_over,
    )
    names = options.limits.max_metric_names
    inventory = Inventory(state.tracker, lanes, readers, surveys, names + 1)
    metrics.serves(ServingMetrics(measures, labels, inventory, names, clock, sequencer, service, readers))
    calls = options.limits.max_calls + options.limits.max_watchers + options.limits.max_report_streams
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # with it, two servers on one port would each get a part of the callers
            # The server refuses a message above the limit with a reason; the transport refuses a much larger one.
            ("grpc.max_receive_message_length", options.limits.max_message_bytes + _SLACK),
            ("grpc.max_send_message_length", -1),
            # gRPC bounds the calls that wait to be accepted by 1,000 and 3,000. Beyond that it answers with a bare
            # CANCELLED, and not always. Our limits refuse with a reason.
            ("grpc.server.max_pending_requests", calls),
            ("grpc.server.max_pending_requests_hard_limit", 2 * calls),
            ("grpc.max_concurrent_streams", options.limits.max_connection_streams),
            # Watchers may ping often, to find out whether a silent server is still there.
            ("grpc.http2.min_ping_interval_without_data_ms", 500),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
            ("grpc.keepalive_permit_without_calls", 1),
            # The server closes the connection of a watcher whose machine is gone.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.ping_timeout_ms", 20_000),
            # The server closes a connection that nobody uses after a while.
            ("grpc.max_connection_idle_ms", 600_000),
            ("grpc.server_handshake_timeout_ms", 10_000),
        ]
    )
    server.add_generic_rpc_handlers((service.handlers(),))
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    if options.reflection:
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    host, port = _bind(server, options.listen, certificate)
    gone: list[JournalGoneError] = []

    def leave(error: JournalGoneError) -> None:
        log.error("this server cannot continue: %s", error)
        gone.append(error)
        sequencer.leave()
        stop.set()

    loop = asyncio.get_running_loop()

    def leave_soon(error: JournalGoneError) -> None:
        loop.call_soon_threadsafe(leave, error)

    journal.when_gone(leave_soon)
    sequencer.start()
    ticker = Ticker(state.tracker, sequencer, lanes, clock, notices)
    ticking = asyncio.create_task(ticker.run())
    following = asyncio.create_task(leadership.follow(lambda: readers.waits > 0 or bool(readers.watches)))
    await server.start()
    await _set_health(health_service, True)
    readiness.serving()
    place = {"metrics": url} if url else {}
    log.info(
        "serving",
        extra={
            "version": tracker.__version__,
            "journal": options.journal,
            "port": port,
            "tls": certificate is not None,
            "open": guard.is_open,
            **place,
        },
    )
    ready(Started(host, port, ticker.tick_due, url))
    await stop.wait()
    log.info("stopping")
    readiness.stopping()
    await health_service.enter_graceful_shutdown()
    following.cancel()
    ticking.cancel()
    with suppress(asyncio.CancelledError):
        await ticking
    readers.stop()
    service.stop()
    await server.stop(0 if gone else hand_over.grace_s)
    await sequencer.stop(keep_snapshot=not hand_over.asked)
    leadership.close()
    lanes.close()
    if gone:
        raise gone[0]
    await hand_over.finish()
    log.info("stopped")
    return hand_over.asked


async def _set_health(service: health.aio.HealthServicer, works: bool) -> None:
    status = health_pb2.HealthCheckResponse.SERVING if works else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", SERVICE):
        await service.set(name, status)


def _bind(server: grpc.aio.Server, listen: str, certificate: Certificate | None) -> tuple[str, int]:
    host, _ = host_and_port(listen)
    try:
        if certificate is None:
            return host, server.add_insecure_port(listen)
        return host, server.add_secure_port(listen, certificate.credentials())
    except RuntimeError as error:
        raise _cannot_listen(listen) from error


def _check_free(listen: str) -> None:
    """Check that an address can be bound, before a file is made; another program may still be quicker."""
    host, port = host_and_port(listen)
    try:
        places = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _cannot_listen(listen) from error
    for family, *_, place in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
            return
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:  # gRPC listens at [::] where there is only IPv4, too
                return
    raise _cannot_listen(listen)


def _cannot_listen(listen: str) -> CannotListenError:
    return CannotListenError(
        f"cannot listen on {listen}; check that no other server uses it and that the host is this machine"
    )
