"""A driver that dies at a step of its own on the disk: from there on nothing that it would do comes about.

Between the steps of a test's queries, this process stays: what would be lost with a process (its memory) is left alone
by starting the queries again with new objects.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class KilledError(RuntimeError):
    """The driver is dead."""


class Driver:
    """Counts the steps beneath a directory, and dies at one of them.

    Args:
        root: the directory.

    Attributes:
        steps: what it has done there, in order.
        dead: whether it has died.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self._lock = threading.Lock()
        self._dies_at: int | None = None
        self._lives = False
        self.steps: list[str] = []
        self.dead = False
        sys.addaudithook(self._hook)  # for good: it does nothing when the driver is not alive

    @contextmanager
    def living(self, dies_at: int | None = None) -> Iterator[None]:
        """Count what is done meanwhile as the driver's steps.

        Args:
            dies_at: the number of the step that it does not take any more; None: it lives.
        """
        self.steps, self.dead, self._dies_at, self._lives = [], False, dies_at, True
        try:
            yield
        finally:
            self._lives = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._lives or not self._is_step(event, arguments):
            return
        with self._lock:
            if len(self.steps) == self._dies_at:
                self.dead = True
            if not self.dead:
                self.steps.append(f"{event} {str(arguments[0]).removeprefix(self._root)}")
        if self.dead:
            raise KilledError(f"killed before step {self._dies_at}")

    def _is_step(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event not in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
            return False
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
            return False
        return str(arguments[0]).startswith(self._root)
