"""The durable command log: it keeps the tracker's commands, so that they can be carried out again after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracker.store.address import SCHEMES

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
    LeftOut,
    LostTrackError,
    MovableJournal,
    NoJournalError,
    Place,
    Record,
    Recovery,
    RestoreUnfinishedError,
)
from .replicated import ReplicatedJournal
from .sqlite import Ownership, SqliteJournal, set_file_aside, stand_by_file

if TYPE_CHECKING:
    from .objects import ObjectsJournal
    from .redis import RedisJournal

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
    "LeftOut",
    "LostTrackError",
    "MemoryJournal",
    "MovableJournal",
    "NoJournalError",
    "Place",
    "Record",
    "Recovery",
    "RestoreUnfinishedError",
    "SqliteJournal",
    "announce_standby",
    "follow_journal",
    "open_journal",
    "set_journal_aside",
]


class MemoryJournal(Journal):
    """The fastest journal, which keeps nothing: for tests and for jobs that may start from scratch."""

    name = "memory"
    instant = True
    exclusive = True

    def __init__(self) -> None:
        self._last = 0

    def recover(self, accept_loss: bool = False) -> Recovery:  # noqa: ARG002
        return Recovery(state=None, number=0, records=iter(()))

    def append(self, records: Sequence[Record]) -> int:
        self._last += len(records)
        return self._last

    def snapshot(self, number: int, state: Any) -> int:  # noqa: ARG002
        return 0


def open_journal(where: str, must_exist: bool = False, restoring: bool = False) -> Journal:
    """Open a journal, which this process owns until it is closed.

    Args:
        where: ``memory``, ``sqlite:PATH``, an address in Redis (`tracker.journal.redis.RedisAddress`), or one in an
            object store (`tracker.journal.objects.ObjectsAddress`).
        must_exist: make no new file.
        restoring: whether a backup is being put into it: else a journal that was set aside for one is refused.

    Raises:
        ValueError: `where` has another form.
        NoJournalError: with `must_exist`, there is no file.
        JournalLockedError: another process owns it.
        JournalError: it cannot be opened; the message has the reason and what to do.

    >>> open_journal("memory").name
    'memory'
    """
    kind, _, path = where.partition(":")
    if kind == "memory" and not path:
        return MemoryJournal()
    if kind == "sqlite" and path:
        if must_exist and not Path(path).exists():
            raise NoJournalError(f"there is no journal {path}; check its path")
        return SqliteJournal(path, restoring)
    if (journal := _replicated(where, restoring=restoring)) is not None:
        return journal
    raise ValueError(
        f"{where!r} is not a journal; use 'memory', 'sqlite:PATH', 'redis://HOST:PORT', 's3://BUCKET/PREFIX', "
        "'gs://BUCKET/PREFIX', 'az://CONTAINER/PREFIX' or 'file:///DIRECTORY'"
    )


def announce_standby(where: str) -> Ownership | None:
    """Let the owner of a journal that only its owner can read find out that this process waits for it.

    Args:
        where: the address of the journal, as for `open_journal`.

    Returns:
        An `Ownership` to release once this process waits no more; None: another process is announced.
    """
    kind, _, path = where.partition(":")
    return stand_by_file(path) if kind == "sqlite" else None


def set_journal_aside(where: str) -> str:
    """Move all of a journal elsewhere, so that a backup can take its place. Until it has, no tracker starts there.

    Nothing is removed.

    Args:
        where: the address of the journal, as for `open_journal`.

    Returns:
        Where it is now; empty: there was nothing.

    Raises:
        ValueError: `where` has another form.
        JournalLockedError: another process owns it.
        JournalError: it cannot be moved; the message has the reason and what to do.
    """
    kind, _, path = where.partition(":")
    if kind == "sqlite" and path:
        return set_file_aside(path)
    with closing(open_journal(where, restoring=True)) as journal:
        if not isinstance(journal, ReplicatedJournal):
            raise JournalError(f"a journal of the kind {kind!r} cannot be set aside")
        return journal.move_aside()


def follow_journal(where: str) -> FollowableJournal | None:
    """Open a journal that another process may own, to read what that one writes.

    Args:
        where: the address of the journal, as for `open_journal`.

    Returns:
        The journal; None: one of this kind can be read by its owner only.

    Raises:
        ValueError: `where` has another form.
        JournalError: it cannot be opened; the message has the reason and what to do.
    """
    return _replicated(where, follow=True)


def _replicated(where: str, follow: bool = False, restoring: bool = False) -> RedisJournal | ObjectsJournal | None:
    kind = where.partition(":")[0]
    # Each is loaded when used: the packages `redis` and `obstore` take a while.
    if kind.startswith("redis"):
        from .redis import RedisAddress, RedisJournal

        return RedisJournal(RedisAddress.parse(where), follow, restoring)
    if kind in SCHEMES:
        from .objects import open_objects_journal

        return open_objects_journal(where, follow, restoring)
    return None
