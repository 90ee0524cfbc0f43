"""Pieces of a report that is too large for one message.

Each of them is a unit of its own, and the epoch commits them together. This module does not depend on the wire format;
it only assumes that a server limits what one message may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracker.contract.commands import Contents
from tracker.contract.promises import Close, Expect, Promise

_About: TypeAlias = Close | Expect  #: promises about one substream
_ABOUT = (Close, Expect)

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
    about: dict[int, list[_About]] = {}
    for promise in contents.promises:
        if isinstance(promise, _ABOUT):
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
    contents: Contents, ordered: NDArray[np.int64], about: Mapping[int, Sequence[_About]], largest: Largest
) -> Iterator[tuple[int, int]]:
    """Substreams that make a piece, from the first to the one after the last."""
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
