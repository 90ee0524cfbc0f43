"""An operator who takes backups of the tracker that leads, and restores one of them over the journal."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tracker.backup import Checked
from tracker.contract.refusal import Refused
from tracker.journal import JournalError
from tracker.journal.snapshots import decode
from tracker.server.replayable import ReplayableState

from .judging import JOB, FoundOut, Lost, Status, status_of
from .program import Serving
from .schedule import Process

if TYPE_CHECKING:
    from .world import World


class Operator:
    """An operator in a process of its own, which can end at any step.

    Args:
        world: everything.

    Attributes:
        process: in which a backup is restored.
        kept: the backups.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.kept: list[bytes] = []
        self._works = False
        self._holds = False
        self.process = Process("operator")

    @property
    def works(self) -> bool:
        """True if a backup is being restored."""
        return self._works and not self.process.killed

    @property
    def holds(self) -> bool:
        """True if trackers are kept from starting, as long as it works."""
        return self._holds and self.works

    def back_up(self) -> None:
        """Take a backup, unless no tracker serves with the job."""
        with suppress(Lost, Refused):
            backup = self._world.call(Serving.back_up)
            if _read(Checked([backup], "backup")) is not None:
                self.kept.append(backup)

    def restore(self) -> None:
        """Begin to restore a backup, unless there is none, or one is being restored."""
        if self.kept and not self.works:
            self.process, self._works = Process("operator"), True
            self._holds = self._world.schedule.random.random() < 0.5
            self._world.schedule.start(self.process, self._restore)

    def kill(self) -> None:
        """End its process where it stands."""
        self._world.schedule.kill(self.process)

    def _restore(self) -> None:
        world = self._world
        backup = world.schedule.random.choice(self.kept)
        complaint = ""
        while True:
            for tracker in world.trackers:
                tracker.kill()
            world.decides()  # each attempt may give the log a new id
            try:
                done = world.store.restore(Checked([backup], "backup"))
                break
            except JournalError as error:
                if str(error) != complaint:
                    world.note(f"the restore fails: {error}")
                complaint = str(error)
                self._holds = self._holds or world.calm  # else they get the lease before it again and again
                world.schedule.pause(0.3)
        expected = _read(Checked([backup], "backup"))
        assert expected is not None
        world.note(f"restored up to event {expected.last}")
        world.restored(done.logs[JOB], expected)
        if self._holds:
            self._compare(expected)
        self._works = False

    def _compare(self, expected: Status) -> None:
        """Hold what the journal has now against the backup."""
        try:
            found = _read(self._world.store.read())
        except JournalError:  # the store is away
            return
        if found is None or found.committed != expected.committed or expected.events.items() - found.events.items():
            raise FoundOut(f"a restored journal has {found}, and its backup {expected}")


def _read(backup: Checked) -> Status | None:
    return status_of(ReplayableState(decode(b"".join(backup.state()))).tracker)
