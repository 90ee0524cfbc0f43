"""The queries on Bytewax: `EventClock`, windowers and `fold_window`, on a clock that the workload moves.

Bytewax has a watermark for each key: its newest time, less a wait, plus the time that has passed on the system's clock
since. That clock is the workload's here (`now_getter`), so that minutes of it pass as the rows arrive. Between the
steps the source pauses, and Bytewax closes the windows whose time has come.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as w
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LENGTH, SLIDE, GAP = timedelta(minutes=10), timedelta(minutes=5), timedelta(minutes=10)
_AT_ONCE = 10_000  #: milliseconds of the workload that are read at once
_PAUSE = timedelta(milliseconds=100)  #: after a step

Row = dict[str, Any]


class Clock:
    """The workload's time, and its step."""

    def __init__(self, start: int) -> None:
        self.now = time_of(start)
        self.step = 0

    def get(self) -> datetime:
        """Return the time."""
        return self.now


def time_of(milliseconds: int) -> datetime:
    """Return a time of the workload."""
    return EPOCH + timedelta(milliseconds=milliseconds)


class Rows(StatelessSourcePartition[Row]):
    """The rows, in order of arrival; the clock goes with them."""

    def __init__(self, steps: list[dict[str, Any]], clock: Clock) -> None:
        self._clock = clock
        self._parts = list(self._cut(steps))
        self._awake: datetime | None = None

    @staticmethod
    def _cut(steps: list[dict[str, Any]]) -> Iterable[tuple[int, int, bool, list[Row]]]:
        for step in steps:
            rows = step["rows"]
            while rows:
                until = rows[0]["arrives"] + _AT_ONCE
                part = [row for row in rows if row["arrives"] < until]
                rows = rows[len(part) :]
                yield step["number"], part[-1]["arrives"], False, part
            yield step["number"], step["until"], True, []

    def next_batch(self) -> list[Row]:
        if not self._parts:  # a stream does not end: at its end Bytewax would close all windows, whatever is in them
            sys.stdout.flush()
            os._exit(0)
        step, now, ends, rows = self._parts.pop(0)
        self._clock.step, self._clock.now = step, time_of(now)
        self._awake = datetime.now(timezone.utc) + _PAUSE if ends else None
        if ends:
            print(f"step {step + 1}", flush=True)
        return rows

    def next_awake(self) -> datetime | None:
        return self._awake


class Source(DynamicSource[Row]):
    """The workload."""

    def __init__(self, steps: list[dict[str, Any]], clock: Clock) -> None:
        self._steps = steps
        self._clock = clock

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Rows:  # noqa: ARG002
        return Rows(self._steps, self._clock)


class Lines(StatelessSinkPartition[dict[str, Any]]):
    """Writer of results, with the step in which they come."""

    def __init__(self, out: Path, clock: Clock) -> None:
        self._file = out.open("a", buffering=1)
        self._clock = clock

    def write_batch(self, items: list[dict[str, Any]]) -> None:
        for item in items:
            self._file.write(json.dumps({**item, "step": self._clock.step}) + "\n")


class Sink(DynamicSink[dict[str, Any]]):
    """A file of lines."""

    def __init__(self, out: Path, clock: Clock) -> None:
        self._out = out
        self._clock = clock

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Lines:  # noqa: ARG002
        return Lines(self._out, self._clock)


def fold(state: list[int], row: Row) -> list[int]:
    """Count a row: bids, volume, highest, auctions, first and last time."""
    bids, volume, highest, auctions, first, last = state
    first, last = min(first, row["at"]), max(last, row["at"])
    if row["kind"] == "auction":
        return [bids, volume, highest, auctions + 1, first, last]
    return [bids + 1, volume + row["price"], max(highest, row["price"]), auctions, first, last]


def merge(one: list[int], other: list[int]) -> list[int]:
    """Merge two sessions into one."""
    sums = [a + b for a, b in zip(one[:4], other[:4], strict=True)]
    return [*sums[:2], max(one[2], other[2]), sums[3], min(one[4], other[4]), max(one[5], other[5])]


def entity_of(query: str, row: Row) -> int:
    """Return the group of a row in a query besides the tenant."""
    return 0 if query == "tumbling" else int(row["person" if query == "session" else "auction"])


def windower(query: str) -> w.Windower[Any]:
    """Return the windows of a query."""
    if query == "session":
        return w.SessionWindower(gap=GAP)
    if query == "sliding":
        return w.SlidingWindower(length=LENGTH, offset=SLIDE, align_to=EPOCH)
    return w.TumblingWindower(length=LENGTH, align_to=EPOCH)


def result(query: str) -> Callable[[tuple[str, tuple[int, list[int]]]], dict[str, Any] | None]:
    """Make a line of the fold of a window; None: it is no result."""
    step = SLIDE if query == "sliding" else LENGTH

    def line(item: tuple[str, tuple[int, list[int]]]) -> dict[str, Any] | None:
        key, (window, (bids, volume, highest, auctions, first, last)) = item
        if not bids or (query == "join" and not auctions):
            return None
        tenant, entity = key.split(":")
        begin = window * step // timedelta(milliseconds=1)
        bounds = {"begin": begin, "end": begin + LENGTH // timedelta(milliseconds=1)}
        if query == "session":
            bounds = {"begin": first, "end": last + GAP // timedelta(milliseconds=1)}
        figures = {"bids": bids, "volume": volume, "highest": highest}
        return {"query": query, "tenant": tenant, "entity": int(entity), **bounds, **figures}

    return line


def dataflow(workload: dict[str, Any], out: Path, options: dict[str, Any]) -> Dataflow:
    """Return all queries over one stream."""
    clock = Clock(workload["steps"][0]["until"])
    flow = Dataflow("queries")
    rows = op.input("rows", flow, Source(workload["steps"], clock))
    for query in options["queries"]:
        kinds = ("bid", "auction") if query == "join" else ("bid",)
        wanted = op.filter(f"{query} rows", rows, lambda row, kinds=kinds: row["kind"] in kinds)
        keyed = op.key_on(f"{query} key", wanted, lambda row, q=query: f"{row['tenant']}:{entity_of(q, row)}")
        event_clock = w.EventClock(
            ts_getter=lambda row: time_of(row["at"]),
            wait_for_system_duration=timedelta(minutes=options["delay"]),
            now_getter=clock.get,
        )
        nothing = [0, 0, 0, 0, 1 << 62, 0]
        windows = w.fold_window(query, keyed, event_clock, windower(query), nothing.copy, fold, merge)
        lines = op.filter_map(f"{query} line", windows.down, result(query))
        op.output(f"{query} out", lines, Sink(out, clock))
        late = op.map(f"{query} late", windows.late, lambda _, q=query: {"query": q, "late": 1})
        op.output(f"{query} late out", late, Sink(out, clock))
    return flow


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    run_main(dataflow(given, Path(sys.argv[2]), json.loads(sys.argv[3])))
