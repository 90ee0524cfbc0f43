"""The log of a journal in an object store: an object at each position, which is created once and never changed.

An object is a claim, with which a tracker begins a term, or a group of records. A writer creates the object at the next
position, and no other one. So of several trackers one gets it, and the others learn who. A tracker begins its term with
a claim: then whoever had the log before finds the claim where it would write next, and writes nothing more. A write
without an answer is repeated as it was: an object with the same content is the writer's own.

A claim is never removed, since a tracker that sleeps for a year must still find it. Groups of records are removed once
two snapshots cover them. A tracker that slept as it was about to claim the log could so find a position free that is
long past: it has to look for newer entries and snapshots after its claim, and then its claim is void. Even that
one stays: the newer entries could also be those of another tracker that has claimed the log right after it.

The groups that count are those that follow one another (`Chain`), less what was given up when a loss was accepted.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Final, NoReturn

from tracker.store import ConditionalStore, NoAnswerError, RefusedError

from ..interface import JournalError, JournalFullError, JournalGoneError, Record, pack
from ..replicated import insist

_KIND: Final = b"tracker-log"
_FORM: Final = 1  # raised when older versions cannot read an entry
_DIGITS: Final = 20
HEAD: Final = 512  #: bytes of a group, its records excepted, at most


class EntryDamagedError(Exception):
    """The object's content is not what was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry at a position of the log: 1, 2, 3, …

    Args:
        term: the position of the claim with which its writer's term began; a claim's own.
        writer: identifies the process that has written it.
        holder: of a claim: the tracker, as `tracker.journal.holder` describes it; of a group: empty.
        after: of a group: the position of the group before it; 0: there is none.
        first: of a group: the number of its first record.
        count: of a group: how many records it has.
        cut: of a group: what lies between `after` and this one does not count, and the operator has accepted that.
        data: of a group: what `tracker.journal.interface.pack` made of the records.
    """

    position: int
    term: int
    writer: str
    holder: str = ""
    after: int = 0
    first: int = 0
    count: int = 0
    cut: bool = False
    data: bytes = b""

    @property
    def is_claim(self) -> bool:
        return self.term == self.position

    @property
    def last(self) -> int:
        """The number of a group's last record."""
        return self.first + self.count - 1

    def encode(self) -> bytes:
        """Return the object's content: a line with the form and a checksum of the rest, a line of JSON, the records.

        >>> Entry.decode(7, Entry(7, 7, "w", "me").encode()).holder
        'me'
        """
        head = {each.name: getattr(self, each.name) for each in fields(self)[:-1]}
        rest = json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.data
        return b"%s %d %08x\n%s" % (_KIND, _FORM, zlib.crc32(rest), rest)

    @classmethod
    def decode(cls, position: int, content: bytes) -> Entry:
        """Return the entry of an object.

        Args:
            position: where it was found.

        Raises:
            EntryDamagedError: it is not what was written.
            JournalError: a newer version of the program has written it.
        """
        line, _, rest = content.partition(b"\n")
        kind, *forms = line.split(b" ")
        if kind != _KIND or len(forms) != 2 or not forms[0].isdigit():
            raise EntryDamagedError(f"entry {position} is not an entry of the log")
        if int(forms[0]) != _FORM:
            raise JournalError(
                f"entry {position} of the log has format {int(forms[0])}, and this version reads {_FORM}; start the "
                "version that wrote it, or a newer one"
            )
        if forms[1] != b"%08x" % zlib.crc32(rest):
            raise EntryDamagedError(f"the checksum of entry {position} is wrong")
        head, _, data = rest.partition(b"\n")
        entry = cls(**json.loads(head), data=data)
        if entry.position != position:
            raise EntryDamagedError(f"entry {entry.position} is at position {position}")
        return entry

    @staticmethod
    def writer_in(content: bytes) -> str:
        """Return the writer of a group whose first `HEAD` bytes are given; empty: they are damaged."""
        try:
            return str(json.loads(content.split(b"\n")[1])["writer"])
        except (IndexError, KeyError, TypeError, ValueError):
            return ""


def name_of(position: int) -> str:
    """Return the name of the object at a position.

    >>> name_of(7)
    'log/00000000000000000007'
    """
    return f"log/{position:0{_DIGITS}}"


def claim_name(position: int) -> str:
    """Return the name of the object that marks a position where a claim is or could be: see `Log.claim`."""
    return f"claims/{position:0{_DIGITS}}"


def position_of(name: str) -> int:
    """Return the position in the name of an object of the log, or of a claim's mark; 0: the name is not one."""
    text = name.rpartition("/")[2]
    return int(text) if len(text) == _DIGITS and text.isdecimal() else 0


class BrokenError(Exception):
    """An entry does not continue the log."""


class CutError(Exception):
    """Part or all of what was read so far was given up."""


@dataclass(slots=True)
class Chain:
    """The end of what counts, as far as the log was read.

    Args:
        group: the position of the last group that counts.
        term: of the entries that may follow; 0: not known yet.
    """

    group: int
    number: int
    term: int = 0

    def add(self, position: int, found: Entry | EntryDamagedError | None) -> bool:
        """Go on to the next position, and return whether a group is there, which counts.

        Args:
            found: what is there; None: nothing.

        Raises:
            BrokenError: it does not continue the log; the chain is as before.
            CutError: it is a group that gives up groups before it; the chain is as before.
        """
        if not isinstance(found, Entry):
            raise BrokenError(str(found) if found is not None else f"entry {position} is missing")
        if found.is_claim:
            self.term = position
            return False
        if found.cut and found.after < self.group:
            raise CutError(f"entry {position} goes on after entry {found.after}")
        if found.first != self.number + 1 or found.after != self.group:
            raise BrokenError(f"records {self.number + 1} to {found.first - 1} are missing before entry {position}")
        if found.term != (self.term or found.term):
            raise BrokenError(f"entry {position} was written by a tracker that had been replaced")
        self.group, self.number, self.term = position, found.last, found.term
        return True


class Survey:
    """Reading of a log up to its end, to find which groups count.

    Args:
        group: where to begin: behind the group at this position,
        number: whose last record has this number.

    Attributes:
        problem: why the log does not continue at its end; None: it does.
        broken_at: the position of that.
        highest: the highest number of a record that was seen.
        writer: of the last group that counts; empty: none was read.
    """

    def __init__(self, group: int, number: int) -> None:
        self._chain = Chain(group, number)
        self._counted = [(group, number)]
        self._claim = 0  # the newest one
        self.problem: str | None = None
        self.broken_at = 0
        self.highest = number
        self.writer = ""

    def add(self, position: int, found: Entry | EntryDamagedError | None) -> None:
        """Go on to the next position.

        Raises:
            CutError: what lies before the place where the survey began was given up.
        """
        if isinstance(found, Entry):
            self.highest = max(self.highest, found.last)
            if found.is_claim:
                self._claim = position
            elif found.cut and found.term == (self._claim or found.term):
                self._cut(found)
        if self.problem is not None:
            return
        try:
            if self._chain.add(position, found) and isinstance(found, Entry):
                self.writer = found.writer
                self._counted.append((self._chain.group, self._chain.number))
        except (BrokenError, CutError) as error:
            self.problem, self.broken_at = str(error), position

    def _cut(self, found: Entry) -> None:
        """Give up what a cut gives up, and with it any problem there."""
        if found.after > self._counted[-1][0]:
            return  # its writer has read further
        while self._counted and self._counted[-1][0] > found.after:
            self._counted.pop()
        if not self._counted:
            raise CutError(f"entry {found.position} goes on after entry {found.after}")
        self._chain = Chain(*self._counted[-1], found.term)
        self.problem, self.highest = None, found.last

    @property
    def group(self) -> int:
        """The last group that counts."""
        return self._chain.group

    @property
    def number(self) -> int:
        """Its last record."""
        return self._chain.number

    @property
    def positions(self) -> list[int]:
        """The groups that count, in order, without the one where the survey began."""
        return [position for position, _ in self._counted[1:]]


log = logging.getLogger("tracker.journal")

_AT_ONCE: Final = 16  # entries that are read at once: one has up to 32 MiB
_PAUSE_S: Final = 0.02  # between two attempts of a claim
_CLAIM_ATTEMPTS: Final = 5
LOSS: Final = "lost"  #: the object that names the records that were acknowledged and are lost

Found = Entry | EntryDamagedError | None


@dataclass(frozen=True, slots=True, order=True)
class Followed:
    """Group that a standby has read; without arguments: none.

    Args:
        number: of the last record in the group.
        writer: of the group; empty: unknown, since a snapshot at its position was read in its place.
    """

    position: int = 0
    number: int = 0
    writer: str = ""


class Log:
    """The log, as one tracker reads and writes it.

    Args:
        where: the store's address, for messages.
        holder: describes it, for its claim.

    Attributes:
        term: this tracker's: the position of its claim; 0: it has not claimed the log.
        last: the newest record that is durable.
        followed: the newest group that this tracker has read as a standby.
        covered: returns the position up to which a snapshot has what the log has.
    """

    def __init__(self, objects: ConditionalStore, where: str, writer: str, holder: str) -> None:
        self._objects = objects
        self._where = where
        self.writer = writer
        self._holder = holder
        self._readers = ThreadPoolExecutor(_AT_ONCE, "journal-read")
        self._interrupted = threading.Event()
        self._end = 0  # the position of the newest entry
        self._group = 0  # the position of the newest group
        self._cut = False  # whether the next group gives up what lies before it
        self._accepts = False  # whether a loss that is noted is accepted
        self._groups: deque[tuple[int, int]] = deque()  # this term's groups: last record, position
        self.term = 0
        self.last = 0
        self.followed = Followed()
        self.covered: Callable[[], int] = lambda: 0

    # ---------------------------------------------------------------- reading

    def read(self, position: int) -> Found:
        """Return what is at a position."""
        content = self._objects.get(name_of(position))
        return None if content is None else self._decode(position, content)

    def _decode(self, position: int, content: bytes) -> Entry | EntryDamagedError:
        try:
            return Entry.decode(position, content)
        except EntryDamagedError as error:
            return error

    def between(self, after: int, end: int) -> Iterator[tuple[int, Found]]:
        """Return what is at the positions after one up to another one, in order, and read several at once."""
        for start in range(after + 1, end + 1, _AT_ONCE):
            positions = range(start, min(start + _AT_ONCE, end + 1))
            yield from zip(positions, self._readers.map(self.read, positions), strict=True)

    def following(self, after: int) -> Iterator[tuple[int, Entry | EntryDamagedError]]:
        """Return what is at the positions after one, up to the first where nothing is."""
        at_once = 1  # more and more, as long as there are entries
        while True:
            for position, found in self.between(after, after + at_once):
                if found is None:
                    return
                yield position, found
            after, at_once = after + at_once, min(2 * at_once, _AT_ONCE)

    def is_past(self, position: int) -> bool:
        """Return whether there are newer entries than those up to a position, though the next one is free."""
        return bool(self._objects.names("log", name_of(position)))

    def positions(self) -> list[int]:
        """Return the positions of all entries that there are."""
        return [position for name in self._objects.names("log") if (position := position_of(name))]

    def newest_position(self) -> int:
        """Return the position of the newest entry; 0: there is none."""
        return max(self.positions(), default=0)

    # ---------------------------------------------------------------- owning

    def claim(self, position: int) -> bool:
        """Try to begin a term, in which only this tracker can write, and return whether that succeeded.

        Args:
            position: behind all that was written.

        Raises:
            NoAnswerError: that is unknown. If it did, the newest entry is this tracker's: see `is_own`.
            RefusedError: the store has refused it.
        """
        # First a mark, so that no clean-up ever removes the claim, whatever happens next.
        self._objects.put(claim_name(position), b"")
        content = Entry(position, position, self.writer, self._holder).encode()
        for attempt in range(_CLAIM_ATTEMPTS):
            try:
                if self._objects.create(name_of(position), content):
                    return True
                if (found := self._objects.get(name_of(position))) is not None:
                    return found == content
            except NoAnswerError:
                if attempt == _CLAIM_ATTEMPTS - 1:
                    raise
            self._interrupted.wait(_PAUSE_S * 2**attempt)
        raise NoAnswerError(f"entry {position} can neither be created nor read")

    def is_own(self, entry: Entry) -> bool:
        """Return whether this process has written an entry."""
        return entry.writer == self.writer

    def check_claim(self, claim: int, last: int) -> None:
        """Write down that the store has lost records since this tracker's claim, if the claim is gone.

        Args:
            last: the newest record that was seen.

        Raises:
            JournalGoneError: the claim is gone.
            NoAnswerError, RefusedError: that could not be found out now.
        """
        if claim > 1 and self.read(claim) is None:
            raise self._note_loss(max(last, self.followed.number, 1))

    def begin(self, claim: int, group: int, last: int, accepts_loss: bool) -> None:
        """Write behind a claim of this tracker's from now on.

        Args:
            group: the position of the last group that counts.
            accepts_loss: whether the first group gives up what lies between, and a loss that was noted.
        """
        self.term = self._end = claim
        self._group, self.last = group, last
        self._cut = self._accepts = accepts_loss
        self._groups = deque([(last, group)])

    # ---------------------------------------------------------------- writing

    def append(self, records: Sequence[Record]) -> int:
        """Make a group durable, and return the number of its last record. Wait for as long as that takes.

        Raises:
            JournalGoneError: the log is no longer this tracker's, or `interrupt` was called.
            JournalFullError, JournalError: the store has refused the group, which is not in the log.
        """
        position, first = self._end + 1, self.last + 1
        group = Entry(
            position,
            self.term,
            self.writer,
            after=self._group,
            first=first,
            count=len(records),
            cut=self._cut,
            data=pack(records),
        )
        self._insist(position, group.encode())
        self._end = self._group = position
        self.last = group.last
        self._groups.append((self.last, position))
        self._cut = False
        if self._accepts:
            self._forget_loss()
        return self.last

    def _insist(self, position: int, content: bytes) -> None:
        """Create an entry, and repeat that until it is known to be there."""
        name = name_of(position)
        unsure = False  # whether an earlier attempt may have had an effect

        def attempt() -> str:
            nonlocal unsure
            try:
                if self._objects.create(name, content):
                    return ""
                found = self._objects.get(name)
            except NoAnswerError as error:
                unsure = True
                return str(error)
            except RefusedError as error:
                if not unsure:
                    raise self._failure(error) from error
                return str(error)
            if found is None:
                return "the store has it and does not return it"
            if found != content:
                self._moved(self._decode(position, found))
            return ""

        insist(self._where, attempt, self._interrupted)

    def _moved(self, found: Found) -> NoReturn:
        """Raise what it means that another entry is where this tracker would write.

        A claim there was made by a tracker that has seen all that this one has written. A group can be there only if
        a tracker has claimed an earlier position, since the store had lost what this one has written.
        """
        if isinstance(found, Entry) and not found.is_claim:
            raise self._note_loss(self.last)
        raise JournalGoneError(f"another tracker has taken over {self._where}")

    def _failure(self, error: RefusedError) -> JournalError:
        if error.full:
            return JournalFullError(f"{self._where} has no room ({error}); free some and retry")
        return JournalError(f"{self._where} has refused a write: {error}")

    def interrupt(self) -> None:
        """Make an `append` that waits fail, now and later."""
        self._interrupted.set()

    # ---------------------------------------------------------------- what others did

    def look(self) -> None:
        """Find out whether the log is still this tracker's and has its end: an idle tracker must learn it, too.

        Raises:
            JournalGoneError: it is not, or has not.
            NoAnswerError, RefusedError: that could not be found out now.
        """
        end, last = self._end, self.last
        # A store that was emptied has the end again after the next write, and never the claim.
        has_claim = self._objects.get(name_of(self.term), first=1) is not None
        has_end = self._objects.get(name_of(end), first=1) is not None
        found = self.read(end + 1)
        if found is not None and not (isinstance(found, Entry) and self.is_own(found)):
            self._moved(found)
        if not has_claim or (not has_end and found is None and self.covered() < end):
            raise self._note_loss(last)
        if self._objects.get(LOSS) is not None:
            if not self._accepts:
                raise JournalGoneError(
                    f"{self._where} has lost records that were acknowledged, as another tracker found"
                )
            if not self._cut:
                self._forget_loss()

    def confirm(self) -> None:
        """Make sure that nobody else had claimed the log when the call began.

        Raises:
            JournalGoneError: another tracker had claimed the log.
            NoAnswerError, RefusedError: that could not be found out now.
        """
        position = self._end + 1
        content = self._objects.get(name_of(position), soon=True)
        if content is None:
            return
        found = self._decode(position, content)
        if not (isinstance(found, Entry) and self.is_own(found)):
            self._moved(found)

    def _note_loss(self, last: int) -> JournalGoneError:
        """Write down that records up to one are lost, so that no tracker starts as if nothing had happened."""
        try:
            self._objects.create(LOSS, str(last).encode())
        except (NoAnswerError, RefusedError) as error:
            return JournalGoneError(f"{self._where} has lost records up to {last}, and that cannot be noted: {error}")
        return JournalGoneError(f"{self._where} has lost records up to {last}, which were acknowledged")

    def has_lost_followed(self, is_covered: Callable[[], bool]) -> bool:
        """Return whether what was read last as a standby is lost; that is written down before this returns.

        Args:
            is_covered: whether a group may be gone, since a snapshot has its records.

        Raises:
            NoAnswerError, RefusedError: that cannot be found out or written down now.
        """
        followed = self.followed
        if not followed.position:
            return False
        content = self._objects.get(name_of(followed.position), first=HEAD)
        if is_covered() if content is None else followed.writer in ("", Entry.writer_in(content)):
            return False
        self._objects.create(LOSS, str(followed.number).encode())
        return True

    def noted_loss(self) -> int:
        """Return the number up to which records are noted as lost; 0: none are."""
        content = self._objects.get(LOSS)
        return int(content) if content else 0

    def _forget_loss(self) -> None:
        try:
            self._objects.delete([LOSS])
            self._accepts = False
        except (NoAnswerError, RefusedError) as error:
            log.warning("%s: the accepted loss is still noted; that is tried again: %s", self._where, error)

    # ---------------------------------------------------------------- clean-up

    def position_of(self, number: int) -> int:
        """Return the position of the group whose last record has a number; it must be of this term, or the one before.

        Older groups are forgotten.
        """
        while len(self._groups) > 1 and self._groups[0][0] < number:
            self._groups.popleft()
        found, position = self._groups[0]
        if found != number:
            raise JournalError(f"no group of this term ends with record {number}")
        return position

    def trim(self, position: int) -> None:
        """Remove the groups before a position. The one at it stays: it could be the newest entry, which is the end."""
        kept = {position_of(name) for name in self._objects.names("claims")}
        past = [each for each in self.positions() if each < position and each not in kept]
        self._objects.delete(map(name_of, past))

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)
