"""The durable command log: what the tracker was told, so that it can be told again after a crash."""

from __future__ import annotations

from .interface import (
    Damage,
    Journal,
    JournalError,
    JournalFullError,
    JournalLockedError,
    JournalLossError,
    Record,
    Recovery,
)
from .memory import MemoryJournal
from .sqlite import SqliteJournal

__all__ = [
    "Damage",
    "Journal",
    "JournalError",
    "JournalFullError",
    "JournalLockedError",
    "JournalLossError",
    "MemoryJournal",
    "Record",
    "Recovery",
    "SqliteJournal",
    "open_journal",
]


def open_journal(where: str) -> Journal:
    """The journal that ``memory`` or ``sqlite:PATH`` names, owned by this process until it is closed.

    Raises:
        ValueError: it names neither.
        JournalLockedError: another process owns it.
        JournalError: it cannot be opened; the message says why and what to do.

    >>> open_journal("memory").name
    'memory'
    """
    kind, _, path = where.partition(":")
    if kind == "memory" and not path:
        return MemoryJournal()
    if kind == "sqlite" and path:
        return SqliteJournal(path)
    raise ValueError(f"{where!r} is not a journal; use 'memory' or 'sqlite:PATH'")
