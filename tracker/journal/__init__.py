"""The durable command log: it keeps the tracker's commands, so that they can be carried out again after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from .objects.journal import ObjectsJournal

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

_OBJECT_STORES: Final = ("s3", "gs", "az", "file")


def open_journal(where: str) -> Journal:
    """Open a journal, which this process owns until it is closed.

    Args:
        where: ``memory``, ``sqlite:PATH``, an address in Redis (`tracker.journal.redis.RedisAddress`), or one in an
            object store (`tracker.journal.objects.ObjectsAddress`).

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
    if kind in _OBJECT_STORES:
        return _objects_journal(where)
    raise ValueError(
        f"{where!r} is not a journal; use 'memory', 'sqlite:PATH', 'redis://HOST:PORT', 's3://BUCKET/PREFIX', "
        "'gs://BUCKET/PREFIX', 'az://CONTAINER/PREFIX' or 'file:///DIRECTORY'"
    )


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
    kind = where.partition(":")[0]
    if kind in _OBJECT_STORES:
        return _objects_journal(where, follow=True)
    if not kind.startswith("redis"):
        return None
    from .redis import RedisAddress, RedisJournal

    return RedisJournal(RedisAddress.parse(where), follow=True)


def _objects_journal(where: str, follow: bool = False) -> ObjectsJournal:
    from .objects import open_objects_journal

    return open_objects_journal(where, follow)
