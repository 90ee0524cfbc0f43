"""The durable command log: it keeps the tracker's commands, so that they can be carried out again after a crash."""

from __future__ import annotations

from .interface import (
    Damage,
    FollowableJournal,
    Following,
    Journal,
    JournalError,
    JournalFullError,
    JournalGoneError,
    JournalLockedError,
    JournalLossError,
    LostTrackError,
    Place,
    Record,
    Recovery,
)
from .memory import MemoryJournal
from .sqlite import SqliteJournal

__all__ = [
    "Damage",
    "FollowableJournal",
    "Following",
    "Journal",
    "JournalError",
    "JournalFullError",
    "JournalGoneError",
    "JournalLockedError",
    "JournalLossError",
    "LostTrackError",
    "MemoryJournal",
    "Place",
    "Record",
    "Recovery",
    "SqliteJournal",
    "follow_journal",
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


def follow_journal(where: str) -> FollowableJournal | None:
    """Open a journal that another process may own, to read what that one writes.

    Args:
        where: as for `open_journal`.

    Returns:
        The journal; None: one of this kind can be read by its owner only.

    Raises:
        ValueError: `where` has another form.
        JournalError: it cannot be opened; the message has the reason and what to do.
    """
    if not where.startswith("redis"):
        return None
    from .redis import RedisAddress, RedisJournal

    return RedisJournal(RedisAddress.parse(where), follow=True)
