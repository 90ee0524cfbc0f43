"""A journal on a store that several machines reach, so that another one takes over: what does not depend on the store.

A tracker becomes the owner by a claim in the log, which begins a term. The lease only decides who may claim, and when.
An owner that was replaced while it slept, or was cut off, learns that at its next write, look or question, and is gone:
it answers nothing more.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from .interface import (
    Damage,
    JournalError,
    JournalGoneError,
    JournalLockedError,
    JournalLossError,
    LeftOut,
    LostTrackError,
    Place,
    Record,
    Recovery,
    RestoreUnfinishedError,
    loss_of,
    unpack,
)
from .mark import Marked, Marks

log = logging.getLogger("tracker.journal")

_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0  # between two attempts of a write
_HELD_BACK: Final = 2  # groups
BEATS: Final = 3  # signs of life, in the time of a lease
_LOOKS: Final = 20  # of one who wants a lease, in its time
_PATIENCE: Final = 1.5  # times a lease's: how long it is wanted


class Log(Protocol):
    """The log, as its owner needs it."""

    last: int  #: the newest record that counts

    @property
    def writer(self) -> str: ...

    def append(self, records: Sequence[Record]) -> int: ...

    def interrupt(self) -> None: ...


class Lease(ABC):
    """Right to claim the log, which a thread keeps once this process has it.

    Args:
        where: the journal, for messages.
        holder: identifies this process, as `new_holder` describes it.
        seconds: without a sign of life, after which another process may get it.
        clock: a monotonic one, in seconds.
    """

    failures: ClassVar[type[Exception]]  #: of requests to the store
    passing: ClassVar[tuple[type[Exception], ...]] = ()  #: failures after which it is tried again
    another: ClassVar[str] = "another journal"  #: what an operator can name

    def __init__(self, where: str, holder: str, seconds: float, clock: Callable[[], float]) -> None:
        self._where = where
        self.holder = holder
        self._seconds = seconds
        self._clock = clock
        self._other = ""  # the holder that was seen last
        self._silence: Exception | None = None  # how the newest look failed
        self._closed = threading.Event()
        self._beating: threading.Thread | None = None
        self._pause_s = 0.0  # until the next beat
        self._gone: Callable[[JournalGoneError], None] | None = None

    @abstractmethod
    def try_to_acquire(self, waits: bool = False) -> bool:
        """Try to get the lease, and return whether that succeeded; then keep it.

        Args:
            waits: this process is a standby, which follows the log, and shows that.
        """

    @abstractmethod
    def beat(self) -> None:
        """Show a sign of life, and look whether the log is still this process's, if that is wanted.

        Raises:
            JournalGoneError: another process has claimed the log, or the log has lost records.
        """

    @abstractmethod
    def standby(self) -> str:
        """Return which process waits for the lease, for people; empty: none does."""

    @abstractmethod
    def hand_over(self) -> None:
        """Give the lease to a standby that waits; else as `close`."""

    @abstractmethod
    def close(self) -> None:
        """Give the lease back, if it is this process's. A store that cannot be used lets it run out."""

    def acquire(self) -> None:
        """Get the lease: at once if nobody has it, or once its holder shows no sign of life; then keep it.

        Raises:
            JournalLockedError: another process has it, and lives.
        """
        until = self._clock() + _PATIENCE * self._seconds
        while True:
            with suppress(*self.passing):
                if self.try_to_acquire():
                    return
            if self._clock() > until:
                raise self._silence or JournalLockedError(
                    f"the journal {self._where} is in use by another tracker ({describe(self._other) or 'unknown'}); "
                    f"stop it, or name {self.another}"
                )
            self._closed.wait(0.05 if is_dead(self._other) else self._seconds / _LOOKS)

    def watch(self, gone: Callable[[JournalGoneError], None]) -> None:
        """Look, with each beat from now on, whether the log is still this process's.

        Args:
            gone: called, in a thread, once it is not.
        """
        self._gone = gone

    def _begin(self, first_s: float = 0.0) -> None:
        """Beat from now on, for the first time after so many seconds."""
        self._pause_s = first_s
        self._beating = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._beating.start()

    def _keep(self) -> None:
        while not self._closed.wait(self._pause_s):
            # A store that cannot be reached is none of the lease's business: writes wait for it, too.
            with suppress(self.failures):
                try:
                    self.beat()
                except JournalGoneError as error:
                    if self._gone is not None:
                        self._gone(error)
                    return
            self._pause_s = self._seconds / BEATS


class Closable(Protocol):
    """Something with a connection, a thread or a file."""

    def close(self) -> None: ...


class ReplicatedJournal(ABC):
    """A journal that one process owns, and others follow.

    Args:
        where: its address, for messages.
        parts: closed after the lease, in order.
        restoring: whether a backup is being put into it.
    """

    instant = False
    exclusive = False
    failures: ClassVar[type[Exception]]  #: of requests to the store
    remedy: ClassVar[str]  #: of a loss

    def __init__(
        self, where: str, log: Log, lease: Lease, marks: Marks, parts: Iterable[Closable], restoring: bool
    ) -> None:
        self._where = where
        self._restoring = restoring
        self._log = log
        self._lease = lease
        self._marks = marks
        self._marks_begun = False
        self._parts = (marks, *parts)
        self._gone: JournalGoneError | None = None
        self._tell: Callable[[JournalGoneError], None] | None = None
        self._telling = threading.Lock()
        self._closed = False

    # ---------------------------------------------------------------- the store's part

    @abstractmethod
    def _unusable(self, error: Any) -> JournalError:
        """Return what a failure of the store means."""

    @abstractmethod
    def _confirm(self) -> None:
        """Make sure that nobody else owned the log when the call began, or raise `JournalGoneError`."""

    @abstractmethod
    def _recover(self, accept_loss: bool, followed: Place | None) -> Recovery:
        """Claim the log, read it, and repair what is damaged."""

    @abstractmethod
    def _left_out(self) -> frozenset[LeftOut]:
        """Return the records that are left out."""

    @abstractmethod
    def _snapshot(self, number: int, state: Any) -> int:
        """Keep a state."""

    @abstractmethod
    def _keep_aside(self, number: int, text: str) -> None:
        """Leave a record out from now on."""

    @abstractmethod
    def _awaits_backup(self) -> bool:
        """Return whether the journal was moved aside for a backup that is not in its place yet."""

    @abstractmethod
    def move_aside(self) -> str:
        """Note that a backup is to come, and move all of the journal elsewhere; it must be this process's.

        Returns:
            Where it is now; empty: there was nothing.

        Raises:
            JournalError: it cannot be moved.
        """

    # ---------------------------------------------------------------- owning

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Let failures of the store become errors of the journal."""
        try:
            yield
        except self.failures as error:
            raise self._unusable(error) from error

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Close what is open already if something fails."""
        try:
            with self._asking():
                yield
        except BaseException:
            self.close()
            raise

    def try_to_own(self) -> bool:
        with self._asking():
            return self._lease.try_to_acquire(waits=True)

    def confirm(self) -> None:
        if self._gone is None:
            try:
                with self._asking():
                    self._confirm()
            except JournalGoneError as error:
                self._is_gone(error)
        if self._gone is not None:
            raise self._gone

    def when_gone(self, gone: Callable[[JournalGoneError], None]) -> None:
        with self._telling:
            self._tell = gone
            if self._gone is not None:
                gone(self._gone)

    def interrupt(self) -> None:
        self._log.interrupt()

    def _is_gone(self, error: JournalGoneError) -> None:
        self.interrupt()
        with self._telling:
            if self._gone is None:
                self._gone = error
                if self._tell is not None:
                    self._tell(error)

    def standby(self) -> str:
        with self._asking():
            return self._lease.standby()

    def hand_over(self) -> None:
        self._release(self._lease.hand_over)

    def close(self) -> None:
        self._release(self._lease.close)

    def _release(self, lease: Callable[[], None]) -> None:
        if self._closed:
            return
        self._closed = True
        lease()
        for part in self._parts:
            part.close()

    # ---------------------------------------------------------------- reading

    def recover(self, accept_loss: bool = False, followed: Place | None = None) -> Recovery:
        with self._asking():
            if not self._restoring and self._awaits_backup():
                raise RestoreUnfinishedError(self._where)
            return self._recover(accept_loss, followed)

    def _recovered(self, state: Any, number: int, records: Iterator[Record], damage: Sequence[Damage]) -> Recovery:
        found = self._marks.found
        suspect, starts, carried = found.replayed, found.starts, frozenset(found.carried)
        return Recovery(state, number, records, tuple(damage), suspect, starts, carried, self._left_out())

    def _damage_of_the_log(self, problem: str | None, number: int, highest: int, noted: int, kept: str) -> list[Damage]:
        """Return how the log is damaged: it does not continue for a problem, or records up to a number were noted as
        lost."""
        if problem is None and not noted:
            return []
        missing = max(highest, noted) - number
        reason = problem or "the store has lost acknowledged records, as a tracker has noted"
        return [Damage(self._where, reason, number + 1, missing if missing > 0 else None, kept)]

    def _check_loss(self, damage: Sequence[Damage], accepted: bool) -> None:
        """Raise an error if acknowledged records are lost, and that is not accepted."""
        if accepted or all(each.lost == 0 for each in damage):
            return
        raise JournalLossError(
            f"{loss_of(damage)}. No record was changed. Bring {self.remedy}, or start once with --accept-loss to "
            "continue without the lost records"
        )

    # ---------------------------------------------------------------- writing

    def replaying(self, number: int) -> None:
        if not self._marks.note(self._marks.found.replaying(number)):
            raise JournalError(f"{self._where} cannot be reached to note what is replayed; check that it runs")

    def carrying(self, numbers: Sequence[int]) -> bool:
        return self._marks.note(Marked(carried=tuple(numbers)))

    def set_aside(self, number: int, record: Record, why: str, answered: bool) -> None:
        payload = base64.b64encode(record.payload).decode()
        untold = self._log.last if answered else 0
        text = {"method": record.method, "at": record.at, "why": why, "payload": payload, "untold": untold}
        with self._asking():
            self._keep_aside(number, json.dumps(text))

    def append(self, records: Sequence[Record]) -> int:
        if self._closed:
            raise JournalError(f"the journal {self._where} is closed")
        if self._gone is not None:
            raise self._gone
        try:
            number = self._log.append(records)
        except JournalGoneError as error:
            self._is_gone(error)
            raise
        if not self._marks_begun:
            self._marks_begun = True
            self._marks.begin(self._log.writer)
        return number

    def snapshot(self, number: int, state: Any) -> int:
        try:
            with self._asking():
                return self._snapshot(number, state)
        except JournalGoneError as error:
            self._is_gone(error)
            raise


def left_out(texts: Iterable[tuple[int, bytes]]) -> frozenset[LeftOut]:
    """Return the records that are left out, as `ReplicatedJournal.set_aside` has described them, by number.

    Raises:
        JournalError: a description cannot be read.
    """
    found = set()
    for number, text in texts:
        try:
            values = dict(json.loads(text))
            found.add(LeftOut(number, int(values["method"]), int(values["at"]), int(values.get("untold", 0))))
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"the description of record {number}, which was set aside, cannot be read; repair it, or remove it: "
                "then the record counts again"
            ) from error
    return frozenset(found)


def insist(where: str, attempt: Callable[[], str], interrupted: threading.Event) -> None:
    """Repeat a write until it is durable, however long that takes.

    Args:
        where: the journal, for messages.
        attempt: writes, and returns what is missing; empty: nothing.

    Raises:
        JournalGoneError: `interrupted` is set, since this process no longer owns the log.
    """
    pause, complaint = _PAUSE_S, ""
    while missing := attempt():
        if missing != complaint:
            log.warning("%s: %s; the write is repeated until it is durable", where, missing)
            complaint = missing
        if interrupted.wait(pause):
            raise JournalGoneError(
                f"{where} has not made the last commands durable ({missing}); whether they count is unknown"
            )
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    if complaint:
        log.info("%s has made the write durable", where)


# -------------------------------------------------------------------- following


@dataclass(frozen=True, slots=True)
class Group:
    """An entry of a log with records."""

    entry: str
    first: int  #: the number of its first record
    data: bytes


class LogFollowing(ABC):
    """Reader of the records after a place, as they come, while another process writes them.

    The leader appends a group once it has carried out the one before the last. So two groups are held back, and a
    command that ends the process does not end the standby's, too: whoever recovers leaves it out.

    Args:
        place: up to where a snapshot has what the log has.
        look_left_out: reads which records are left out.

    Attributes:
        place: up to where records were returned.
    """

    failures: ClassVar[type[Exception]]  #: of requests to the store

    def __init__(self, place: Place, look_left_out: Callable[[], frozenset[LeftOut]]) -> None:
        self.place = place
        self._groups: deque[Group] = deque()  # that were read, and not replayed yet
        self._look_left_out = look_left_out
        self._left_out: dict[LeftOut, int] | None = None  # and each one's `untold`; None: to be read again
        self._known_left_out: frozenset[LeftOut] | None = None  # when it was read last

    @abstractmethod
    def _read(self) -> Iterator[Group]:
        """Yield the groups that were written since.

        A tracker that starts leaves records out before it appends: behind its claim they are to be read again.
        """

    def records(self) -> Iterator[tuple[int, Record]]:
        """Return the records that may be replayed now; see `tracker.journal.Following`."""
        try:
            for group in self._read():
                if self._left_out is None:
                    self._left_out = {each: each.untold for each in self._read_left_out()}
                self._groups.append(group)
                while len(self._groups) > _HELD_BACK:
                    oldest = self._groups.popleft()
                    number, untold = oldest.first - 1, self.place.untold
                    for number, record in enumerate(unpack(oldest.data), oldest.first):
                        if (out := LeftOut.of(number, record)) in self._left_out:
                            untold = max(untold, self._left_out[out])
                        else:
                            yield number, record
                    self.place = Place(oldest.entry, number, untold)
        except self.failures as error:
            raise JournalError(f"the log cannot be read: {error}") from error

    def _read_left_out(self) -> frozenset[LeftOut]:
        """Read which records are left out; one that was replayed before it was left out cannot be taken back."""
        found = self._look_left_out()
        new = frozenset() if self._known_left_out is None else found - self._known_left_out
        if replayed := sorted(each.number for each in new if each.number <= self.place.number):
            raise LostTrackError(f"record {replayed[0]} has been left out since it was read")
        self._known_left_out = found
        return found


# -------------------------------------------------------------------- who holds a journal


def new_holder() -> str:
    """Return a description of this process, as JSON that people can read. No two calls return the same."""
    here = {"host": socket.gethostname(), "pid": os.getpid(), "machine": _machine(), "name": secrets.token_hex(4)}
    return json.dumps(here)


def is_dead(holder: str) -> bool:
    """Tell whether a holder was a process of this machine that has ended."""
    try:
        held = json.loads(holder)
        if not held["machine"] or held["machine"] != _machine():
            return False
        os.kill(held["pid"], 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError):
        return False
    return False


def describe(holder: str) -> str:
    """Return a holder's process and host, for people."""
    try:
        held = json.loads(holder)
        return f"process {held['pid']} on {held['host']}"
    except (ValueError, KeyError, TypeError):
        return holder


def _machine() -> str:
    """Return what two processes have in common that see each other's process numbers; empty: it cannot be found out."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
