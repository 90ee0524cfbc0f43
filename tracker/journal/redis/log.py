"""The log of a journal in Redis: a stream with an entry for each group of records, written by one tracker at a time.

A record is durable on the server's disk, and at so many replicas. A server with ``appendfsync always`` answers after
its disk has the write. Servers from 7.2 have ``WAITAOF``, which waits for the disks of the server and of its replicas,
and returns how many have it; older ones have ``WAIT``, which counts the replicas that have it in memory. An answer of
either is a count and no promise, so the count is checked.

Source: the commands' documentation of Redis and Valkey.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import redis

from ..interface import (
    JournalError,
    JournalFullError,
    JournalGoneError,
    JournalLockedError,
    JournalLossError,
    Record,
    checksum,
    pack,
)
from ..replicated import Group, insist
from . import scripts
from .address import LOST, RedisAddress, connect, is_full, is_soon
from .scripts import Keys


class Relation(Enum):
    """Relation of a log to what a party knows of it."""

    SAME = "same"
    CONTINUES = "continues"
    REPLACED = "replaced by another owner's, without a loss"
    LOST = "acknowledged records are lost"


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """The newest record that a party knows to be acknowledged; without arguments: none.

    Args:
        term: of the owner that wrote it.
        owner: who began the term; empty: unknown.
    """

    term: int = 0
    number: int = 0
    owner: str = ""


NOTHING = "0-0"  #: the entry before the first


@dataclass(frozen=True, slots=True)
class Top:
    """The end of the log.

    Args:
        entry: the newest entry, TERM-NUMBER.
        last: the number of the newest record.
        lost: the number up to which records were acknowledged and are lost; 0: none are known to be.
        owner: who began the newest entry's term; empty: unknown.
        accepted: TERM-NUMBER: in which term a loss was accepted last, and up to which record.
        has_log: whether the records are there at all.
        next_base: the record after which the term began that follows the one asked for; None: not there.
        writer: TERM OWNER of the newest group, if a claim has asked for it.
    """

    entry: str = NOTHING
    last: int = 0
    lost: int = 0
    owner: str = ""
    accepted: str = NOTHING
    has_log: bool = True
    next_base: int | None = None
    writer: str = ""

    @classmethod
    def read(
        cls,
        entry: bytes | None,
        last: bytes | None,
        lost: bytes | None,
        owner: bytes | None = None,
        accepted: bytes | None = None,
        has_log: int = 1,
        next_base: bytes | None = None,
        writer: bytes | None = None,
    ) -> Top:
        """Return the end of the log as the server has it; None: it has nothing."""
        newest = (entry or NOTHING.encode()).decode()
        # An older version that begins a term leaves the owner of an earlier one there.
        began, _, begun_by = (owner or b"").decode().partition(" ")
        return cls(
            newest,
            int(last or 0),
            int(lost or 0),
            begun_by if began == newest.partition("-")[0] else "",
            (accepted or NOTHING.encode()).decode(),
            bool(has_log),
            None if next_base is None else int(next_base),
            (writer or b"").decode(),
        )

    @property
    def term(self) -> int:
        """The term of the newest entry."""
        return int(self.entry.partition("-")[0])


def compare(known: Known, shown: Top) -> tuple[Relation, int]:
    """Tell how a log stands to what a party knows, and, for a loss, after which record it begins.

    Terms grow with each owner of a log, numbers with each record. A party is asked about at every moment at which the
    store could have become another one: an older copy, a replica that lagged, an empty server.

        party                   knows                                   compares
        the leader              what it has acknowledged, in its term   at a refused write, a renewal, a look-up
        a standby               the newest record that it has read and  at each look at the log, also after a new
                                that must be durable                    connection, and when it takes over
        a tracker that starts   nothing; the store has what was noted   when it claims the log
                                then the end that it has claimed        where it cannot read what was there

        the store shows              `Known` nothing  the same term  a later term              an earlier term
        the party's record           SAME, CONTINUES  SAME           REPLACED                  -
        more records                 CONTINUES        CONTINUES      REPLACED                  LOST
        fewer records                -                LOST           LOST: it began too early  LOST
        no log, or another owner's   -                LOST           REPLACED                  LOST
        that the loss was accepted   -                -              REPLACED                  -

    Of a later term the store shows where the term after the party's began. If that is not kept any more, snapshots
    cover it, or the journal was replaced as a whole: REPLACED. A party that knows of no record can miss none.
    """
    if known.term == 0:
        return (Relation.CONTINUES if shown.term else Relation.SAME), 0
    accepted_in, accepted = map(int, shown.accepted.split("-"))
    if known.number == 0 or (known.term < accepted_in <= shown.term and known.number <= accepted):
        same = (shown.term, shown.last) == (known.term, known.number)
        later = shown.term == known.term
        return (Relation.SAME if same else Relation.CONTINUES if later else Relation.REPLACED), 0
    if shown.term > known.term:
        if shown.next_base is not None and shown.next_base < known.number:
            return Relation.LOST, shown.next_base
        return Relation.REPLACED, 0
    others = bool(known.owner and shown.owner and known.owner != shown.owner)
    if not shown.has_log or (shown.term == known.term and others):
        return Relation.LOST, 0
    if shown.term < known.term:
        return Relation.LOST, min(shown.last, known.number - 1)
    if shown.last < known.number:
        return Relation.LOST, shown.last
    return (Relation.SAME if shown.last == known.number else Relation.CONTINUES), 0


log = logging.getLogger("tracker.journal")

_WAIT_MS: Final = 1000  # of one wait; it is repeated


class Durability:
    """Wait for durability after each write.

    Args:
        address: with the wanted durability.
    """

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._fsync = address.durability == "fsync"
        self._replicas = address.replicas
        self.command: tuple[Any, ...] = ()  #: waits for the connection's last write; empty: nothing is to wait for
        self._wanted: tuple[int, ...] = ()

    def check(self, client: Any) -> None:
        """Find out how the server can give what is wanted. To be repeated for every server that is connected to.

        Raises:
            JournalError: it cannot; the message has what to set.
        """
        self._check_memory(client)
        [waits] = client.execute_command("COMMAND INFO", "WAITAOF") or [None]
        if self._fsync:
            self._check_disk(client, bool(waits))
        if self._fsync and waits:
            self.command, self._wanted = ("WAITAOF", 1, self._replicas, _WAIT_MS), (1, self._replicas)
        elif self._replicas:
            self.command, self._wanted = ("WAIT", self._replicas, _WAIT_MS), (self._replicas,)
        else:
            self.command, self._wanted = (), ()

    def missing(self, answer: Any) -> str:
        """Return what is missing after `command` has returned its counts; empty: nothing."""
        counts = [int(each) for each in answer] if isinstance(answer, list) else [int(answer or 0)]
        if all(count >= wanted for count, wanted in zip(counts, self._wanted, strict=False)):
            return ""
        return f"{self.command[0]} counted {counts}, and {list(self._wanted)} are wanted"

    def _check_memory(self, client: Any) -> None:
        """Refuse a server that removes records to make room, and warn of one that would if it had a limit."""
        try:
            settings = client.config_get("maxmemory*")
        except redis.ResponseError:  # a managed server does not tell
            return
        policy = settings.get("maxmemory-policy", "noeviction")
        if policy == "noeviction":
            return
        if int(settings.get("maxmemory", 0)) > 0:
            raise JournalError(
                f"{self._address} has maxmemory-policy={policy}, so it may remove keys of the journal when it is full; "
                "set `maxmemory-policy noeviction`"
            )
        log.warning(
            "%s has maxmemory-policy=%s: with a maxmemory it would remove keys of the journal; set `maxmemory-policy "
            "noeviction`",
            self._address,
            policy,
        )

    def _check_disk(self, client: Any, waits: bool) -> None:
        try:
            settings = client.config_get("append*")
        except redis.ResponseError:  # a managed server does not tell
            settings = {}
        advice = f"set `{'appendonly yes' if waits else 'appendonly yes, appendfsync always'}`, or give {_WEAKER}"
        if settings.get("appendonly", "yes") != "yes":
            raise JournalError(f"{self._address} has no append-only file, so its records end with it; {advice}")
        how = settings.get("appendfsync", "unknown")
        if (how == "no") if waits else (how != "always"):
            raise JournalError(
                f"{self._address} has appendfsync={how}, so it would answer before its disk has a record; {advice}"
            )


_WEAKER: Final = "`?durability=memory` in the address if acknowledged records may be lost with the server"


_BATCH: Final = 8  # entries that are read at once: one has up to 32 MiB


class Reading:
    """The groups after an entry, up to the first that does not match; once they are read, `problem` describes it.

    It can be iterated again, for what was written meanwhile.

    Args:
        number: the number of the last record up to it.
    """

    def __init__(self, client: Any, log: str, after: str, number: int) -> None:
        self.client = client
        self._log = log
        self.entry = after
        self.number = number
        self.claims = 0  #: how many claims it has passed
        self.owner, self.owner_of = "", 0  #: of the last claim that it has passed, and its term
        self.problem: str | None = None

    def __iter__(self) -> Iterator[Group]:
        try:
            yield from self._groups(self.entry)
        except ValueError as error:
            self.problem = f"what follows entry {self.entry} is no entry of a tracker: {error}"

    def _groups(self, start: str) -> Iterator[Group]:
        while batch := self.client.xrange(self._log, f"({start}", "+", count=_BATCH):
            for name, fields in batch:
                start, group = name.decode(), None
                if b"base" in fields:
                    if int(fields[b"base"]) != self.number:
                        self.problem = f"records {self.number + 1} to {fields[b'base'].decode()} are missing"
                        return
                    self.claims += 1
                    self.owner, self.owner_of = fields.get(b"who", b"").decode(), int(start.partition("-")[0])
                elif (group := self._group(start, fields)) is None:
                    return
                self.entry = start
                if group is not None:
                    yield group

    def _group(self, entry: str, fields: dict[bytes, bytes]) -> Group | None:
        first, data = self.number + 1, fields.get(b"data", b"")
        count = int(fields.get(b"count", 0))
        number = int(entry.partition("-")[2])
        if number != self.number + count:
            self.problem = f"records {first} to {number - count} are missing"
        elif checksum(first, count, data) != int(fields.get(b"sum", -1)):
            self.problem = f"the checksum of entry {entry} is wrong"
        else:
            self.number = number
            return Group(entry, first, data)
        return None


class Log:
    """The log, as one tracker reads and writes it.

    Attributes:
        client: for reading, before the first `append`.
        term: this tracker's, once it has claimed the log.
        last: the newest record that is durable.
        known: the newest record that this tracker knows to be acknowledged, while it follows the log.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.client = connect(keys.address, connected=self._connected)
        self._durability = Durability(keys.address)
        self._checked = False  # whether the server of this connection gives the wanted durability
        self._interrupted = threading.Event()
        self._append = self.client.register_script(scripts.APPEND)
        self._entry, self.last, self.term = NOTHING, 0, 0
        self._holder = ""  # who has claimed the log
        self.known = Known()
        self._accepts = False  # whether a noted loss is accepted, with the first entry

    def _connected(self) -> None:
        self._checked = False

    def check(self) -> None:
        """Find out whether the server gives the wanted durability.

        Raises:
            JournalError: the server gives less than is wanted.
        """
        self._durability.check(self.client)
        self._checked = True

    # ---------------------------------------------------------------- reading

    def look(self, client: Any, known: Known) -> tuple[Relation, Top, int]:
        """Compare what is known with what the server shows; a loss is written down before this returns.

        Args:
            known: what this tracker knows to be acknowledged.

        Returns:
            How the log stands to it, the end of the log, and the first record that is lost.
        """
        while True:
            top = Top.read(*client.eval(scripts.LOOK, 2, self._keys.log, self._keys.top, known.term))
            relation, base = compare(known, top)
            if relation is not Relation.LOST:
                return relation, top, 0
            if client.eval(scripts.NOTE_LOSS, 1, self._keys.top, top.entry, known.number, known.term):
                return relation, top, base + 1

    def read(self, after: str, number: int) -> Reading:
        """Return the groups after an entry that ends with record `number`."""
        return Reading(self.client, self._keys.log, after, number)

    # ---------------------------------------------------------------- owning

    def claim(self, holder: str, accept_loss: bool, last: int | None = None) -> Top:
        """Begin a term, in which only this tracker can write.

        Args:
            holder: of the lease: this tracker.
            accept_loss: whether a loss that was noted is accepted. If not, and there is one, no term begins.
            last: the last record that counts; None: the newest.

        The term begins only on a log that was compared with what this tracker has followed.

        Returns:
            The end of the log, and the loss that was noted.

        Raises:
            JournalLockedError: another tracker has the lease now.
        """
        keys = [self._keys.log, self._keys.top, self._keys.lease]
        while True:
            seen: tuple[int | str, int | str] = ("", "")
            if self.known.term:
                relation, top, first = self.look(self.client, self.known)
                if relation is Relation.LOST:
                    raise lost_while_followed(self._keys, self.known.number, first)
                seen = (top.term, top.last)
            arguments = [holder, "" if last is None else last, int(accept_loss), *seen]
            try:
                top = Top.read(*self.client.eval(scripts.CLAIM, len(keys), *keys, *arguments))
                break
            except redis.ResponseError as error:
                if str(error).startswith("NOLEASE"):
                    raise JournalLockedError(
                        f"another tracker has taken over {self._keys.address} in this moment; start again"
                    ) from error
                if not str(error).startswith("LOOKAGAIN"):
                    raise
        self._holder = holder
        if top.entry != NOTHING:
            self._entry, self.last, self.term = top.entry, top.last, top.term
            self._accepts = accept_loss
            self.known = Known()  # of the log as it was compared; a cut of its end is the operator's decision
        return top

    def cut(self, after: str, aside: str) -> None:
        """Move all entries after an entry into another stream."""
        while batch := self.client.xrange(self._keys.log, f"({after}", "+", count=_BATCH):
            for name, fields in batch:
                self.client.xadd(aside, fields, id="*")
                self.client.xdel(self._keys.log, name)

    # ---------------------------------------------------------------- writing

    def append(self, records: Sequence[Record]) -> int:
        """Make a group durable, and return the number of its last record. Wait for as long as that takes.

        Raises:
            JournalGoneError: the log is no longer this tracker's, has lost its tail, or `interrupt` was called.
            JournalFullError, JournalError: the server has refused the group, which is not in the log.
        """
        number = self.last + len(records)
        entry, data = f"{self.term}-{number}", pack(records)
        sum_ = checksum(self.last + 1, len(records), data)
        arguments = [entry, self._entry, number, len(records), sum_, data, int(self._accepts)]
        unsure = False

        def attempt() -> str:
            nonlocal unsure
            missing, unsure = self._attempt(arguments, unsure)
            return missing

        insist(str(self._keys.address), attempt, self._interrupted)
        self._entry, self.last, self._accepts = entry, number, False
        return number

    def _attempt(self, arguments: list[Any], unsure: bool) -> tuple[str, bool]:
        """Try once to make a group durable.

        Args:
            unsure: whether an earlier attempt may have brought the group into the log.

        Returns:
            A text that names what is missing, or an empty one, and whether the group may be in the log.

        Raises:
            JournalError: the group is not durable, as for `append`.
        """
        try:
            if not self._checked:
                self.check()
            answer, waited = self._write(arguments)
            for error in (answer, waited):
                if isinstance(error, Exception):
                    raise error
                unsure = True  # the group is in the log, and may not be durable yet
            if not self._checked:
                self.check()
                return "the connection had been closed, so the write went to a server that was not checked", True
        except LOST as error:
            return str(error), True
        except redis.ResponseError as error:
            self._refused(error, unsure)
            return str(error), unsure
        except JournalError as error:  # another server, which does not give the wanted durability
            if not unsure:
                raise
            return str(error), True
        return self._durability.missing(waited), True

    def _write(self, arguments: list[Any]) -> tuple[Any, Any]:
        """Send a group and wait for its durability, in one round trip; return both answers, which may be errors."""
        keys = [self._keys.log, self._keys.top]
        with self.client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("EVALSHA", self._append.sha, len(keys), *keys, *arguments)
            if self._durability.command:
                pipeline.execute_command(*self._durability.command)
            answer, *waited = pipeline.execute(raise_on_error=False)
        if isinstance(answer, redis.exceptions.NoScriptError):
            self.client.script_load(scripts.APPEND)
            return self._write(arguments)
        return answer, waited[0] if waited else None

    def _refused(self, error: redis.ResponseError, unsure: bool) -> None:
        """Raise what a refusal of the server means, or return if the write is to be repeated."""
        text = str(error)
        if text.startswith("NOTLAST"):
            self.moved()
            return
        if text.startswith("TAILLOST"):
            raise lost(self._keys, int(text.partition(" ")[2]))
        self._checked = False
        if unsure or is_soon(error):
            return
        if is_full(error):
            raise JournalFullError(f"{self._keys.address} has no room ({text}); free some and retry") from error
        raise JournalError(f"{self._keys.address} has refused a write: {text}") from error

    def moved(self) -> None:
        """Raise what it means that the newest entry is not this tracker's; write a loss down, if that is why.

        Return if the log ends as this tracker has left it: only the key with its end was gone, and was made again.
        """
        client = connect(self._keys.address)  # the other one may be waiting for an answer, in another thread
        try:
            relation, top, first = self.look(client, Known(self.term, self.last, self._holder))
        except redis.RedisError as error:
            raise JournalGoneError(
                f"the log on {self._keys.address} does not end as this tracker has left it, and the server does not "
                f"tell why: {error}"
            ) from error
        finally:
            client.close()
        if relation is Relation.LOST:
            raise lost(self._keys, self.last, first)
        if relation is Relation.REPLACED:
            raise JournalGoneError(f"another tracker has taken over {self._keys.address}")
        if not top.has_log:  # it had no record, so none is lost; but nothing can follow on it
            raise JournalGoneError(f"the log on {self._keys.address} has vanished, with no record in it; start again")

    @property
    def writer(self) -> str:
        """This tracker, as the end of the log names it."""
        return f"{self.term} {self._holder}"

    def is_others(self, top: Top) -> bool:
        """Tell whether another tracker has begun the term, which has the same number as this one's."""
        return bool(top.owner) and top.owner != self._holder

    def interrupt(self) -> None:
        """Make an `append` that waits fail, now and later."""
        self._interrupted.set()

    def close(self) -> None:
        self.client.close()


def lost(keys: Keys, last: int, first: int | None = None) -> JournalGoneError:
    """Return the error that acknowledged records are lost, up to `last`."""
    which = f"up to {last}" if first is None else f"{first} to {last}"
    return JournalGoneError(f"{keys.address} has lost the records {which}, which were acknowledged")


def lost_while_followed(keys: Keys, last: int, first: int) -> JournalLossError:
    """Return the error with which a standby ends that has read records which the server does not have any more."""
    return JournalLossError(
        f"{keys.address} has lost the records {first} to {last}, which this standby had read; that is written down. "
        "Bring back a server that has them, or start once with --accept-loss to continue without the lost records"
    )
