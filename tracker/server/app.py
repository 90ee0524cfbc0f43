"""The server as a process: it recovers, listens, serves until it is told to stop, and leaves a snapshot."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from dataclasses import dataclass, field

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

import tracker
from tracker.journal import Journal, open_journal

from . import replica
from .limits import Limits
from .sequencer import Sequencer
from .service import SERVICE, Service
from .watching import Bells, Readers

log = logging.getLogger("tracker.server")

_GRACE_S = 10.0  # for calls under way when the server stops


@dataclass(frozen=True, slots=True)
class Options:
    """How a server is to run."""

    listen: str = "127.0.0.1:7654"  #: HOST:PORT; port 0 picks one
    journal: str = "sqlite:tracker.db"  #: ``memory`` or ``sqlite:PATH``
    retention_s: int = 24 * 3600  #: of ended substreams and events, for jobs that name none
    snapshot_bytes: int = 256 << 20  #: journaled between snapshots, at least
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.retention_s < 0 or self.snapshot_bytes < 0:
            raise ValueError("neither the retention nor the bytes between snapshots can be negative")


class CannotListenError(Exception):
    """The address cannot be listened on."""


async def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT; prints ``listening on HOST:PORT`` when ready.

    Raises:
        ValueError: an option makes no sense.
        CannotListenError: the address is taken, or is none.
        tracker.journal.JournalError: the journal cannot be opened, or is in use.
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
    state, number = replica.recover(journal, options.retention_s * 1_000_000_000, time.time_ns())
    bells = Bells()
    sequencer = Sequencer(state, journal, number, options.limits, bells.ring, options.snapshot_bytes)
    readers = Readers(state.tracker, bells, options.limits)
    service = Service(state.tracker, sequencer, readers, options.limits, journal.name)
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # two servers on one port would share its callers out between them
            # What is larger than the limit is refused with a reason; what is much larger, by the transport.
            ("grpc.max_receive_message_length", 2 * options.limits.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            # Watchers may ask often whether a silent server is still there.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # And a watcher whose machine is gone is let go.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        ]
    )
    server.add_generic_rpc_handlers((service.handlers(),))
    health_service = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    host, port = _bind(server, options.listen)
    sequencer.start()
    gc.freeze()  # what was recovered stays: the collector need not look through it again and again
    await server.start()
    for name in ("", SERVICE):
        await health_service.set(name, health_pb2.HealthCheckResponse.SERVING)
    log.info("serving", extra={"version": tracker.__version__, "journal": options.journal, "port": port})
    print(f"listening on {host}:{port}", flush=True)

    await stop.wait()
    log.info("stopping")
    await health_service.enter_graceful_shutdown()
    bells.stop()
    service.stop()
    await server.stop(_GRACE_S)
    await sequencer.stop()
    log.info("stopped")


def _bind(server: grpc.aio.Server, listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"listen on HOST:PORT, such as 127.0.0.1:7654, not {listen!r}")
    try:
        return host, server.add_insecure_port(listen)
    except RuntimeError as error:
        raise CannotListenError(
            f"cannot listen on {listen}; is another server there, or is the host not this machine's?"
        ) from error
