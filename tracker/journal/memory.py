"""A journal that keeps nothing: the tracker's state ends with its process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .interface import JournalGoneError, Record, Recovery


class MemoryJournal:
    """The fastest journal, for tests and for jobs that may start from scratch."""

    name = "memory"
    instant = True
    exclusive = True

    def __init__(self) -> None:
        self._last = 0

    def confirm(self) -> None:
        pass

    def when_gone(self, gone: Callable[[JournalGoneError], None]) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def recover(self, accept_loss: bool = False) -> Recovery:  # noqa: ARG002
        return Recovery(state=None, number=0, records=iter(()))

    def replaying(self, number: int) -> None:
        pass

    def carrying(self, numbers: Sequence[int]) -> None:
        pass

    def set_aside(self, number: int, record: Record, why: str) -> None:
        pass

    def append(self, records: Sequence[Record]) -> int:
        self._last += len(records)
        return self._last

    def snapshot(self, number: int, state: Any) -> int:  # noqa: ARG002
        return 0

    def end_restore(self) -> None:
        pass

    def close(self) -> None:
        pass
