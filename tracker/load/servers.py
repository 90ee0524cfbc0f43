"""The tracker under test: one at an address, or one that the test starts, measures, kills and starts again.

Run as a process (`python -m tracker.load.servers`), this is a server that does nothing; it prints `listening on
HOST:PORT`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc.aio

from tracker.load.shared import memory, processor_seconds, waiting_seconds
from tracker.wire.gen import tracker_pb2

_APPLIED: Final = tracker_pb2.ReportResponse(outcome=tracker_pb2.ReportResponse.APPLIED).SerializeToString()


@dataclass(frozen=True, slots=True)
class Use:
    """Resource use of a server."""

    memory: int  #: bytes
    disk: int  #: bytes of its journal and of all files beside it
    processor_seconds: float
    waiting_seconds: float  #: seconds in which it had work to do and no processor was free


class Target(Protocol):
    """A tracker to which the test sends traffic."""

    address: str

    def use(self) -> Use | None:
        """Return the tracker's use of the machine now; None if the test has not started it."""

    def restart(self) -> None:
        """Kill the server and start it again, on the same journal and address."""


class FailedError(Exception):
    """The test could not make the load, or a server of it could not start or has ended by itself."""


class Remote:
    """A tracker that the test has not started."""

    def __init__(self, address: str) -> None:
        self.address = address

    def use(self) -> None:
        return None

    def restart(self) -> None:
        raise NotImplementedError(f"this test has not started the tracker at {self.address}, so it cannot restart it")


class Server:
    """A process that serves.

    Attributes:
        log: what it has logged; empty until it has ended.

    Raises:
        FailedError: it could not start.
    """

    def __init__(self, module: Sequence[str], log: Path) -> None:
        self._file = log
        self.log = ""
        with log.open("a") as file:
            # In a session of its own, so that Ctrl-C reaches only this process, which then stops it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", *module], stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self._process.wait()
            raise FailedError(f"the server has not started: {log.read_text()}")
        self.address = line.split()[-1]
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return whether the process is over."""
        return self._process.poll() is not None

    def processor_seconds(self) -> float:
        """Return the processor time that all its threads have used, in seconds."""
        return processor_seconds(self.pid)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, and wait until the process is over."""
        self._process.send_signal(number)
        self._process.communicate()
        self.log = self._file.read_text()


@contextmanager
def server_process(module: Sequence[str]) -> Iterator[Server]:
    """Run a server while the context lasts.

    Raises:
        FailedError: it could not start.
    """
    with tempfile.TemporaryDirectory(prefix="tracker-load-") as directory:
        server = Server(module, Path(directory) / "server.log")
        try:
            yield server
        finally:
            server.end()


def bare_server() -> AbstractContextManager[Server]:
    """Run a gRPC server that does nothing, while the context lasts."""
    return server_process(["tracker.load.servers"])


class Started:
    """A tracker that runs only for this load test, made by `started`."""

    def __init__(self, journal: str, log: Path) -> None:
        self._journal = journal
        self._log = log
        self._used = self._waited = 0.0  # of its processes that were killed
        self.address = "127.0.0.1:0"
        self._server = self._start()

    def use(self) -> Use:
        """Return the tracker's use of the machine now.

        Raises:
            FailedError: it has ended by itself.
        """
        if self._server.has_ended:
            raise FailedError(f"the tracker has ended: {self._log.read_text()}")
        pid = self._server.pid
        return Use(
            memory=memory(pid),
            disk=self._disk(),
            processor_seconds=self._used + processor_seconds(pid),
            waiting_seconds=self._waited + waiting_seconds(pid),
        )

    def restart(self) -> None:
        self._used += processor_seconds(self._server.pid)
        self._waited += waiting_seconds(self._server.pid)
        self._server.end(signal.SIGKILL)
        self._server = self._start()

    def stop(self) -> None:
        """Stop the server for good."""
        self._server.end()

    def _start(self) -> Server:
        command = ["tracker.cli.main", "serve", "--listen", self.address, "--journal", self._journal]
        server = Server(command, self._log)
        self.address = server.address
        return server

    def _disk(self) -> int:
        kind, _, path = self._journal.partition(":")
        if kind == "memory":
            return 0
        journal = Path(path)
        total = 0
        for file in journal.parent.glob(f"{journal.name}*"):
            try:
                total += file.stat().st_blocks * 512
            except FileNotFoundError:  # a snapshot was just replaced
                continue
        return total


@contextmanager
def started(journal: str) -> Iterator[Started]:
    """Start a tracker, which is stopped when the context ends.

    Args:
        journal: ``memory``, ``sqlite`` (in a directory that is removed at the end) or ``sqlite:PATH``.

    Raises:
        FailedError: the tracker could not start.
    """
    with tempfile.TemporaryDirectory(prefix="tracker-load-") as directory:
        place = f"sqlite:{directory}/tracker.db" if journal == "sqlite" else journal
        server = Started(place, Path(directory) / "tracker.log")
        try:
            yield server
        finally:
            server.stop()


class _Nothing(grpc.GenericRpcHandler):
    """Handler of a gRPC server that does nothing. It shows the cost of a message without any work on its content.

    It receives reports as raw bytes and answers each with the same few bytes. It sends its watchers every message that
    it gets by `Notify`.
    """

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[bytes]] = set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        match handler_call_details.method.rpartition("/")[2]:
            case "Report":
                return grpc.unary_unary_rpc_method_handler(self._report)
            case "ReportStream":
                return grpc.stream_stream_rpc_method_handler(self._report_stream)
            case "Notify":
                return grpc.unary_unary_rpc_method_handler(self._notify)
            case "Watch":
                return grpc.unary_stream_rpc_method_handler(self._watch)
            case _:
                return None

    async def _report(self, _request: bytes, _context: object) -> bytes:
        return _APPLIED

    async def _report_stream(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield _APPLIED

    async def _notify(self, request: bytes, _context: object) -> bytes:
        for watcher in self._watchers:
            watcher.put_nowait(request)
        return _APPLIED

    async def _watch(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield b"ready"
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)


async def _serve_bare() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers([_Nothing()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve_bare())
