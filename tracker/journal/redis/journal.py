"""The journal in Redis or Valkey: a replicated log, snapshots beside it, and a lease on both.

See `scripts` for the keys and the atomic steps, and docs/howto/journals.md for what each level of durability may lose.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import redis

from ..comparing import Known, Relation
from ..groups import unpack
from ..heldback import Group, HeldBack
from ..interface import (
    Damage,
    Following,
    JournalError,
    JournalGoneError,
    JournalLossError,
    LeftOut,
    LostTrackError,
    Place,
    Record,
    Recovery,
    RestoreUnfinishedError,
)
from ..snapshots import SnapshotDamagedError
from .address import RedisAddress
from .confirming import Confirming
from .connecting import LOST
from .keys import Keys
from .lease import Lease
from .log import Log, Reading, lost, lost_while_followed
from .marks import Marked, Marks
from .snapshots import RedisSnapshots
from .top import NOTHING, Top


def left_out(client: Any, key: str) -> frozenset[LeftOut]:
    """Return the records that are left out, as the hash `key` names them."""
    kept = ((int(number), json.loads(text)) for number, text in client.hgetall(key).items())
    return frozenset(LeftOut(number, values["method"], values["at"]) for number, values in kept)


class RedisFollowing:
    """Reads the records after a place, as they come.

    Args:
        log: the log.
        keys: the journal's.
        place: where to begin.
    """

    def __init__(self, log: Log, keys: Keys, place: Place) -> None:
        self._log = log
        self._keys = keys
        self._held_back = HeldBack(place)
        self._reading: Reading = log.read(place.entry, place.number)
        self._claims = -1
        self._left_out: frozenset[LeftOut] = frozenset()
        self._newest = self._known(place.entry, place.number)
        self._log.known = max(self._log.known, self._newest)  # a snapshot has only what is acknowledged

    @property
    def place(self) -> Place:
        """What was returned so far."""
        return self._held_back.place

    def records(self) -> Iterator[tuple[int, Record]]:
        """Return the records that may be replayed now; see `tracker.journal.Following`."""
        try:
            known = self._log.known
            relation, _, first = self._log.look(self._log.client, known)
            if relation is Relation.LOST:
                raise lost_while_followed(self._keys, known.number, first)
            for group in self._reading:
                if self._reading.claims != self._claims:  # a tracker has started, and may have left records out
                    self._claims = self._reading.claims
                    self._left_out = left_out(self._log.client, self._keys.set_aside)
                self._note(group)
                yield from self._held_back.add(group, self._left_out)
        except redis.RedisError as error:
            raise JournalError(f"the log cannot be read: {error}") from error
        if self._reading.problem is not None:
            raise LostTrackError(self._reading.problem)

    def _note(self, group: Group) -> None:
        """Note what is known to be acknowledged now that a group was read.

        A leader that waits for replicas may still wait for the newest group, and a promoted one need not have it. The
        group before is acknowledged. Without replicas a server shows a record when it keeps it.
        """
        before, self._newest = self._newest, self._known(group.entry, self._reading.number)
        acknowledged = before if self._keys.address.replicas else self._newest
        self._log.known = max(self._log.known, acknowledged)

    def _known(self, entry: str, number: int) -> Known:
        term = int(entry.partition("-")[0])
        owner = self._reading.owner if self._reading.owner_of == term else ""
        return Known(term, number, owner)


class RedisJournal:
    """A journal on a server of Redis (6.2 or newer) or Valkey.

    Args:
        address: of the server, with the wanted durability.
        restoring: whether a backup is being put into it.
        follow: only read at first, as `follow` does it, and own the journal once `try_to_own` has succeeded.

    Raises:
        JournalLockedError: another tracker uses it, and `follow` is False.
        JournalError: the server cannot be reached, or does not give the wanted durability.
    """

    name = "redis"
    instant = False
    exclusive = False

    def __init__(self, address: RedisAddress, follow: bool = False, restoring: bool = False) -> None:
        self._restoring = restoring
        self._accepts_loss = False
        self._keys = Keys(address)
        self._log = Log(self._keys)
        self._snapshots = RedisSnapshots(self._keys)
        self._marks = Marks(self._keys)
        self._lease = Lease(self._keys)
        self._confirming = Confirming(self._keys)
        self._gone: JournalGoneError | None = None
        self._tell: Callable[[JournalGoneError], None] | None = None
        self._telling = threading.Lock()
        self._closed = False
        try:
            self._log.check()
            if not follow:
                self._lease.acquire()
        except redis.RedisError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def confirm(self) -> None:
        if self._gone is None:
            acknowledged = self._log.last
            try:
                top = self._confirming.top()
            except redis.RedisError as error:
                raise self._unusable(error) from error
            self._look(acknowledged, top)
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
            state, number, entry, _ = self._newest_snapshot("")
        except redis.RedisError as error:
            raise self._unusable(error) from error
        return state, RedisFollowing(self._log, self._keys, Place(entry, number))

    def try_to_own(self) -> bool:
        try:
            return self._lease.try_to_acquire(announce=True)
        except redis.RedisError as error:
            raise self._unusable(error) from error

    # ---------------------------------------------------------------- reading

    def recover(self, accept_loss: bool = False, followed: Place | None = None) -> Recovery:
        try:
            return self._recover(accept_loss, followed)
        except redis.RedisError as error:
            raise self._unusable(error) from error

    def _recover(self, accept_loss: bool, followed: Place | None) -> Recovery:
        if not self._restoring and self._log.client.hget(self._keys.top, "restoring") is not None:
            raise RestoreUnfinishedError(self._keys.address)
        aside = self._keys.damaged(time.strftime("%Y%m%dT%H%M%S", time.gmtime()))
        if followed is None:
            state, number, entry, damage = self._newest_snapshot(aside)
        else:
            state, number, entry, damage = None, followed.number, followed.entry, []
        self._accepts_loss = accept_loss
        # The term begins first: from then on nothing is written behind what is read here.
        top = self._log.claim(self._lease.holder, accept_loss)
        reading = self._log.read(entry, number)
        for _ in reading:
            pass
        if followed is not None and reading.problem is not None and self._newest_snapshot(aside)[1] > number:
            raise LostTrackError(f"what follows in {self._keys.address} was removed, since a newer snapshot covers it")
        found_wrong = [*damage, *self._damage_of_the_log(reading, top, aside)]
        if not accept_loss and any(each.lost != 0 for each in found_wrong):
            raise self._loss(found_wrong)
        if reading.problem is not None or reading.number < top.last:
            self._log.cut(reading.entry, f"{aside}:log")
            self._log.claim(self._lease.holder, accept_loss, reading.number)
        self._marks.read()
        for each in damage:
            self._snapshots.set_aside(each.file.rpartition(" ")[2], each.set_aside)
        self._marks.begin(self._log.term)
        self._lease.watch(lambda: self._log.last, self._look, self._log.term)
        self._snapshots.clear()
        found = self._marks.found
        return Recovery(
            state,
            number,
            self._records(self._log.read(entry, number), reading.number),
            tuple(found_wrong),
            found.replayed,
            found.starts,
            frozenset(found.carried),
            left_out(self._log.client, self._keys.set_aside),
        )

    def _damage_of_the_log(self, reading: Reading, top: Top, aside: str) -> list[Damage]:
        problem = reading.problem
        if problem is None and reading.number < top.last:
            problem = "its end is missing"
        missing = max(top.last, top.lost) - reading.number
        if problem is None and missing <= 0 and not top.lost:
            return []
        kept = f"{aside}:log" if reading.problem is not None else ""
        reason = problem or "the server has lost the end of the log, which was noted"
        lost = missing if missing > 0 else None
        return [Damage(str(self._keys.address), reason, reading.number + 1, lost, kept)]

    def _newest_snapshot(self, aside: str) -> tuple[Any, int, str, list[Damage]]:
        """Return the newest readable snapshot, its record and entry, and the damage of newer ones."""
        damage: list[Damage] = []
        for entry in self._snapshots.entries():
            try:
                number, state = self._snapshots.read(entry)
            except SnapshotDamagedError as error:
                record = int(entry.partition("-")[2])
                problem = f"the snapshot cannot be used: {error}"
                damage.append(Damage(f"snapshot {entry}", problem, record, 0, f"{aside}:{entry}"))
            else:
                return state, number, entry, damage
        return None, 0, NOTHING, damage

    def _records(self, reading: Reading, last: int) -> Iterator[Record]:
        """Return the records up to record `last`, in order."""
        if reading.number < last:
            try:
                for group in reading:
                    yield from unpack(group.data)
                    if reading.number == last:
                        return
            except redis.RedisError as error:
                raise self._unusable(error) from error
            raise JournalError(f"{self._keys.address} could be read a moment ago and now cannot: {reading.problem}")

    def _loss(self, damage: list[Damage]) -> JournalLossError:
        found = "; ".join(f"{each.file}: {each.problem}" for each in damage)
        lost = damage[-1].lost
        what = "acknowledged records may be lost" if lost is None else f"{lost} acknowledged records are lost"
        return JournalLossError(
            f"{what} ({found}). No record was changed. Bring back a server that has them, or start once with "
            "--accept-loss to continue without the lost records"
        )

    # ---------------------------------------------------------------- what is left out

    def replaying(self, number: int) -> None:
        found = self._marks.found
        starts = found.starts + 1 if number and number == found.replayed else 1
        # The records without an answer stay noted until the state is restored.
        self._marks.note(Marked(number, starts if number else 0, found.carried if number else ()))

    def carrying(self, numbers: Sequence[int]) -> None:
        self._marks.note(Marked(carried=tuple(numbers)))

    def set_aside(self, number: int, record: Record, why: str) -> None:
        text = {
            "method": record.method,
            "at": record.at,
            "why": why,
            "payload": base64.b64encode(record.payload).decode(),
        }
        try:
            self._log.client.hset(self._keys.set_aside, str(number), json.dumps(text))
        except redis.RedisError as error:
            raise self._unusable(error) from error

    # ---------------------------------------------------------------- writing

    def append(self, records: Sequence[Record]) -> int:
        if self._closed:
            raise JournalError(f"the journal {self._keys.address} is closed")
        if self._gone is not None:
            raise self._gone
        try:
            return self._log.append(records)
        except JournalGoneError as error:
            self._is_gone(error)
            raise

    def snapshot(self, number: int, state: Any) -> int:
        try:
            return self._snapshots.write(self._log.term, number, state)
        except JournalGoneError as error:
            self._is_gone(error)
            raise

    def standby(self) -> str:
        try:
            return self._lease.standby()
        except redis.RedisError as error:
            raise self._unusable(error) from error

    def hand_over(self) -> None:
        with suppress(redis.RedisError):  # then the lease runs out, and the standby gets it a little later
            self._lease.hand_over()
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lease.close()
        self._confirming.close()
        self._marks.close()
        self._snapshots.close()
        self._log.close()

    def _look(self, acknowledged: int, top: Top) -> None:
        """Find out what the end of the log tells: an idle tracker must notice, too, that it has lost the log."""
        try:
            # An accepted loss stays noted until the first entry after the claim, however long the recovery takes.
            if top.lost and not (self._accepts_loss and top.entry == f"{self._log.term}-0"):
                raise lost(self._keys, top.lost)
            if top.term != self._log.term or top.last < acknowledged or not top.has_log or self._log.is_others(top):
                self._log.moved()
        except JournalGoneError as error:
            self._is_gone(error)

    def _is_gone(self, error: JournalGoneError) -> None:
        self.interrupt()
        with self._telling:
            if self._gone is None:
                self._gone = error
                if self._tell is not None:
                    self._tell(error)

    def _unusable(self, error: redis.RedisError) -> JournalError:
        where = self._keys.address
        if isinstance(error, redis.AuthenticationError) or str(error).startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
            return JournalError(
                f"{where} does not let this tracker in: {error}; set its user (?user=NAME) and password "
                "($TRACKER_JOURNAL_PASSWORD or ?password-file=FILE), and allow keys, scripts and INFO"
            )
        if isinstance(error, LOST):
            return JournalError(f"{where} cannot be reached: {error}; check that it runs, and its address")
        if str(error).startswith("WRONGTYPE"):
            return JournalError(f"keys of {where} belong to something else; give another ?prefix=…")
        return JournalError(f"{where} cannot be used: {error}")
