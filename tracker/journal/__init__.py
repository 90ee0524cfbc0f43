"""The durable command log: it keeps the tracker's commands, so that they can be carried out again after a crash."""

from __future__ import annotations

from .interface import (
    Damage,
    Journal,
    JournalError,
    JournalFullError,
    JournalGoneError,
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
    "JournalGoneError",
    "JournalLockedError",
    "JournalLossError",
    "MemoryJournal",
    "Record",
    "Recovery",
    "SqliteJournal",
    "open_journal",
]


def open_journal(where: str) -> Journal:
    """Open a journal, which this process owns until it is closed.

    Args:
        where: ``memory``, ``sqlite:PATH``, or an address in Redis (`tracker.journal.redis.RedisAddress`).

    Raises:
        ValueError: `where` has another form.
        JournalLockedError: another process owns it.
        JournalError: it cannot be opened; the message has the reason and what to do.

    >>> open_journal("memory").name
    'memory'
    """
    kind, _, path = where.partition(":")
    if kind == "memory" and not path:
        return MemoryJournal()
    if kind == "sqlite" and path:
        return SqliteJournal(path)
    if kind.startswith("redis"):
        # Loaded when used: the package `redis` takes a while.
        from .redis import RedisAddress, RedisJournal

        return RedisJournal(RedisAddress.parse(where))
    raise ValueError(f"{where!r} is not a journal; use 'memory', 'sqlite:PATH' or 'redis://HOST:PORT'")
