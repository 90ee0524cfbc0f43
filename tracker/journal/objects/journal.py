"""The journal in an object store: a log of objects that are created once, snapshots beside it, and signs of life.

    log/POSITION            an entry: a claim, or a group of records
    claims/POSITION         marks the positions that are never removed
    beats/POSITION          the sign of life of the tracker with the claim at that position
    standbys/…              the signs of life of those that wait
    snapshots/…             the two newest snapshots
    set-aside/NUMBER        records that every recovery leaves out
    lost                    the last record that was acknowledged and is lost, as long as nobody has accepted that
    damaged/TIME/…          snapshots that could not be read
    replaced/TIME/…         the journal that was here before a backup was restored; it can be opened there
    restoring               there from before a journal is moved there until the backup is in its place

See `log` for why nothing is lost or written twice, and docs/howto/journals.md for what an operator has to know.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from tracker.store import ConditionalStore, NoAnswerError, RefusedError, StoreError, missing_package
from tracker.store.address import StoreAddress
from tracker.store.directory import DirectoryStore, sync

from ..interface import (
    Damage,
    Following,
    JournalError,
    JournalLockedError,
    JournalLossError,
    LeftOut,
    LostTrackError,
    Place,
    Record,
    Recovery,
    unpack,
)
from ..mark import Marks
from ..replicated import Group, LogFollowing, ReplicatedJournal, left_out, new_holder
from ..snapshots import SnapshotDamagedError
from .lease import Lease
from .log import LOSS, BrokenError, Chain, CutError, Entry, Followed, Log, Survey, name_of, position_of
from .snapshots import ObjectsSnapshots, Taken

_AT_ONCE: Final = 8  # writers of the trial
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class ObjectsAddress:
    """Address of a journal.

    Args:
        lease: seconds without a sign of life after which another tracker may take over.
        marks: a directory of this machine, where the process notes which commands it carries out; empty: see
            `tracker.journal.mark.Marks`.

    Raises:
        ValueError: a value is out of its range.

    >>> address = ObjectsAddress.parse("s3://state/trackers/billing?region=eu-central-1&lease=5")
    >>> address.store.bucket, address.lease
    ('state', 5.0)
    """

    store: StoreAddress
    lease: float = 10.0
    marks: str = ""

    def __post_init__(self) -> None:
        if not 0.5 <= self.lease <= 3600:
            raise ValueError(f"lease={self.lease} is out of range; use 0.5 to 3600 seconds")

    @classmethod
    def parse(cls, text: str) -> ObjectsAddress:
        """Read an address such as ``s3://BUCKET/PREFIX?lease=5``; see `StoreAddress.parse`.

        Raises:
            ValueError: it has another form; the message has what to write.
        """
        store, own = StoreAddress.parse(text, "a journal", fields(cls)[1:])
        return cls(store, **own)

    def __str__(self) -> str:
        return str(self.store)

    def open(self) -> ConditionalStore:
        """Return the store.

        Raises:
            JournalError: its settings cannot be used, or the package `obstore` is missing.
        """
        try:
            if self.store.scheme != "file":
                # Loaded when used: the package `obstore` takes a while.
                from tracker.store.objects import ObjectStore

                return ObjectStore.of(self.store)
            root = Path(self.store.prefix)
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(root.parent)
            return DirectoryStore(root)
        except ModuleNotFoundError as missing:
            raise JournalError(f"a journal in {self} cannot be used: {missing_package(missing)}") from missing
        except (RefusedError, OSError) as error:
            raise JournalError(f"{self} cannot be used: {error}") from error


def unusable(where: str, error: StoreError) -> JournalError:
    """Return the error that a store cannot be used."""
    if isinstance(error, RefusedError):
        return JournalError(
            f"{where} does not let this tracker in, or is not there: {error}; check the bucket, and the "
            "credentials (in the environment, or ?credentials-file=FILE) with what they allow"
        )
    return JournalError(f"{where} cannot be reached: {error}; check that it runs, its address, and its region")


def try_conditions(objects: ConditionalStore, where: str) -> None:
    """Try whether a store creates an object for one of several writers only, at once and one after the other.

    Args:
        where: its address, for messages.

    Raises:
        JournalError: two writers have created the same object, or one over another's.
        NoAnswerError, RefusedError: the store cannot be used.
    """
    for attempt in range(_ATTEMPTS):
        answers, problem = _race(objects, f"trial/{secrets.token_hex(8)}")
        if sum(answers) > 1:
            raise JournalError(
                f"{where} has created one object {sum(answers)} times: it does not keep the condition of a write "
                "(If-None-Match), so two trackers could write one log; use a store that does"
            )
        if len(answers) > 1:
            return
        if attempt < _ATTEMPTS - 1:
            time.sleep(_PAUSE_S * 2**attempt)
    raise problem or NoAnswerError("there was no answer")


def _race(objects: ConditionalStore, name: str) -> tuple[list[bool], NoAnswerError | None]:
    """Create one object several times; return the answers, and why there were not more of them."""
    problems: list[NoAnswerError] = []

    def create(place: int) -> list[bool]:
        try:
            return [objects.create(name, b"%d" % place)]
        except NoAnswerError as error:
            problems.append(error)
            return []

    with ThreadPoolExecutor(_AT_ONCE) as writers:
        answers = [answer for some in writers.map(create, range(_AT_ONCE)) for answer in some]
    answers += create(_AT_ONCE)
    with suppress(NoAnswerError):
        objects.delete([name])
    return answers, problems[0] if problems else None


_RESTORING: Final = "restoring"
_IDLE_LOOKS: Final = 10  # looks at a log that does not grow, after which newer entries are looked for
_KEPT: Final = 64 << 20  # bytes of the log that are not read a second time


class ObjectsFollowing(LogFollowing):
    """Reader of the records after a place, as they come.

    Args:
        check: raises `JournalLossError` if what was read is lost, and has written that down.
        look_s: seconds between two looks at a log that has not grown.
        clock: a monotonic one, in seconds.
    """

    failures = StoreError

    def __init__(
        self,
        log: Log,
        look_left_out: Callable[[], frozenset[LeftOut]],
        check: Callable[[], None],
        chain: Chain,
        look_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(Place(str(chain.group), chain.number), look_left_out)
        self._log = log
        log.followed = max(log.followed, Followed(chain.group, chain.number))  # a snapshot has only what counts
        self._check = check
        self._chain = chain
        self._position = chain.group
        self._look_s = look_s
        self._clock = clock
        self._looked = -look_s
        self._idle = 0

    def records(self) -> Iterator[tuple[int, Record]]:
        if self._clock() - self._looked < self._look_s:
            return
        try:
            yield from super().records()
        except (BrokenError, CutError) as error:
            raise LostTrackError(str(error)) from error
        finally:
            self._looked = self._clock()

    def _read(self) -> Iterator[Group]:
        before = self._position
        try:
            yield from self._read_on()
        except BrokenError:
            if not self._skip():
                raise
        if self._position > before:
            self._idle = 0
            return
        self._check()
        self._idle += 1
        if self._idle >= _IDLE_LOOKS:
            self._idle = 0
            # The next entry may be lost, or have been removed while this machine slept.
            missing = self._log.is_past(self._position + 1) and self._log.read(self._position + 1) is None
            if missing and not self._skip():
                raise LostTrackError(f"entry {self._position + 1} is missing, and there are newer ones")

    def _read_on(self) -> Iterator[Group]:
        for position, found in self._log.following(self._position):
            counts = self._chain.add(position, found)
            self._position = position
            if not counts:
                self._left_out = None
            elif isinstance(found, Entry):
                self._log.followed = max(self._log.followed, Followed(position, found.last, found.writer))
                yield Group(str(position), found.first, found.data)

    def _skip(self) -> bool:
        """Go on behind entries that were given up when a loss was accepted; return whether there are any."""
        for position, found in self._log.between(self._position, self._log.newest_position()):
            if isinstance(found, Entry) and found.cut and found.after == self._chain.group:
                self._position, self._chain.term = position - 1, found.term
                return True
        return False


class ObjectsJournal(ReplicatedJournal):
    """A journal in an object store.

    Args:
        where: its address, for messages.
        lease: seconds without a sign of life after which a tracker may be replaced.
        marks: a directory of this machine for notes about commands under way.
        follow: only read at first, as `follow` does it, and own the journal once `try_to_own` has succeeded.
        clock: a monotonic one, in seconds.
        restoring: whether a backup is being put into it.

    Raises:
        JournalLockedError: another tracker uses it, and `follow` is False.
        JournalError: the store cannot be used.
    """

    name = "objects"
    failures = StoreError
    remedy = "the missing objects back"
    _log: Log
    _lease: Lease

    def __init__(
        self,
        objects: ConditionalStore,
        where: str,
        lease: float,
        marks: str,
        follow: bool = False,
        clock: Callable[[], float] = time.monotonic,
        restoring: bool = False,
    ) -> None:
        self._objects = objects
        self._look_s = lease / 10
        self._clock = clock
        holder = new_holder()
        log = Log(objects, where, secrets.token_hex(8), holder)
        self._snapshots = ObjectsSnapshots(objects, where)
        log.covered = self._snapshots.newest_position
        leased = Lease(objects, log, self._snapshots, where, holder, lease, clock)
        super().__init__(where, log, leased, Marks(marks, where), (log,), restoring)
        with self._opening():
            if not follow:
                self._lease.acquire()

    def _confirm(self) -> None:
        self._log.confirm()

    def follow(self) -> tuple[Any, Following]:
        state, chain = None, Chain(0, 0)
        with self._asking():
            for taken in self._snapshots.all():
                with suppress(SnapshotDamagedError):
                    state, chain = self._snapshots.read(taken), Chain(taken.position, taken.number)
                    break
        return state, ObjectsFollowing(
            self._log, self._left_out, self._check_followed, chain, self._look_s, self._clock
        )

    def _check_followed(self) -> None:
        """Find out whether the store has lost what was read of it, and write that down.

        Raises:
            JournalLossError: the store has lost records that were read.
        """
        if self._log.has_lost_followed(self._is_covered):
            raise JournalLossError(
                f"{self._where} has lost records up to {self._log.followed.number}, which this standby had read; that "
                f"is written down. Bring {self.remedy}, or start once with --accept-loss to continue without the lost "
                "records"
            )

    def _is_covered(self) -> bool:
        """Return whether the newest group that was read may be gone: a snapshot has it, or a backup takes its place."""
        return self._awaits_backup() or self._snapshots.newest_position() >= self._log.followed.position

    # ---------------------------------------------------------------- reading

    def _recover(self, accept_loss: bool, followed: Place | None) -> Recovery:
        if not (claim := self._lease.claim):
            raise JournalLockedError(f"another tracker has {self._where}, or nobody has claimed it yet")
        if self._awaits_backup():
            # Any rest of the log is given up with the first group.
            self._log.begin(claim, 0, 0, accepts_loss=True)
            return self._recovered(None, 0, iter(()), ())
        self._check_followed()
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
        kept_at = f"log/, from entry {survey.broken_at} on" if survey.problem is not None else ""
        damage += self._damage_of_the_log(survey.problem, survey.number, survey.highest, noted, kept_at)
        if survey.problem is not None:
            self._log.check_claim(claim, survey.highest)
        self._check_loss(damage, accept_loss)
        for taken in spoilt:
            self._snapshots.set_aside(taken, aside)
        self._log.begin(claim, survey.group, survey.number, accepts_loss=survey.problem is not None or noted > 0)
        self._marks.read(survey.writer)
        self._lease.watch(self._is_gone)
        self._lease.clear()
        self._log.trim(self._snapshots.oldest_needed())
        records = self._records(survey.positions, kept)
        return self._recovered(state, start.number, records, damage)

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

    def _records(self, positions: Sequence[int], kept: dict[int, Entry]) -> Iterator[Record]:
        for position in positions:
            with self._asking():
                found = kept.pop(position, None) or self._log.read(position)
                if not isinstance(found, Entry):
                    self._log.look()
            if not isinstance(found, Entry):
                raise JournalError(f"entry {position} of {self._where} could be read a moment ago and now cannot")
            yield from unpack(found.data)

    def _left_out(self) -> frozenset[LeftOut]:
        names = ((name.rpartition("/")[2], name) for name in self._objects.names("set-aside"))
        contents = ((number, self._objects.get(name)) for number, name in names if number.isdecimal())
        return left_out((int(number), content) for number, content in contents if content is not None)

    # ---------------------------------------------------------------- making way for a backup

    def _awaits_backup(self) -> bool:
        return self._objects.get(_RESTORING) is not None

    def move_aside(self) -> str:
        """Copy all, and then remove all but the claims.

        A tracker that sleeps so finds this one's claim in the place of its next entry. The claims are copied, too: they
        are positions of the log that was here.
        """
        self.begin_restore()
        aside = time.strftime("replaced/%Y%m%dT%H%M%S", time.gmtime())
        found = False
        with self._asking():
            names = [name for folder in ("log", "snapshots", "set-aside") for name in self._objects.names(folder)]
            claims = [*self._objects.names("claims")]
            kept = {name_of(position_of(name)) for name in claims}
            moved = [name for name in [*names, LOSS] if name not in kept]
            for name in [*names, *claims, LOSS]:
                if (content := self._objects.get(name)) is not None:
                    self._objects.put(f"{aside}/{name}", content)
                    found = found or name in moved
            self._objects.delete(moved)
        return f"{aside} in {self._where}" if found else ""

    def begin_restore(self) -> None:
        with self._asking():
            self._objects.put(_RESTORING, b"a backup is to come")

    def end_restore(self) -> None:
        with self._asking():
            self._objects.delete([_RESTORING])

    # ---------------------------------------------------------------- writing

    def _keep_aside(self, number: int, text: str) -> None:
        self._objects.put(f"set-aside/{number}", text.encode())

    def _snapshot(self, number: int, state: Any) -> int:
        position = self._log.position_of(number)
        size, not_needed = self._snapshots.write(position, number, state, self._log.look)
        self._log.trim(not_needed)
        return size

    def _unusable(self, error: StoreError) -> JournalError:
        return unusable(self._where, error)
