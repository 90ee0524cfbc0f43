"""The contents of one report, collected and combined before they are sent.

A report that is too large for one message is split into pieces: each of them is a unit of its own, and the epoch
commits them together. This module does not depend on the wire format; it only assumes that a server limits what one
message may hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracker.client.waiting import Token, in_thread
from tracker.contract.bounds import whole
from tracker.contract.commands import (
    AboutSubstream,
    Close,
    Contents,
    Expect,
    Finish,
    Frontier,
    Identities,
    Promise,
    Reported,
)
from tracker.contract.spec import check_texts
from tracker.contract.values import NO_END_TIME, Outcome

_ENTRY_BYTES = 32  #: bytes that an entry takes in a message, at most
_SUBSTREAM_BYTES = 24  #: bytes that a substream takes in addition to its names, at most


@dataclass(frozen=True, slots=True)
class Largest:
    """The most that one message may hold. The defaults are well below a server's default limits."""

    substreams: int = 100_000
    entries: int = 200_000
    promises: int = 50_000
    bytes: int = 16 << 20

    @classmethod
    def by(cls, limits: Mapping[str, int]) -> Largest:
        """Return values that respect a server's limits, which an operator may have lowered.

        >>> Largest.by({"max_promises": 1000}).promises
        1000
        """
        usual = cls()
        return cls(
            max(1, min(usual.substreams, limits.get("max_report_substreams", usual.substreams))),
            max(1, min(usual.entries, limits.get("max_report_entries", usual.entries))),
            max(1, min(usual.promises, limits.get("max_promises", usual.promises))),
            max(1, min(usual.bytes, limits.get("max_message_bytes", 4 * usual.bytes) // 4)),
        )


def split(contents: Contents, largest: Largest) -> Iterator[Contents]:
    """Split a report's contents into pieces, at least one. Equal contents give equal pieces.

    A promise about a substream goes into the substream's piece; other promises go where there is room.
    """
    rows = np.argsort(contents.substream_index, kind="stable")
    ordered = contents.substream_index[rows].astype(np.int64)
    others: list[Promise] = []
    about: dict[int, list[AboutSubstream]] = {}
    for promise in contents.promises:
        if isinstance(promise, AboutSubstream):
            about.setdefault(promise.substream_index, []).append(promise)
        else:
            others.append(promise)
    for first, last in _ranges(contents, ordered, about, largest):
        low, high = np.searchsorted(ordered, [first, last])
        promises: list[Promise] = [
            replace(promise, substream_index=place - first)
            for place in range(first, last)
            for promise in about.get(place, ())
        ]
        spare = largest.promises - len(promises)
        if spare > 0:
            promises, others = [*promises, *others[:spare]], others[spare:]
        yield _piece(contents, first, last, rows[low:high], promises[: largest.promises])
        for begin in range(largest.promises, len(promises), largest.promises):
            more = promises[begin : begin + largest.promises]
            yield _piece(contents, first, last, rows[:0], more)
    for begin in range(0, len(others), largest.promises):
        yield _piece(contents, 0, 0, rows[:0], others[begin : begin + largest.promises])


def _ranges(
    contents: Contents, ordered: NDArray[np.int64], about: Mapping[int, Sequence[AboutSubstream]], largest: Largest
) -> Iterator[tuple[int, int]]:
    """Yield ranges of substreams that make a piece, from the first to the one after the last."""
    number = len(contents.substreams)
    entries = np.bincount(ordered, minlength=number)
    sizes = np.fromiter(
        (
            len(scope.encode(errors="replace")) + len(name.encode(errors="replace"))
            for scope, name in contents.substreams
        ),
        np.int64,
        number,
    )
    promises = np.fromiter((len(about.get(place, ())) for place in range(number)), np.int64, number)
    sizes += _SUBSTREAM_BYTES + _ENTRY_BYTES * (entries + promises)
    ends = [
        (np.cumsum(np.ones(number, np.int64)), largest.substreams),
        (np.cumsum(entries), largest.entries),
        (np.cumsum(promises), largest.promises),
        (np.cumsum(sizes), largest.bytes),
    ]
    first = 0
    while first < number or first == 0:
        last = number
        for total, limit in ends:
            before = int(total[first - 1]) if first else 0
            last = min(last, int(np.searchsorted(total, before + limit, side="right")))
        last = min(number, max(last, first + 1))
        yield first, last
        if last >= number:
            return
        first = last


def _piece(contents: Contents, first: int, last: int, rows: NDArray[np.int64], promises: Sequence[Promise]) -> Contents:
    used, segment_index = np.unique(contents.segment_index[rows], return_inverse=True)
    return Contents(
        substreams=list(contents.substreams[first:last]),
        end_times=contents.end_times[first:last],
        segments=[contents.segments[place] for place in used.tolist()],
        substream_index=(contents.substream_index[rows] - np.uint32(first)).astype(np.uint32),
        segment_index=segment_index.astype(np.uint32),
        xor=contents.xor[rows],
        sent=contents.sent[rows],
        received=contents.received[rows],
        promises=tuple(promises),
    )


#: Cells (substream and segment in one number), the XOR of their labels, how many were sent, how many received.
Rows: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]


def strings(name: str, column: Sequence[str] | NDArray[np.object_] | NDArray[np.str_]) -> Sequence[str]:
    """Return the column as texts of Python's own.

    Raises:
        TypeError: a value is no text.
    """
    strings: Sequence[str] = column.tolist() if isinstance(column, np.ndarray) else column
    if not all(issubclass(kind, str) for kind in set(map(type, strings))):
        wrong = next(value for value in strings if not isinstance(value, str))
        raise TypeError(f"column {name} must hold texts, not {wrong!r}")
    return strings


def integers(name: str, column: ArrayLike) -> NDArray[np.int64]:
    """Return the column in 64 bits; a number above 2**63 - 1 becomes negative, with the same bits."""
    numbers = np.asarray(column)
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64).view(np.int64)
    if numbers.dtype.kind != "i" and numbers.size:
        raise TypeError(f"column {name} must hold 64-bit integers, not {numbers.dtype}")
    return numbers.astype(np.int64)


def cells_of(counts: Mapping[int, Sequence[int]]) -> Iterator[Rows]:
    """Yield the cells that were counted one element at a time, if there are any."""
    if counts:
        xor, sent, received = zip(*counts.values(), strict=True)
        yield (
            np.fromiter(counts, np.uint64, len(counts)),
            np.array(xor, np.uint64),
            np.array(sent, np.int64),
            np.array(received, np.int64),
        )


def combined(columns: Sequence[Rows]) -> Rows:
    """Combine all rows into one for each cell, in the order of the cells."""
    if not columns:
        return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    cells, xor, sent, received = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(cells, kind="stable")
    cells = cells[order]
    first = np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]]))
    if len(first) == len(cells):
        return cells, xor[order], sent[order], received[order]
    return (
        cells[first],
        np.bitwise_xor.reduceat(xor[order], first),
        np.add.reduceat(sent[order], first),
        np.add.reduceat(received[order], first),
    )


# Messages are expensive; entries are cheap. So this module combines all entries of the same substream and segment into
# one, however many elements they count. It does not depend on the wire format or on how a report is delivered.

_SEGMENT_BITS = 16
_ONES_64 = 2**64 - 1
_MAX_COUNT = 2**32 - 1


class Report:
    """A report that a program builds: entries and promises of one or more units of an epoch.

    `Producer.epoch` makes it. A report's entries take effect before its promises, and the promises in the order of the
    calls; otherwise the order of the calls does not matter. Only one thread may use it at a time.

    >>> delivered = []
    >>> report = Report(lambda contents, units, commit: delivered.append(contents))
    >>> report.sent("raw", "JFK", "2013-01-01", 0b0110, end_time=24)
    >>> report.sent("raw", "JFK", "2013-01-01", 0b0101, end_time=24)
    >>> report.received("raw", "JFK", "2013-01-01", 0b0110, end_time=24)
    >>> report.report(units=["read/0"])
    >>> delivered[0].xor, delivered[0].sent, delivered[0].received
    (array([5], dtype=uint64), array([2], dtype=uint32), array([1], dtype=uint32))
    """

    def __init__(
        self,
        send: Callable[[Contents, Sequence[str], bool], Reported],
        epoch: int | None = None,
        job: str = "",
        producer: str = "",
    ) -> None:
        self.epoch = epoch  #: the epoch of which it is a part
        self._deliver = send
        self._of = job, producer
        self._answer: Reported | None = None
        self._substreams: dict[tuple[str, str], int] = {}
        self._end_times = array("q")  # one for each substream, in the order of the dictionary
        self._segments: dict[str, int] = {}
        self._cells: dict[int, list[int]] = {}  # (substream, segment) -> [xor, sent, received]
        self._columns: list[Rows] = []
        self._promises: list[Promise] = []

    def __repr__(self) -> str:
        job, producer = self._of
        made = f"{len(self._substreams)} substreams, {len(self._promises)} promises"
        return f"<Report of {producer!r} in {job!r}, epoch {self.epoch}: {made}>"

    def sent(self, segment: str, scope: str, name: str, label: int, end_time: int | None = None) -> None:
        """Add one element that was sent on a segment.

        Args:
            label: 64 bits; a negative number stands for its two's complement, as Spark's `xxhash64` returns it.
            end_time: the substream's, if it has one; always the same for a substream.

        Raises:
            ValueError: the substream had another end time before.
            TypeError: a name is no text, or the label no integer.
        """
        self._count(segment, scope, name, end_time, label, 1, 0)

    def received(self, segment: str, scope: str, name: str, label: int, end_time: int | None = None) -> None:
        """Add one element that was received from a segment.

        Report the elements that it gave rise to in the same report or earlier.

        Args:
            label: the label with which the element was sent.

        Raises:
            ValueError: the substream had another end time before.
            TypeError: a name is no text, or the label no integer.
        """
        self._count(segment, scope, name, end_time, label, 0, 1)

    def add(
        self,
        segment: str,
        scope: str,
        name: str,
        xor: int,
        sent: int = 0,
        received: int = 0,
        end_time: int | None = None,
    ) -> None:
        """Add many elements of one substream at once.

        Args:
            xor: the XOR of the elements' labels, 64 bits.

        Raises:
            ValueError: a count is negative, or the substream had another end time before.
        """
        if sent < 0 or received < 0:
            raise ValueError(f"sent={sent}, received={received} are not valid counts; use 0 or more")
        self._count(segment, scope, name, end_time, xor, sent, received)

    def add_columns(
        self,
        segment: str,
        scopes: Sequence[str] | NDArray[np.object_] | NDArray[np.str_],
        names: Sequence[str] | NDArray[np.object_] | NDArray[np.str_],
        end_times: ArrayLike | None,
        xor: ArrayLike,
        sent: ArrayLike,
        received: ArrayLike,
    ) -> None:
        """Add elements of many substreams at once, in columns of equal length.

        Each row is about one substream; rows of the same substream are combined.

        Args:
            segment: the edge of the dataflow, for all rows.
            end_times: 64-bit integers, with `NO_END_TIME` in rows without one; None: no row has one.
            xor: the XOR of the labels: 64-bit integers, signed or not.

        Raises:
            ValueError: the columns differ in length, a count is negative, or a substream has two end times.
            TypeError: a column of numbers holds anything but integers, or one of names anything but texts.

        >>> report = Report(lambda contents, units, commit: print(contents.sent))
        >>> report.add_columns("raw", ["JFK", "LGA"], ["d1", "d1"], None, [7, -7], [10, 20], [0, 0])
        >>> report.report(units=["0"])
        [10 20]
        """
        folded, sents, receiveds = (
            integers("xor", xor).view(np.uint64),
            integers("sent", sent),
            integers("received", received),
        )
        rows = len(names)
        lengths = [len(scopes), rows, len(folded), len(sents), len(receiveds)]
        times = np.full(rows, NO_END_TIME, np.int64) if end_times is None else integers("end_times", end_times)
        if {*lengths, len(times)} != {rows}:
            raise ValueError(
                f"the columns have different lengths: {[*lengths, len(times)]}; give each one value for each entry"
            )
        if rows == 0:
            return
        if sents.min() < 0 or receiveds.min() < 0:
            raise ValueError("a count is negative; use 0 or more")
        table = self._substreams
        known = len(table)
        name = table.setdefault
        pairs = zip(strings("scopes", scopes), strings("names", names), strict=True)
        substreams = np.fromiter((name(pair, len(table)) for pair in pairs), np.int64, rows)
        self._bind(substreams, known, times)
        cells = (substreams.astype(np.uint64) << np.uint64(_SEGMENT_BITS)) | np.uint64(self._segment(segment))
        self._columns.append((cells, folded, sents, receiveds))

    def frontier(self, front: str, time: int, scope: str | None = None) -> None:
        """Promise that the front will send no more elements of substreams with an end time up to `time`.

        Args:
            time: the end time, in the job's own unit.
            scope: only for this scope; None: for all scopes.
        """
        check_texts(front=front, scope="" if scope is None else scope)
        self._promises.append(Frontier(front, whole("time", time), scope))

    def close(self, scope: str, name: str, end_time: int | None = None, front: str | None = "") -> None:
        """Promise that the front will send no more elements of one substream.

        Args:
            front: the source that promises. A job that has fronts refuses a close that names none
                (``UNKNOWN_FRONT``). None: all fronts of the job, since the caller is the only source of the substream.
        """
        check_texts(front="" if front is None else front)
        self._promises.append(Close(front or "", self._substream(scope, name, end_time), front == ""))

    def expect(
        self,
        front: str,
        segment: str,
        scope: str,
        name: str,
        elements: int,
        end_time: int | None = None,
        revise: bool = False,
        xor: int | None = None,
    ) -> None:
        """Promise that the front sends exactly a number of elements of one substream on a segment.

        The tracker knows the substream from then on, even if none of its elements was sent yet. The substream is closed
        for the front once that many elements were sent there and have taken effect (staged ones when their epoch
        commits, immediate ones on receipt), by any producer, before the promise or after it. If several fronts feed the
        segment, their numbers add up, and each of them must give one (0 counts), or finish. A front that expects a
        substream does not also close it: for this substream, the front's frontiers and closes have no effect.

        Args:
            segment: where the elements are counted as sent.
            elements: how many in all, 0 or more.
            revise: replace another number that the front has given. Without it, another number is refused
                (``EXPECT_CONFLICT``); so is any other number once the substream has ended on the segment.
            xor: of the identities of these elements, so that a copy cannot stand for a missing one: any 64 bits that
                name an element for ever, as the front gives them to `identities`.

        Raises:
            ValueError: `elements` is negative, or the substream had another end time before.

        >>> report = Report(lambda contents, units, commit: print(contents.promises))
        >>> report.expect("control", "raw", "JFK", "2013-01-01", 20, end_time=24)
        >>> report.report(units=["0"])
        (Expect(front='control', segment='raw', substream_index=0, elements=20, revise=False, xor=None),)
        """
        if (elements := whole("elements", elements)) < 0:
            raise ValueError(f"elements={elements} is not valid; a front expects 0 elements or more")
        check_texts(front=front, segment=segment)
        substream = self._substream(scope, name, end_time)
        self._promises.append(Expect(front, segment, substream, elements, revise, xor))

    def identities(
        self, front: str, segment: str, scope: str, name: str, xor: int, end_time: int | None = None
    ) -> None:
        """Give the identities of the elements that this report has of one substream, for a front that expects them.

        Args:
            segment: where the elements are counted as sent.
            xor: of their identities, 64 bits.

        >>> report = Report(lambda contents, units, commit: print(contents.promises))
        >>> report.identities("control", "raw", "JFK", "2013-01-01", 0x5eed ^ 0xbeef)
        >>> report.report(units=["0"])
        (Identities(front='control', segment='raw', substream_index=0, xor=57346),)
        """
        check_texts(front=front, segment=segment)
        self._promises.append(Identities(front, segment, self._substream(scope, name, end_time), xor))

    def finish(self, front: str) -> None:
        """Promise that the front will send no more elements at all."""
        check_texts(front=front)
        self._promises.append(Finish(front))

    def report(self, units: Sequence[str] = (), commit: bool = False) -> Reported:
        """Send the report, and wait for the answer.

        The client repeats the report until the tracker answers, at most for its `retry_for`. This is safe: the tracker
        recognises each unit of an epoch, and a report of units that it has changes nothing. So if an answer is lost,
        the next attempt gives DUPLICATE, or ALREADY_COMMITTED with `commit`: both mean that the tracker has the report,
        once. A program that crashed and does not know what it has reported opens its next run with ``replays=True`` and
        reports the same again.

        Args:
            units: the names of the pieces of the epoch that this report covers. Without any, the report must commit.
            commit: commit the epoch with this report. Plain programs do so: each of their reports is the next epoch.

        Returns:
            The outcome. After PARTIAL_DUPLICATE nothing was applied: build a report without `duplicate_units`.

        Raises:
            TrackerError: ``FENCED`` (a later run has taken over), ``UNKNOWN_SEGMENT``, ``UNKNOWN_FRONT``,
                ``END_TIME_CONFLICT``, ``FRONT_OWNED``, ``EPOCH_STAGED``, ``EXPECT_CONFLICT``, ``DRAINED``, ``SEALED``,
                ``MALFORMED``, ``LIMIT``.
            EpochCommittedError: the epoch was committed before this run was opened; nothing was sent.
            TrackerUnavailable: no answer in time. The tracker may have the report; the caller may send it again.
            OverflowError: more than 2**32 - 1 elements in one entry.
            ValueError: the report neither names units nor commits its epoch; nothing was sent.
        """
        if not units and not commit:
            raise ValueError("the report names no units; send it with commit=True, or name the units that it covers")
        return self._send(self._contents(), units, commit)

    async def await_report(self, units: Sequence[str] = (), commit: bool = False) -> Reported:
        """Send the report as `report` does, without blocking the event loop. A cancelled report may still arrive."""
        return await in_thread(self.report, units, commit)

    def report_in_pieces(
        self, unit: str, split: Callable[[Contents], Iterable[Contents]]
    ) -> list[tuple[str, Reported]]:
        """Send the report in several messages, each a unit of its own: `unit`, ``unit+1``, ``unit+2``, …

        They take effect together, when the epoch is committed. The same contents always give the same messages.

        Args:
            split: cuts the contents, as `tracker.client.report.split` does.

        Returns:
            The units, each with its outcome.

        Raises:
            TrackerError: as `report`; the messages before stay staged.
            TrackerUnavailable: no answer came in time: see `report`.
        """
        return [(name, self._send(piece, [name], False)) for name, piece in self.pieces(unit, split)]

    def pieces(self, unit: str, split: Callable[[Contents], Iterable[Contents]]) -> Iterator[tuple[str, Contents]]:
        """Yield the messages of `report_in_pieces`, each with its unit, and send nothing."""
        for number, piece in enumerate(split(self._contents())):
            yield unit if number == 0 else f"{unit}+{number}", piece

    def token(self) -> Token:
        """Return a token of what this report has sent, for `TrackerClient.wait_for`; call it after `report`.

        Raises:
            ValueError: the tracker has not answered the report, or has applied nothing of it.

        >>> def sell(client, till, order):
        ...     report = till.epoch()
        ...     report.sent("orders", order.shop, order.day, order.label)
        ...     report.report(commit=True)
        ...     return client.wait_for(report.token(), timeout=10).complete
        """
        if self._answer is None or self._answer.outcome is Outcome.PARTIAL_DUPLICATE:
            raise ValueError("the tracker has not taken the report yet; call report.report(…) first")
        assert self.epoch is not None
        return Token(self._of[0], self._answer.log_id, self._of[1], self.epoch, tuple(self._substreams))

    def _send(self, contents: Contents, units: Sequence[str], commit: bool) -> Reported:
        self._answer = self._deliver(contents, units, commit)
        return self._answer

    def _contents(self) -> Contents:
        cells, xor, sent, received = combined([*self._columns, *cells_of(self._cells)])
        if len(sent) and max(sent.max(), received.max()) > _MAX_COUNT:
            raise OverflowError(f"an entry counts at most {_MAX_COUNT} elements; report more often")
        return Contents(
            substreams=list(self._substreams),
            end_times=np.array(self._end_times, np.int64),
            segments=list(self._segments),
            substream_index=(cells >> np.uint64(_SEGMENT_BITS)).astype(np.uint32),
            segment_index=(cells & np.uint64((1 << _SEGMENT_BITS) - 1)).astype(np.uint32),
            xor=xor,
            sent=sent.astype(np.uint32),
            received=received.astype(np.uint32),
            promises=tuple(self._promises),
        )

    def _count(
        self, segment: str, scope: str, name: str, end_time: int | None, xor: int, sent: int, received: int
    ) -> None:
        try:
            bits = index(xor) & _ONES_64
        except TypeError:
            raise TypeError(
                f"label {xor!r} of substream {name!r} in scope {scope!r} is no integer of 64 bits; hash what names the "
                "element, for example with tracker.client.label"
            ) from None
        key = self._substream(scope, name, end_time) << _SEGMENT_BITS | self._segment(segment)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = [0, 0, 0]
        cell[0] ^= bits
        cell[1] += sent
        cell[2] += received

    def _segment(self, segment: str) -> int:
        known = self._segments.get(segment)
        if known is None:
            check_texts(segment=segment)
            known = self._segments[segment] = len(self._segments)
            if known >> _SEGMENT_BITS:
                raise OverflowError(f"a report has at most {1 << _SEGMENT_BITS} segments; split it")
        return known

    def _substream(self, scope: str, name: str, end_time: int | None) -> int:
        time = NO_END_TIME if end_time is None else end_time
        known = self._substreams.get((scope, name))
        if known is None:
            check_texts(scope=scope, name=name)
            try:
                self._end_times.append(time)  # before the dictionary, since it may refuse
            except (TypeError, OverflowError) as error:
                raise type(error)(
                    f"end_time={end_time!r} of substream {name!r} in scope {scope!r} is no 64-bit integer; give the "
                    "job's own number for the time, such as microseconds, or None"
                ) from None
            known = self._substreams[scope, name] = len(self._substreams)
        elif self._end_times[known] != time:
            raise _two_end_times(scope, name, self._end_times[known], time)
        return known

    def _bind(self, substreams: NDArray[np.int64], known: int, times: NDArray[np.int64]) -> None:
        """Keep the end times of new substreams, and compare the end times of all rows."""
        bound = np.full(len(self._substreams), NO_END_TIME, np.int64)
        bound[:known] = self._end_times
        new = substreams >= known
        bound[substreams[new]] = times[new]
        differing = np.flatnonzero(bound[substreams] != times)
        if len(differing):
            pairs = list(self._substreams)
            for pair in pairs[known:]:
                del self._substreams[pair]
            row = int(differing[0])
            at = int(substreams[row])
            raise _two_end_times(*pairs[at], int(bound[at]), int(times[row]))
        self._end_times = array("q", bound.tobytes())


def _two_end_times(scope: str, name: str, one: int, other: int) -> ValueError:
    times = " and ".join("none" if time == NO_END_TIME else str(time) for time in (one, other))
    return ValueError(f"substream {name!r} of scope {scope!r} has two end times, {times}; a substream has one")
