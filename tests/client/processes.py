"""A real tracker in a process of its own, and a real line to it that can be cut."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from examples.services.processes import free_port
from tracker.load.shared import memory

TRACKER = [sys.executable, "-m", "tracker.cli.main"]
#: Another Python than the tested client's, if the environment names one: `make test-bounds`.
SERVER = [os.environ.get("SERVER_PYTHON", sys.executable), *TRACKER[1:], "serve"]


class Server:
    """A tracker that keeps its address and its journal from one start to the next."""

    def __init__(
        self,
        directory: Path,
        journal: str = "sqlite",
        *options: str,
        waits: bool | None = False,
        program: Sequence[str] = SERVER,
    ) -> None:
        self._log = directory / "tracker.log"
        self.program = program  #: what the next start runs
        self.journal = f"sqlite:{directory / 'tracker.db'}" if journal == "sqlite" else journal
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.address = f"127.0.0.1:{free_port()}"
        if waits is not None:  # None: it is started later
            self.start(waits)

    def start(self, waits: bool = False, more: Sequence[str] = ()) -> None:
        """Start the server and wait until it is ready, or do not wait, since it waits itself for another one's end.

        Args:
            waits: for another one's end.
            more: options of this start.
        """
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self.program, "--listen", self.address, "--journal", self.journal, *self._options, *more],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if waits:
            return
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said.startswith("listening on "), self._log.read_text()
        self.address = said.split()[-1]

    @property
    def log(self) -> str:
        """The log."""
        return self._log.read_text() if self._log.exists() else ""

    def ended(self) -> int:
        """Wait until the server has ended by itself, and return its exit status."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process by SIGTERM."""
        self._end(signal.SIGTERM)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, without waiting for the end."""
        self._signal(signal.SIGTERM)

    def restart(self) -> None:
        """Kill the process, and start it on the same port again."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Let the process stand still, its connections open."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process go on."""
        self._signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        """True if the process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._process is not None
        return self._process.pid

    def memory(self) -> int:
        """Return the bytes that the server holds."""
        return memory(self.pid)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


class Line:
    """A line to a server: passes bytes on, can hold back those of either side, and can be cut."""

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._requests, self._answers = threading.Event(), threading.Event()
        self._requests.set()
        self._answers.set()
        self.refuses = False  #: whether new callers are turned away
        self.delay = 0.0  #: seconds for which bytes are under way
        self._forgotten: set[socket.socket] = set()  # ends that do not learn that the other one has gone
        self._sign = b""
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, target: str) -> None:
        """Lead new connections to this server from now on."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def hold(self, requests: bool = True, answers: bool = True) -> None:
        """Hold back the bytes of the callers, of the server, or of both, as a network does that loses packets."""
        if requests:
            self._requests.clear()
        if answers:
            self._answers.clear()

    def release(self) -> None:
        """Pass on what was held back, late, and what comes from now on."""
        self._requests.set()
        self._answers.set()

    def hold_answers(self, after: bytes = b"") -> None:
        """Hold the server's answers back from now on, or once callers have sent this; their calls reach it."""
        self._sign = after
        if not after:
            self._answers.clear()

    @property
    def holds(self) -> bool:
        """True if answers are held back now."""
        return not self._answers.is_set()

    def cut(self) -> None:
        """End all connections; what was held back is lost. New ones work."""
        self._sign = b""
        sockets, self._sockets = self._sockets, []
        self._forgotten.clear()
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.release()

    def forget(self, callers: bool) -> None:
        """End all connections for one side; the other one is not told, and talks to nobody. New ones work.

        Args:
            callers: whether those who called are told, and not the server.
        """
        told, kept = self._sockets[not callers :: 2], self._sockets[callers::2]
        self._forgotten.update(kept)
        self._drop(*told)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                if self.refuses:
                    caller.close()
                    continue
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # the server is away: its callers are refused, and may come back when it is there again
                    caller.close()
                    continue
                self._sockets += [caller, server]
                threading.Thread(target=self._pass_on, args=[caller, server, False], daemon=True).start()
                threading.Thread(target=self._pass_on, args=[server, caller, True], daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if answers:
                    self._answers.wait()
                else:
                    self._requests.wait()
                    if self._sign and self._sign in data:
                        self._answers.clear()
                time.sleep(self.delay)
                sink.sendall(data)
        self._drop(source, sink)

    def _drop(self, *ends: socket.socket) -> None:
        for end in ends:
            if end not in self._forgotten:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


class Silence:
    """A port that takes connections, counts them and answers nothing."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._taken: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def callers(self) -> int:
        """Number of callers that have come."""
        return len(self._taken)

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                self._taken.append(self._listening.accept()[0])

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        for each in self._taken:
            each.close()
