"""What one report says, gathered and combined before it is sent.

A message is dear and an entry is cheap: so entries of the same substream and segment become one here, however many
elements they speak of. This module knows nothing of the wire or of how a report is delivered.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracker.contract.bounds import MAX_EPOCH
from tracker.contract.callers import Contents, Reported
from tracker.contract.promises import Close, Expect, Finish, Frontier, Promise
from tracker.contract.values import NO_END_TIME

_SEGMENT_BITS = 16
_ONES_64 = 2**64 - 1
_MAX_COUNT = 2**32 - 1

_Rows: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]


class Report:
    """One report in the making: entries and promises of one or more units of an epoch.

    Made by `Producer.epoch`. The order of the calls does not matter, except that promises keep theirs: a report's
    entries take effect before its promises. For one thread at a time.

    >>> said = []
    >>> report = Report(lambda contents, units, commit: said.append(contents))
    >>> report.sent("raw", "JFK", "2013-01-01", 0b0110, end_time=24)
    >>> report.sent("raw", "JFK", "2013-01-01", 0b0101, end_time=24)
    >>> report.received("raw", "JFK", "2013-01-01", 0b0110, end_time=24)
    >>> report.report(units=["read/0"])
    >>> said[0].xor, said[0].sent, said[0].received
    (array([5], dtype=uint64), array([2], dtype=uint32), array([1], dtype=uint32))
    """

    def __init__(self, send: Callable[[Contents, Sequence[str], bool], Reported], epoch: int | None = None) -> None:
        self.epoch = epoch  #: which epoch it is part of
        self._send = send
        self._substreams: dict[tuple[str, str], int] = {}
        self._end_times = array("q")  # one for each substream, in the order of the dictionary
        self._segments: dict[str, int] = {}
        self._cells: dict[int, list[int]] = {}  # (substream, segment) -> [xor, sent, received]
        self._columns: list[_Rows] = []
        self._promises: list[Promise] = []

    def sent(self, segment: str, scope: str, name: str, label: int, end_time: int | None = None) -> None:
        """One element with this label was put on the segment.

        Args:
            segment: the edge of the dataflow that it travels.
            scope: of the element's substream.
            name: of the element's substream.
            label: 64 bits; negative numbers are taken as their two's complement, as Spark's `xxhash64` gives them.
            end_time: the substream's, if it has one: the same each time that it is named.

        Raises:
            ValueError: another end time than before.
        """
        cell = self._cell(segment, scope, name, end_time)
        cell[0] ^= label & _ONES_64
        cell[1] += 1

    def received(self, segment: str, scope: str, name: str, label: int, end_time: int | None = None) -> None:
        """One element with this label was taken off the segment. What it gave rise to is reported no later."""
        cell = self._cell(segment, scope, name, end_time)
        cell[0] ^= label & _ONES_64
        cell[2] += 1

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
        """Many elements at once: the XOR of their labels, and how many were sent and received."""
        if sent < 0 or received < 0:
            raise ValueError(f"sent={sent}, received={received} are not valid counts; use 0 or more")
        cell = self._cell(segment, scope, name, end_time)
        cell[0] ^= xor & _ONES_64
        cell[1] += sent
        cell[2] += received

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
        """Many substreams at once, in columns of equal length: one row a substream (or more; they are combined).

        Args:
            segment: the edge of the dataflow, for all rows.
            scopes: strings.
            names: strings.
            end_times: 64-bit integers, `NO_END_TIME` in rows that have none; None: no row has one.
            xor: 64-bit integers, signed or not.
            sent: counts.
            received: counts.

        Raises:
            ValueError: the columns differ in length, a count is negative, or a substream has two end times.
            TypeError: a column of numbers holds something else than integers.

        >>> report = Report(lambda contents, units, commit: print(contents.sent))
        >>> report.add_columns("raw", ["JFK", "LGA"], ["d1", "d1"], None, [7, -7], [10, 20], [0, 0])
        >>> report.report(units=["0"])
        [10 20]
        """
        folded, sents, receiveds = (
            _integers("xor", xor).view(np.uint64),
            _integers("sent", sent),
            _integers("received", received),
        )
        rows = len(names)
        lengths = [len(scopes), rows, len(folded), len(sents), len(receiveds)]
        times = np.full(rows, NO_END_TIME, np.int64) if end_times is None else _integers("end_times", end_times)
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
        pairs = zip(_strings(scopes), _strings(names), strict=True)
        substreams = np.fromiter((name(pair, len(table)) for pair in pairs), np.int64, rows)
        self._bind(substreams, known, times)
        cells = (substreams.astype(np.uint64) << np.uint64(_SEGMENT_BITS)) | np.uint64(self._segment(segment))
        self._columns.append((cells, folded, sents, receiveds))

    def frontier(self, front: str, time: int, scope: str | None = None) -> None:
        """Promises that the front will send no more elements of substreams with an end time up to `time`."""
        self._promises.append(Frontier(front, time, scope))

    def close(self, scope: str, name: str, end_time: int | None = None, front: str = "") -> None:
        """Promises that the front will send no more elements of one substream.

        Args:
            scope: the substream's.
            name: the substream's.
            end_time: the substream's, if it has one.
            front: empty: the caller is the only source of the substream.
        """
        self._promises.append(Close(front, self._substream(scope, name, end_time)))

    def expect(
        self,
        front: str,
        segment: str,
        scope: str,
        name: str,
        elements: int,
        end_time: int | None = None,
        revise: bool = False,
    ) -> None:
        """Promises that the front sends exactly so many elements of one substream on a segment.

        The substream is known from then on, also if nobody has sent any of it, and it is closed for the front once so
        many were sent there: by anybody, before or after, as far as it is committed. Where several fronts feed the
        segment, their numbers add up, and each of them must give one (0 counts), or finish. A front that expects a
        substream does not also close it: its frontiers and closes do not count for it.

        Args:
            front: whose number it is.
            segment: on which the elements are counted as sent.
            scope: the substream's.
            name: the substream's.
            elements: how many in all, 0 or more.
            end_time: the substream's, if it has one.
            revise: take the place of another number that the front has given. Without it, another number is refused
                (``EXPECT_CONFLICT``), as it is once the substream has ended on the segment.

        >>> report = Report(lambda contents, units, commit: print(contents.promises))
        >>> report.expect("control", "raw", "JFK", "2013-01-01", 20, end_time=24)
        >>> report.report(units=["0"])
        (Expect(front='control', segment='raw', substream_index=0, elements=20, revise=False),)
        """
        if elements < 0:
            raise ValueError(f"elements={elements} is not valid; a front expects 0 elements or more")
        self._promises.append(Expect(front, segment, self._substream(scope, name, end_time), elements, revise))

    def finish(self, front: str) -> None:
        """Promises that the front will send nothing more at all."""
        self._promises.append(Finish(front))

    def report(self, units: Sequence[str] = (), commit: bool = False) -> Reported:
        """Sends what was gathered, and waits for the answer.

        Sent again until it is answered, for as long as the client's `retry_for` says. This is safe: the tracker knows
        each unit of an epoch, and a report of units that it knows changes nothing. If an answer is lost, the next
        attempt's is therefore DUPLICATE, or ALREADY_COMMITTED with `commit`: both say that what this report says has
        been taken, once. A program that crashed and does not know what it had said opens its next run with
        ``replays=True`` and reports the same again.

        Args:
            units: which pieces of the epoch this report covers. Without any, it must commit.
            commit: commit the epoch with this report, as a plain program does that reports each flush as its next
                epoch.

        Returns:
            The outcome. After PARTIAL_DUPLICATE nothing was applied: build a report without `duplicate_units`.

        Raises:
            TrackerError: ``FENCED`` (a later run has taken over), ``UNKNOWN_SEGMENT``, ``UNKNOWN_FRONT``,
                ``END_TIME_CONFLICT``, ``FRONT_OWNED``, ``EPOCH_STAGED``, ``EXPECT_CONFLICT``, ``DRAINED``, ``SEALED``,
                ``MALFORMED``, ``LIMIT``.
            EpochCommittedError: the epoch was committed before this run was opened; nothing was sent.
            TrackerUnavailable: no answer in time. The report may have been taken; it may be sent again.
            OverflowError: more than 2**32 - 1 elements in one entry.
        """
        return self._send(self._contents(), units, commit)

    def report_in_pieces(
        self, unit: str, split: Callable[[Contents], Iterable[Contents]]
    ) -> list[tuple[str, Reported]]:
        """Sends what was gathered in several messages, each a unit of its own: `unit`, ``unit+1``, ``unit+2``, …

        They take effect together, when the epoch is committed. Sent again, they are the same if the contents are.

        Args:
            unit: the piece of the epoch that this report covers.
            split: cuts it, as `tracker.client.pieces.split` does.

        Returns:
            The units, each with its outcome.

        Raises:
            TrackerError: as `report`; what was sent before stays, as long as the epoch is not committed.
            TrackerUnavailable: as `report`.
        """
        names = (unit if number == 0 else f"{unit}+{number}" for number in count())
        return [(name, self._send(piece, [name], False)) for piece, name in zip(split(self._contents()), names)]  # noqa: B905

    def _contents(self) -> Contents:
        cells, xor, sent, received = self._combined()
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

    def _combined(self) -> _Rows:
        """All rows, one for each (substream, segment)."""
        columns = list(self._columns)
        if self._cells:
            gathered = self._cells.values()
            columns.append(
                (
                    np.fromiter(self._cells, np.uint64, len(gathered)),
                    np.fromiter((cell[0] for cell in gathered), np.uint64, len(gathered)),
                    np.fromiter((cell[1] for cell in gathered), np.int64, len(gathered)),
                    np.fromiter((cell[2] for cell in gathered), np.int64, len(gathered)),
                )
            )
        if not columns:
            return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
        cells, xor, sent, received = (
            np.concatenate([rows[0] for rows in columns]),
            np.concatenate([rows[1] for rows in columns]),
            np.concatenate([rows[2] for rows in columns]),
            np.concatenate([rows[3] for rows in columns]),
        )
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

    def _cell(self, segment: str, scope: str, name: str, end_time: int | None) -> list[int]:
        key = self._substream(scope, name, end_time) << _SEGMENT_BITS | self._segment(segment)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = [0, 0, 0]
        return cell

    def _segment(self, segment: str) -> int:
        index = self._segments.setdefault(segment, len(self._segments))
        if index >> _SEGMENT_BITS:
            raise OverflowError(f"a report has at most {1 << _SEGMENT_BITS} segments; split it")
        return index

    def _substream(self, scope: str, name: str, end_time: int | None) -> int:
        time = NO_END_TIME if end_time is None else end_time
        index = self._substreams.get((scope, name))
        if index is None:
            self._end_times.append(time)  # first: it refuses what is not a 64-bit integer
            index = self._substreams[scope, name] = len(self._substreams)
        elif self._end_times[index] != time:
            raise _two_end_times(scope, name, self._end_times[index], time)
        return index

    def _bind(self, substreams: NDArray[np.int64], known: int, times: NDArray[np.int64]) -> None:
        """Keeps the end times of those that are not known yet, and compares those of all rows."""
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


def checked_epoch(epoch: int | None) -> int | None:
    """An epoch as the tracker takes it.

    Raises:
        ValueError: it is negative, or no 62 bits are enough for it.

    >>> checked_epoch(-1)
    Traceback (most recent call last):
    ValueError: epoch=-1 is out of range; epochs are 0, 1, 2, … up to 2^62 - 1
    """
    if epoch is not None and not 0 <= epoch <= MAX_EPOCH:
        raise ValueError(f"epoch={epoch} is out of range; epochs are 0, 1, 2, … up to 2^62 - 1")
    return epoch


def _strings(
    column: Sequence[str] | NDArray[np.object_] | NDArray[np.str_],
) -> Sequence[str]:
    strings: Sequence[str] = column.tolist() if isinstance(column, np.ndarray) else column
    return strings


def _integers(name: str, column: ArrayLike) -> NDArray[np.int64]:
    """The column in 64 bits; numbers past 2**63 - 1 come out negative, with the same bits."""
    numbers = np.asarray(column)
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64).view(np.int64)
    if numbers.dtype.kind != "i" and numbers.size:
        raise TypeError(f"column {name} must hold 64-bit integers, not {numbers.dtype}")
    return numbers.astype(np.int64)


def _two_end_times(scope: str, name: str, one: int, other: int) -> ValueError:
    said = " and ".join("none" if time == NO_END_TIME else str(time) for time in (one, other))
    return ValueError(f"substream {name!r} of scope {scope!r} has two end times, {said}; a substream has one")
