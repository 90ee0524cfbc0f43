"""The journal in an object store: a log of objects that are created once, snapshots beside it, and signs of life.

    log/POSITION            an entry: a claim, or a group of records
    claims/POSITION         marks the positions that are never removed
    beats/POSITION          the sign of life of the tracker with the claim at that position
    standbys/…              the signs of life of those that wait
    snapshots/…             the two newest snapshots
    set-aside/NUMBER        records that every recovery leaves out
    lost                    the last record that was acknowledged and is lost, as long as nobody has accepted that
    damaged/TIME/…          snapshots that could not be read

See `log` for why nothing is lost or written twice, and docs/howto/journals.md for what an operator has to know.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tracker.store import ConditionalStore, StoreError

from ..groups import unpack
from ..holder import new_holder
from ..interface import (
    Damage,
    Following,
    JournalError,
    JournalGoneError,
    JournalLockedError,
    JournalLossError,
    LostTrackError,
    Place,
    Record,
    Recovery,
)
from ..snapshots import SnapshotDamagedError
from .address import unusable
from .chain import Chain, CutError, Survey
from .entries import Entry
from .following import ObjectsFollowing
from .lease import Lease
from .log import Log
from .marks import Marks
from .setaside import SetAside
from .snapshots import ObjectsSnapshots, Taken

_KEPT: Final = 64 << 20  # bytes of the log that are not read a second time


class ObjectsJournal:
    """A journal in an object store.

    Args:
        objects: the store.
        where: its address, for messages.
        lease: seconds without a sign of life after which a tracker may be replaced.
        marks: a directory of this machine for notes about commands under way.
        follow: only read at first, as `follow` does it, and own the journal once `try_to_own` has succeeded.
        clock: a monotonic one, in seconds.

    Raises:
        JournalLockedError: another tracker uses it, and `follow` is False.
        JournalError: the store cannot be used.
    """

    name = "objects"
    instant = False
    exclusive = False

    def __init__(
        self,
        objects: ConditionalStore,
        where: str,
        lease: float,
        marks: str,
        follow: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._where = where
        self._look_s = lease / 10
        self._clock = clock
        holder = new_holder()
        self._log = Log(objects, where, secrets.token_hex(8), holder)
        self._snapshots = ObjectsSnapshots(objects, where)
        self._set_aside = SetAside(objects)
        self._marks = Marks(marks, where)
        self._lease = Lease(objects, self._log, self._snapshots, where, holder, lease, clock)
        self._gone: JournalGoneError | None = None
        self._tell: Callable[[JournalGoneError], None] | None = None
        self._telling = threading.Lock()
        self._closed = False
        try:
            if not follow:
                self._lease.acquire()
        except StoreError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def confirm(self) -> None:
        if self._gone is None:
            try:
                self._log.confirm()
            except JournalGoneError as error:
                self._is_gone(error)
            except StoreError as error:
                raise self._unusable(error) from error
        if self._gone is not None:
            raise self._gone

    def when_gone(self, gone: Callable[[JournalGoneError], None]) -> None:
        with self._telling:
            self._tell = gone
            if self._gone is not None:
                gone(self._gone)

    def interrupt(self) -> None:
        self._log.interrupt()

    # ---------------------------------------------------------------- standing by

    def follow(self) -> tuple[Any, Following]:
        try:
            for taken in self._snapshots.all():
                try:
                    state = self._snapshots.read(taken)
                except SnapshotDamagedError:
                    continue
                return state, self._following(Chain(taken.position, taken.number))
        except StoreError as error:
            raise self._unusable(error) from error
        return None, self._following(Chain(0, 0))

    def _following(self, chain: Chain) -> Following:
        return ObjectsFollowing(self._log, self._set_aside, chain, self._look_s, self._clock)

    def try_to_own(self) -> bool:
        try:
            return self._lease.try_to_acquire(waits=True)
        except StoreError as error:
            raise self._unusable(error) from error

    def standby(self) -> str:
        try:
            return self._lease.standby()
        except StoreError as error:
            raise self._unusable(error) from error

    def hand_over(self) -> None:
        self._release(self._lease.hand_over)

    # ---------------------------------------------------------------- reading

    def recover(self, accept_loss: bool = False, followed: Place | None = None) -> Recovery:
        try:
            return self._recover(accept_loss, followed)
        except StoreError as error:
            raise self._unusable(error) from error

    def _recover(self, accept_loss: bool, followed: Place | None) -> Recovery:
        if not (claim := self._lease.claim):
            raise JournalLockedError(f"another tracker has {self._where}, or nobody has claimed it yet")
        aside = time.strftime("damaged/%Y%m%dT%H%M%S", time.gmtime())
        damage: list[Damage] = []
        spoilt: list[Taken] = []
        if followed is None:
            state, start, survey, kept = self._newest_state(claim, aside, damage, spoilt)
        else:
            state, start = None, Place(followed.entry, followed.number)
            try:
                survey, kept = self._survey(int(start.entry), start.number, claim)
            except CutError as error:
                raise LostTrackError(f"what was read of {self._where} was given up: {error}; start again") from error
            if survey.problem is not None and any(each.position > int(start.entry) for each in self._snapshots.all()):
                raise LostTrackError(f"what follows in {self._where} was removed, since a newer snapshot covers it")
        noted = self._log.noted_loss()
        damage += self._damage_of_the_log(survey, noted)
        if not accept_loss and any(each.lost != 0 for each in damage):
            raise self._loss(damage)
        for taken in spoilt:
            self._snapshots.set_aside(taken, aside)
        self._log.begin(claim, survey.group, survey.number, accepts_loss=survey.problem is not None or noted > 0)
        self._marks.read(survey.term)
        self._lease.watch(self._is_gone)
        self._lease.clear()
        self._log.trim(self._snapshots.oldest_needed())
        return Recovery(
            state,
            start.number,
            self._records(survey.positions, kept),
            tuple(damage),
            self._marks.replayed,
            self._marks.starts,
            self._marks.carried,
            self._set_aside.all(),
        )

    def _newest_state(
        self, claim: int, aside: str, damage: list[Damage], spoilt: list[Taken]
    ) -> tuple[Any, Place, Survey, dict[int, Entry]]:
        """Return the newest state that can be used, its place, and what follows; note the damage of newer ones."""
        for taken in self._snapshots.all():
            try:
                survey, kept = self._survey(taken.position, taken.number, claim)
                state = self._snapshots.read(taken)
                return state, Place(str(taken.position), taken.number), survey, kept
            except (SnapshotDamagedError, CutError) as error:
                problem = f"the snapshot cannot be used: {error}"
                damage.append(Damage(taken.folder, problem, taken.number, 0, f"{aside}/{taken.folder}"))
                spoilt.append(taken)
        survey, kept = self._survey(0, 0, claim)
        return None, Place("0", 0), survey, kept

    def _survey(self, position: int, number: int, claim: int) -> tuple[Survey, dict[int, Entry]]:
        """Read the log from a group up to this tracker's claim; return also what need not be read again."""
        survey = Survey(position, number)
        kept: dict[int, Entry] = {}
        room = _KEPT
        for each, found in self._log.between(position, claim):
            survey.add(each, found)
            if isinstance(found, Entry) and len(found.data) <= room:
                kept[each] = found
                room -= len(found.data)
        return survey, kept

    def _damage_of_the_log(self, survey: Survey, noted: int) -> list[Damage]:
        missing = max(survey.highest, noted) - survey.number
        if survey.problem is None and not noted:
            return []
        problem = survey.problem or "a tracker has found that the store had lost records"
        lost = missing if missing > 0 else None
        kept = f"log/, from entry {survey.broken_at} on" if survey.problem is not None else ""
        return [Damage(self._where, problem, survey.number + 1, lost, kept)]

    def _records(self, positions: Sequence[int], kept: dict[int, Entry]) -> Iterator[Record]:
        for position in positions:
            try:
                found = kept.pop(position, None) or self._log.read(position)
            except StoreError as error:
                raise self._unusable(error) from error
            if not isinstance(found, Entry):
                raise JournalError(f"entry {position} of {self._where} could be read a moment ago and now cannot")
            yield from unpack(found.data)

    def _loss(self, damage: list[Damage]) -> JournalLossError:
        found = "; ".join(f"{each.file}: {each.problem}" for each in damage)
        lost = damage[-1].lost
        what = "acknowledged records may be lost" if lost is None else f"{lost} acknowledged records are lost"
        return JournalLossError(
            f"{what} ({found}). No record was changed. Bring the missing objects back, or start once with "
            "--accept-loss to continue without the lost records"
        )

    # ---------------------------------------------------------------- what is left out

    def replaying(self, number: int) -> None:
        marks = self._marks
        starts = marks.starts + 1 if number and number == marks.replayed else 1
        # The records without an answer stay noted until the state is restored.
        marks.note(number, starts if number else 0, sorted(marks.carried) if number else ())

    def carrying(self, numbers: Sequence[int]) -> None:
        self._marks.note(0, 0, numbers)

    def set_aside(self, number: int, record: Record, why: str) -> None:
        try:
            self._set_aside.add(number, record, why)
        except StoreError as error:
            raise self._unusable(error) from error

    # ---------------------------------------------------------------- writing

    def append(self, records: Sequence[Record]) -> int:
        if self._closed:
            raise JournalError(f"the journal {self._where} is closed")
        if self._gone is not None:
            raise self._gone
        begins = self._log.is_unwritten
        try:
            number = self._log.append(records)
        except JournalGoneError as error:
            self._is_gone(error)
            raise
        if begins:
            self._marks.begin(self._log.term)
        return number

    def snapshot(self, number: int, state: Any) -> int:
        try:
            position = self._log.position_of(number)
            size, not_needed = self._snapshots.write(position, number, state, self._log.look)
            self._log.trim(not_needed)
        except JournalGoneError as error:
            self._is_gone(error)
            raise
        except StoreError as error:
            raise self._unusable(error) from error
        return size

    def close(self) -> None:
        self._release(self._lease.close)

    def _release(self, lease: Callable[[], None]) -> None:
        if self._closed:
            return
        self._closed = True
        lease()
        self._marks.close()
        self._log.close()

    def _is_gone(self, error: JournalGoneError) -> None:
        self.interrupt()
        with self._telling:
            if self._gone is None:
                self._gone = error
                if self._tell is not None:
                    self._tell(error)

    def _unusable(self, error: StoreError) -> JournalError:
        return unusable(self._where, error)
