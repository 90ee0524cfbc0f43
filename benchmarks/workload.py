"""The benchmarks' reports: one element for each of many open substreams, in random order.

A pass over the substreams sends an element into each, the next receives it: accounts balance and unbalance as they do
in a running job, and nothing ends, because the job's one front promises nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracker.wire.codec import pack_i8, pack_u4, pack_u8
from tracker.wire.gen import columns_pb2

JOB: Final = "bench"
SEGMENT: Final = "raw"
FRONT: Final = "source"
NAMED_AT_ONCE: Final = 10_000  #: substreams in each of the reports that open them
_TENANTS: Final = 1000


def scopes() -> list[str]:
    """Return the table of scopes that `scope_index` points into."""
    return [f"tenant-{number:04}" for number in range(_TENANTS)]


def names(places: NDArray[np.int64]) -> list[str]:
    """Return freshly made strings, as a message that was just read gives them."""
    return [f"window-{place:09}" for place in places.tolist()]


def scope_index(places: NDArray[np.int64]) -> NDArray[np.uint32]:
    return (places % _TENANTS).astype(np.uint32)


def end_times(places: NDArray[np.int64]) -> NDArray[np.int64]:
    return places // _TENANTS


def labels(places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a label for each substream; odd, so never 0, and far from each other."""
    numbers: NDArray[np.uint64] = (places.astype(np.uint64) * np.uint64(2) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    return numbers


@dataclass(frozen=True, slots=True)
class Passes:
    """The substreams of the reports of a pass: all of them once, in random order.

    Args:
        substreams: how many there are.
        entries: of each report.
        seed: another gives another order.
    """

    substreams: int
    entries: int
    seed: int

    def places(self) -> Iterator[NDArray[np.int64]]:
        order = np.random.default_rng(self.seed).permutation(self.substreams)
        for start in range(0, self.substreams - self.entries + 1, self.entries):
            yield order[start : start + self.entries]


def opening(substreams: int) -> Iterator[NDArray[np.int64]]:
    """Yield the substreams of the reports that open them all by name."""
    for start in range(0, substreams, NAMED_AT_ONCE):
        yield np.arange(start, min(start + NAMED_AT_ONCE, substreams))


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of all substreams, and the log that they are of."""

    numbers: NDArray[np.uint64]
    log_id: str


def columns(places: NDArray[np.int64], *, sent: int, received: int, ids: Ids | None) -> bytes:
    """Return a report's columns on the wire; with a header in front of them, they are a whole report.

    Args:
        places: the substreams it speaks of.
        sent: how many elements each has sent, 0 or 1.
        received: and how many received.
        ids: to speak of them by id; None: by name, and to ask for their ids.
    """
    rows = len(places)
    message = columns_pb2.ReportRequest(
        segments=[SEGMENT],
        substream_index=pack_u4(np.arange(rows)),
        segment_index=pack_u4(np.zeros(rows)),
        xor=pack_u8(labels(places) * np.uint64(sent ^ received)),
        sent=pack_u4(np.full(rows, sent)),
        received=pack_u4(np.full(rows, received)),
        entry_count=rows,
        commit=True,
    )
    if ids is None:
        message.scopes.extend(scopes())
        message.names.extend(names(places))
        message.scope_index = pack_u4(scope_index(places))
        message.end_times = pack_i8(end_times(places))
    else:
        message.substream_ids = pack_u8(ids.numbers[places])
        message.log_id = ids.log_id
    return message.SerializeToString()


def header(producer: str, epoch: int) -> bytes:
    """Return the beginning of a report, to be put in front of `columns`."""
    return columns_pb2.ReportRequest(
        job=JOB, producer=producer, run="r1", epoch=epoch, units=["unit"]
    ).SerializeToString()
