"""The journal in Redis or Valkey: a replicated log, snapshots beside it, and a lease on both.

See `scripts` for the keys and the atomic steps, and docs/howto/journals.md for what each level of durability may lose.

`Confirmation` checks who owns the log, and whether the server is the master, of which replicas still copy. A master
that was replaced while it was cut off believes in its old log. If records wait for replicas, so does an answer about
the owner: a small write must have come to them. A promoted replica copies nothing of its old master any more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Final

import redis

from .. import replicated
from ..interface import (
    Damage,
    Following,
    JournalError,
    JournalFullError,
    JournalGoneError,
    LeftOut,
    LostTrackError,
    Place,
    Record,
    Recovery,
    unpack,
)
from ..mark import Marks
from ..replicated import BEATS, Group, LogFollowing, ReplicatedJournal, describe, is_dead, left_out, new_holder
from ..snapshots import KEEP, SnapshotDamagedError, described, read_pieces, write_pieces
from . import scripts
from .address import LOST, RedisAddress, connect, is_full
from .log import NOTHING, Known, Log, Reading, Relation, Top, lost, lost_while_followed
from .scripts import Keys


class RedisSnapshots:
    """The snapshots: each in pieces, with a description that makes them count, and that trims the log."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._client = connect(keys.address)

    def entries(self) -> list[str]:
        """Return the entries after which a snapshot was taken, newest first."""
        names = self._client.hkeys(self._keys.snapshots)
        return sorted((name.decode() for name in names), key=_order, reverse=True)

    def read(self, entry: str) -> tuple[int, Any]:
        """Return the record after which a snapshot was taken, and its state.

        Raises:
            SnapshotDamagedError: it is not what was written.
        """
        text = self._client.hget(self._keys.snapshots, entry)
        if text is None:
            raise SnapshotDamagedError("newer ones have replaced it")
        state = read_pieces(text, lambda place: self._client.get(self._keys.piece(entry, place)))
        return _order(entry)[1], state

    def write(self, term: int, number: int, state: Any) -> int:
        """Keep a state, remove older ones except one, trim the log, and return the state's size in bytes.

        Args:
            number: the record after which it was taken.
            state: of plain values, which `tracker.journal.snapshots.encode` can write.

        Raises:
            JournalGoneError: another tracker has taken over.
            JournalError: it could not be kept.
        """
        entry = f"{term}-{number}"
        try:
            self._client.sadd(self._keys.unfinished, entry)
            written = write_pieces(state, lambda place, piece: self._client.set(self._keys.piece(entry, place), piece))
            text = json.dumps({"number": number, **written})
            keys = [self._keys.log, self._keys.top, self._keys.snapshots]
            dropped = self._client.eval(scripts.KEEP, len(keys), *keys, term, entry, text, KEEP)
            self._client.srem(self._keys.unfinished, entry)
            self._remove(name.decode() for name in dropped)
        except redis.RedisError as error:
            raise self._failure(error) from error
        return written["bytes"]

    def clear(self) -> None:
        """Remove the pieces of snapshots that were never finished."""
        begun = self._client.smembers(self._keys.unfinished)
        self._remove({name.decode() for name in begun} - set(self.entries()))
        self._client.delete(self._keys.unfinished)

    def set_aside(self, entry: str, where: str) -> None:
        """Move a snapshot that cannot be used to a key, and its pieces to `where:0`, `where:1`, …"""
        text = self._client.hget(self._keys.snapshots, entry)
        self._client.set(where, text)
        pieces = 0
        with suppress(SnapshotDamagedError):
            pieces, _ = described(text)
        for place in count():
            try:
                self._client.rename(self._keys.piece(entry, place), f"{where}:{place}")
            except redis.ResponseError:  # it is missing
                if place >= pieces:
                    break
        self._client.hdel(self._keys.snapshots, entry)

    def close(self) -> None:
        self._client.close()

    def _remove(self, entries: Iterable[str]) -> None:
        for entry in entries:
            place = 0
            while self._client.unlink(self._keys.piece(entry, place)):
                place += 1

    def _failure(self, error: redis.RedisError) -> JournalError:
        where = self._keys.address
        if isinstance(error, LOST):
            return JournalError(f"{where} has not answered while a snapshot was written: {error}")
        if str(error).startswith("NOTLAST"):
            return JournalGoneError(f"another tracker has taken over {where}")
        if is_full(error):
            return JournalFullError(f"{where} has no room for a snapshot ({error}); free some and retry")
        return JournalError(f"{where} has refused a snapshot: {error}")


def _order(entry: str) -> tuple[int, int]:
    term, _, number = entry.partition("-")
    return int(term), int(number)


_NEW_S = 1.0  # at most, for which a newcomer leaves the lease to those who have followed the log: they look often


class Lease(replicated.Lease):
    """The lease: who may claim the log. It keeps others from claiming the log by mistake.

    The lease decides who begins a term, and the term decides who can write: a tracker that slept through the end of its
    lease writes nothing after another one's claim. So clocks need not agree, and the lease's length decides only how
    soon another tracker takes over.
    """

    failures = redis.RedisError
    another = "another journal or ?prefix=…"

    def __init__(self, keys: Keys) -> None:
        super().__init__(str(keys.address), new_holder(), keys.address.lease, lambda: time.monotonic())
        self._keys = keys
        self._client = connect(keys.address, answer_s=max(1.0, keys.address.lease / BEATS))
        self._ms = int(keys.address.lease * 1000)
        self._came = self._clock()
        self._announced = 0.0  # the monotonic time at which this process was noted as the standby
        self._look: tuple[Callable[[], int], Callable[[int, Top], None], int] | None = None

    def try_to_acquire(self, waits: bool = False) -> bool:
        dead = self._other if is_dead(self._other) else ""
        announce = waits and self._clock() - self._announced > self._seconds / BEATS
        # A log that came back older is met by who knows more first, who writes down what is lost.
        held = self._try(dead, announce, self._clock() - self._came < min(_NEW_S, self._seconds))
        self._other = held or ""
        if announce:
            self._announced = self._clock()
        if held is not None:
            return False
        self._begin(self._seconds / BEATS)
        return True

    def look_at(self, acknowledged: Callable[[], int], look: Callable[[int, Top], None], term: int) -> None:
        """Look at the end of the log with each beat from now on.

        Args:
            acknowledged: returns the newest record that this tracker has acknowledged.
            look: called, in a thread, with what `acknowledged` returned before a beat, and the end of the log at it.
                Raises `JournalGoneError` if that is no longer this tracker's.
        """
        self._look = acknowledged, look, term

    def beat(self) -> None:
        if self._look is None:
            self._try("")
            return
        acknowledged, look, term = self._look
        known = acknowledged()
        keys = [self._keys.lease, self._keys.top, self._keys.log]
        top = self._client.eval(scripts.RENEW, len(keys), *keys, self.holder, self._ms, term)
        look(known, Top.read(*top))

    def standby(self) -> str:
        client = connect(self._keys.address)  # the lease's own may be in use by the thread that keeps it
        try:
            holder: Any = client.get(self._keys.standby)
        finally:
            client.close()
        return describe(holder.decode()) if holder else ""

    def hand_over(self) -> None:
        self._let_go(to_standby=True)

    def close(self) -> None:
        self._let_go(to_standby=False)

    def _let_go(self, to_standby: bool) -> None:
        self._closed.set()
        if self._beating is not None:
            self._beating.join()
        keys = [self._keys.lease, self._keys.standby, self._keys.top]
        with suppress(redis.RedisError):
            self._client.eval(scripts.LET_GO, len(keys), *keys, self.holder, self._ms, int(to_standby))
        self._client.close()

    def _try(self, dead: str, announce: bool = False, new: bool = False) -> str | None:
        """Try to get the lease; return its holder if that is another one, or "" if one who follows may want it."""
        keys = [self._keys.lease, self._keys.standby, self._keys.top, self._keys.log]
        arguments = [self.holder, self._ms, dead, int(announce), int(new)]
        held = self._client.eval(scripts.ACQUIRE, len(keys), *keys, *arguments)
        return None if held is None else held.decode()


_ANSWER_S: Final = 1.0  # seconds for which the server is asked
_WAIT_MS: Final = 500  # for which it waits for its replicas
_KEPT_MS: Final = 60_000  # how long the write is kept


class Confirmation:
    """The question, on a connection of its own."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._replicas = keys.address.replicas
        self._client = connect(keys.address, answer_s=_ANSWER_S)

    def top(self) -> Top:
        """Return the end of the log, as a server has it that is the master now.

        Raises:
            JournalError: it is not, or cannot show it.
            redis.RedisError: it does not answer, or refuses.
        """
        with self._client.pipeline(transaction=False) as pipeline:
            if self._replicas:
                pipeline.set(self._keys.confirmed, "", px=_KEPT_MS)
                pipeline.execute_command("WAIT", self._replicas, _WAIT_MS)
            else:
                pipeline.execute_command("ROLE")
            pipeline.hmget(self._keys.top, ["id", "last", "lost", "who", "accepted"])
            pipeline.exists(self._keys.log)
            *evidence, top, has_log = pipeline.execute(raise_on_error=False)
        for answer in (top, has_log):
            if isinstance(answer, Exception):
                raise answer
        if self._replicas:
            self._check_replicas(*evidence)
        else:
            self._check_role(*evidence)
        entry, last, lost, owner, accepted = top
        return Top.read(entry, last, lost, owner, accepted, has_log)

    def close(self) -> None:
        self._client.close()

    def _check_replicas(self, written: Any, waited: Any) -> None:
        # A full server takes no write; its replicas have to be there all the same.
        if isinstance(written, redis.RedisError) and not is_full(written):
            raise written
        if isinstance(waited, Exception):
            raise waited
        if int(waited) < self._replicas:
            raise JournalError(
                f"{self._keys.address} has {waited} replicas that answer, and {self._replicas} are wanted: it may not "
                "be the master any more; bring them back, or the connection to the master"
            )

    def _check_role(self, role: Any) -> None:
        if isinstance(role, redis.exceptions.NoPermissionError):  # an access list from before this was asked
            return
        if isinstance(role, Exception):
            raise role
        name = role[0].decode() if isinstance(role[0], bytes) else str(role[0])
        if name != "master":
            raise JournalError(
                f"{self._keys.address} is a {name} and not the master any more; bring back the connection to the master"
            )


class RedisFollowing(LogFollowing):
    """Reader of the records after a place, as they come."""

    failures = redis.RedisError

    def __init__(self, log: Log, keys: Keys, place: Place, look_left_out: Callable[[], frozenset[LeftOut]]) -> None:
        super().__init__(place, look_left_out)
        self._log = log
        self._keys = keys
        self._reading: Reading = log.read(place.entry, place.number)
        self._claims = 0  # that were passed
        self._newest = self._known(place.entry, place.number)
        self._log.known = max(self._log.known, self._newest)  # a snapshot has only what is acknowledged

    def _read(self) -> Iterator[Group]:
        known = self._log.known
        relation, _, first = self._log.look(self._log.client, known)
        if relation is Relation.LOST:
            raise lost_while_followed(self._keys, known.number, first)
        for group in self._reading:
            if self._reading.claims != self._claims:
                self._claims, self._left_out = self._reading.claims, None
            self._note(group)
            yield group
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


class RedisJournal(ReplicatedJournal):
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
    failures = redis.RedisError
    remedy = "back a server that has them"
    _log: Log
    _lease: Lease

    def __init__(self, address: RedisAddress, follow: bool = False, restoring: bool = False) -> None:
        self._accepts_loss = False
        self._keys = Keys(address)
        self._snapshots = RedisSnapshots(self._keys)
        self._confirmation = Confirmation(self._keys)
        log, marks = Log(self._keys), Marks(address.marks, str(address))
        parts = (self._confirmation, self._snapshots, log)
        super().__init__(str(address), log, Lease(self._keys), marks, parts, restoring)
        with self._opening():
            self._log.check()
            if not follow:
                self._lease.acquire()

    def _confirm(self) -> None:
        acknowledged = self._log.last
        self._look(acknowledged, self._confirmation.top())

    def follow(self) -> tuple[Any, Following]:
        with self._asking():
            state, number, entry, _ = self._newest_snapshot("")
        return state, RedisFollowing(self._log, self._keys, Place(entry, number), self._left_out)

    # ---------------------------------------------------------------- reading

    def _recover(self, accept_loss: bool, followed: Place | None) -> Recovery:
        aside = self._keys.damaged(time.strftime("%Y%m%dT%H%M%S", time.gmtime()))
        self._accepts_loss = accept_loss
        # The term begins first: from then on nothing is written behind what is read here, and no snapshot is removed.
        top = self._log.claim(self._lease.holder, accept_loss)
        writer = top.writer
        if followed is None:
            state, number, entry, damage = self._newest_snapshot(aside)
        else:
            state, number, entry, damage = None, followed.number, followed.entry, []
        reading = self._log.read(entry, number)
        for _ in reading:
            pass
        if followed is not None and reading.problem is not None and self._newest_snapshot(aside)[1] > number:
            raise LostTrackError(f"what follows in {self._keys.address} was removed, since a newer snapshot covers it")
        problem = reading.problem or ("its end is missing" if reading.number < top.last else None)
        if problem is not None and self._log.term:
            self._log.moved()  # the server may have lost it only now: then nothing else shows that to the next start
        kept = f"{aside}:log" if reading.problem is not None else ""
        found_wrong = [*damage, *self._damage_of_the_log(problem, reading.number, top.last, top.lost, kept)]
        self._check_loss(found_wrong, accept_loss)
        if problem is not None:
            self._log.cut(reading.entry, f"{aside}:log")
            self._log.claim(self._lease.holder, accept_loss, reading.number)
        self._marks.read(writer)
        self._log.client.delete(self._keys.marks)  # of a version that noted in Redis which commands were under way
        for each in damage:
            self._snapshots.set_aside(each.file.rpartition(" ")[2], each.set_aside)
        self._lease.look_at(lambda: self._log.last, self._look, self._log.term)
        self._lease.watch(self._is_gone)
        self._snapshots.clear()
        records = self._records(self._log.read(entry, number), reading.number)
        return self._recovered(state, number, records, found_wrong)

    def _left_out(self) -> frozenset[LeftOut]:
        texts = self._log.client.hgetall(self._keys.set_aside)
        return left_out((int(number), text) for number, text in texts.items())

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
            with self._asking():
                for group in reading:
                    yield from unpack(group.data)
                    if reading.number == last:
                        return
                self._log.moved()
            problem = reading.problem or "its end is missing"
            raise JournalError(f"{self._keys.address} could be read a moment ago and now cannot: {problem}")

    # ---------------------------------------------------------------- making way for a backup

    def _awaits_backup(self) -> bool:
        return self._log.client.hget(self._keys.top, "restoring") is not None

    def move_aside(self) -> str:
        aside = self._keys.replaced(time.strftime("%Y%m%dT%H%M%S", time.gmtime()))
        with self._asking():
            names = [*self._names()]
            renamed = [f"{aside}:{name.removeprefix(f'{self._keys.base}:')}" for name in names]
            return aside if self._log.client.eval(scripts.RENAME, 2 * len(names), *names, *renamed) else ""

    def _names(self) -> Iterator[str]:
        keys, client = self._keys, self._log.client
        yield from (keys.top, keys.log, keys.snapshots, keys.unfinished, keys.set_aside)
        begun = {name.decode() for name in client.smembers(keys.unfinished)}
        for entry in {*self._snapshots.entries(), *begun}:
            place = 0
            while client.exists(keys.piece(entry, place)):
                yield keys.piece(entry, place)
                place += 1

    def begin_restore(self) -> None:
        with self._asking():
            self._log.client.hset(self._keys.top, "restoring", "1")

    def end_restore(self) -> None:
        with self._asking():
            self._log.client.hdel(self._keys.top, "restoring")

    # ---------------------------------------------------------------- writing

    def _keep_aside(self, number: int, text: str) -> None:
        self._log.client.hset(self._keys.set_aside, str(number), text)

    def _snapshot(self, number: int, state: Any) -> int:
        return self._snapshots.write(self._log.term, number, state)

    def _look(self, acknowledged: int, top: Top) -> None:
        """Look at the end of the log: an idle tracker must notice, too, that it has lost the log."""
        # An accepted loss stays noted until the first entry after the claim, however long the recovery takes.
        if top.lost and not (self._accepts_loss and top.entry == f"{self._log.term}-0"):
            raise lost(self._keys, top.lost)
        if top.term != self._log.term or top.last < acknowledged or not top.has_log or self._log.is_others(top):
            self._log.moved()

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
