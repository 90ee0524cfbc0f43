"""A service in a process group of its own, which keeps its port and its data from one start to the next."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

_READY_WITHIN = 90.0  #: seconds


class Service(ABC):
    """A process that `start` or ``with`` starts; `kill` is kill -9, `restart` brings back what was stored."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start the service and wait until it answers."""

    def stop(self) -> None:
        """Ask the service to end (SIGTERM), and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the service and all of its children by SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill the service, and start it on the same port with the same data again."""
        self.kill()
        self.start()

    def _launch(self, command: list[str], **options: Any) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **options)

    def _await(self, what: str) -> None:
        """Wait until `_answers`. Kill a service that ends or takes too long, and raise the end of its log."""
        until = time.monotonic() + _READY_WITHIN
        while not self._answers():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"{what} did not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether the service is ready."""

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        process.wait()


def free_port() -> int:
    """Return a port that the system gives to nobody by itself, so that it is still free when the service comes back."""
    while True:
        port = random.randrange(15_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
