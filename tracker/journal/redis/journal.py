"""The journal in Redis or Valkey: a replicated log, snapshots beside it, and a lease on both.

See `scripts` for the keys and the atomic steps, and docs/howto/journals.md for what each level of durability may lose.

`Confirmation` checks who owns the log, and whether the server is the master, of which replicas still copy. A master
that was replaced while it was cut off believes in its old log. If records wait for replicas, so does an answer about
the owner: a small write must have come to them. A promoted replica copies nothing of its old master any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import redis

from ..interface import Damage, Following, JournalError, LeftOut, LostTrackError, Place, Record, Recovery, unpack
from ..mark import Marks
from ..replicated import Group, LogFollowing, ReplicatedJournal, left_out
from ..snapshots import SnapshotDamagedError
from . import scripts
from .address import LOST, RedisAddress, connect, is_full
from .lease import Lease
from .log import Log, Reading, lost, lost_while_followed
from .scripts import Keys
from .snapshots import RedisSnapshots
from .top import NOTHING, Known, Relation, Top

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
        """Close the connection."""
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
