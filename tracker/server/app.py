"""The server as a process: it recovers its state, listens, serves until a signal stops it, and leaves a snapshot."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

import tracker
from tracker.journal import Journal, open_journal

from . import replayable
from .clock import Clock
from .lanes import TURN_S, Lanes
from .limits import Limits
from .notices import Notices
from .sequencer import Sequencer
from .service import SERVICE, Service
from .ticking import Ticker
from .turns import Notifier, Turns
from .watching import Readers

log = logging.getLogger("tracker.server")

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's malloc.h
_SLACK = 1 << 20  # bytes
_GRACE_S = 10.0  # the time that calls under way get when the server stops


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a server.

    Raises:
        ValueError: `retention_s` or `snapshot_bytes` is negative.

    >>> Options(listen="127.0.0.1:0", journal="memory").reflection
    True
    """

    listen: str = "127.0.0.1:7654"  #: HOST:PORT; port 0 picks one
    journal: str = "sqlite:tracker.db"  #: ``memory`` or ``sqlite:PATH``
    retention_s: int = 24 * 3600  #: seconds that ended substreams and events are kept, for jobs without a retention
    snapshot_bytes: int = 256 << 20  #: bytes that are journaled between two snapshots, at least
    limits: Limits = field(default_factory=Limits)
    reflection: bool = True  #: serve gRPC reflection, which lists services and messages
    accept_loss: bool = False  #: start even if acknowledged records are lost
    set_aside: frozenset[int] = frozenset()  #: numbers of journal records to leave out from now on

    def __post_init__(self) -> None:
        if self.retention_s < 0 or self.snapshot_bytes < 0:
            raise ValueError("retention and the bytes between snapshots must not be negative")


class CannotListenError(Exception):
    """The server cannot listen on the address."""


async def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT; print ``listening on HOST:PORT`` when ready.

    Args:
        options: where to listen, which journal to use, and the limits.

    Raises:
        ValueError: `options.listen` or `options.journal` has a wrong form.
        CannotListenError: another program uses the address, or this machine does not have it.
        tracker.journal.JournalError: the journal cannot be opened, or another process uses it.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    journal = open_journal(options.journal)
    try:
        await _serve(options, journal, stop)
    finally:
        journal.close()


async def _serve(options: Options, journal: Journal, stop: asyncio.Event) -> None:
    state, number = replayable.recover(
        journal, options.retention_s * 1_000_000_000, time.time_ns(), options.accept_loss, options.set_aside
    )
    sys.setswitchinterval(TURN_S)
    _return_memory()
    clock = Clock(state.at)
    lanes, turns = Lanes(), Turns()
    notifier = Notifier(turns)
    readers = Readers(state.tracker, lanes, notifier, turns, options.limits)
    notices = Notices(state.tracker)
    health_service = health.aio.HealthServicer()
    tasks: set[asyncio.Task[None]] = set()

    def news(job: str) -> None:
        readers.news(job)
        notices.news(job)

    def works(works: bool) -> None:
        if not stop.is_set():
            task = asyncio.create_task(_set_health(health_service, works))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    sequencer = Sequencer(state, lanes, journal, number, options.limits, clock, news, works, options.snapshot_bytes)
    service = Service(state.tracker, sequencer, lanes, readers, options.limits, notices, journal.name)
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
            # Watchers may ping often, to find out whether a silent server is still there.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # The server closes the connection of a watcher whose machine is gone.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            # The server closes a connection that nobody uses after a while.
            ("grpc.max_connection_idle_ms", 600_000),
            ("grpc.server_handshake_timeout_ms", 10_000),
        ]
    )
    server.add_generic_rpc_handlers((service.handlers(),))
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    if options.reflection:
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    host, port = _bind(server, options.listen)
    sequencer.start()
    ticking = asyncio.create_task(Ticker(state.tracker, sequencer, lanes, clock, notices).run())
    gc.freeze()  # the recovered state lives on: the garbage collector need not scan it again and again
    await server.start()
    await _set_health(health_service, True)
    log.info("serving", extra={"version": tracker.__version__, "journal": options.journal, "port": port})
    print(f"listening on {host}:{port}", flush=True)

    await stop.wait()
    log.info("stopping")
    await health_service.enter_graceful_shutdown()
    ticking.cancel()
    with suppress(asyncio.CancelledError):
        await ticking
    readers.stop()
    service.stop()
    await server.stop(_GRACE_S)
    await sequencer.stop()
    lanes.close()
    log.info("stopped")


async def _set_health(service: health.aio.HealthServicer, works: bool) -> None:
    status = health_pb2.HealthCheckResponse.SERVING if works else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", SERVICE):
        await service.set(name, status)


def _return_memory() -> None:
    """Make glibc return large blocks to the system as soon as they are freed.

    By default, glibc raises the size from which it does so each time a large block is freed, and it keeps a heap for
    each thread. After a few large messages, the process would keep hundreds of megabytes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        libc.mallopt(_M_ARENA_MAX, 2)


def _bind(server: grpc.aio.Server, listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"{listen!r} is not an address to listen on; use HOST:PORT, such as 127.0.0.1:7654")
    try:
        return host, server.add_insecure_port(listen)
    except RuntimeError as error:
        raise CannotListenError(
            f"cannot listen on {listen}; check that no other server uses it and that the host is this machine"
        ) from error
