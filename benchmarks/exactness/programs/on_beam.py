"""The queries on Apache Beam's direct runner, fed by `TestStream`, with a watermark like that of Beam's Kafka source.

A partition's watermark is its newest time less a delay; of a partition that had no rows in a step, and of which all
has been read, it is the clock's time less the delay, as in `CustomTimestampPolicyWithLimitedDelay` of `KafkaIO`. The
source's watermark is the earliest of them. Windows fire once, after the watermark (the default trigger), and no
lateness is allowed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms import window

LENGTH, SLIDE, GAP = 600, 300, 600  #: seconds
Row = dict[str, Any]
_ENDED = -1  #: instead of a step: what comes now, comes by the stream's end
_STEP = (
    "EXACTNESS_STEP"  #: the step whose rows are on their way; functions are pickled, so no global of theirs is shared
)


class Figures(beam.CombineFn):
    """Bids, their volume, the highest, and how many auctions there were."""

    def create_accumulator(self) -> tuple[int, int, int, int]:
        return 0, 0, 0, 0

    def add_input(self, state: tuple[int, int, int, int], row: Row) -> tuple[int, int, int, int]:
        bids, volume, highest, auctions = state
        if row["kind"] == "auction":
            return bids, volume, highest, auctions + 1
        return bids + 1, volume + row["price"], max(highest, row["price"]), auctions

    def merge_accumulators(self, states: Iterable[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
        all_of = list(states)
        return (
            sum(state[0] for state in all_of),
            sum(state[1] for state in all_of),
            max((state[2] for state in all_of), default=0),
            sum(state[3] for state in all_of),
        )

    def extract_output(self, state: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        return state


class Clock(beam.DoFn):
    """A clock that takes the step from a marker, sent before a step's rows."""

    def process(self, row: Row) -> Iterator[Row]:
        if row["kind"] == "step":
            os.environ[_STEP] = str(row["number"])
            print(f"step {row['number'] + 1}", flush=True)
        else:
            yield row


class Write(beam.DoFn):
    """Writer of a result with its window and the step in which it comes."""

    def __init__(self, query: str, out: str) -> None:
        self._query = query
        self._out = out

    def process(
        self, result: tuple[tuple[str, int], tuple[int, int, int, int]], window: Any = beam.DoFn.WindowParam
    ) -> None:
        step = int(os.environ[_STEP])
        if step == _ENDED:
            return
        (tenant, entity), (bids, volume, highest, auctions) = result
        if not bids or (self._query == "join" and not auctions):
            return
        bounds = {"begin": window.start.micros // 1000, "end": window.end.micros // 1000}
        figures = {"bids": bids, "volume": volume, "highest": highest}
        line = {"query": self._query, "tenant": tenant, "entity": entity, **bounds, **figures}
        line["step"] = step
        with Path(self._out).open("a") as file:
            file.write(json.dumps(line) + "\n")


def windows_of(query: str) -> Any:
    """Return the windows of a query."""
    return {
        "sliding": window.SlidingWindows(LENGTH, SLIDE),
        "session": window.Sessions(GAP),
    }.get(query, window.FixedWindows(LENGTH))


def key_of(query: str, row: Row) -> tuple[str, int]:
    """Return the group of a row in a query."""
    entity = 0 if query == "tumbling" else row["person" if query == "session" else "auction"]
    return row["tenant"], entity


def stream(workload: dict[str, Any], delay: int) -> TestStream:
    """Return the steps' rows, and the watermark after each part of them.

    Args:
        workload: as it was written.
        delay: milliseconds.
    """
    made = TestStream()
    newest = dict.fromkeys(range(workload["partitions"]), 0)
    watermark = workload["steps"][0]["until"] - 86_400_000

    def advance() -> None:
        nonlocal watermark
        if min(newest.values()) > watermark:
            watermark = min(newest.values())
            made.advance_watermark_to(watermark / 1000)

    for step in workload["steps"]:
        marker = {"kind": "step", "number": step["number"]}
        made.add_elements([window.TimestampedValue(marker, watermark / 1000)])
        rows = step["rows"]
        came = {row["part"] for row in rows}
        while rows:
            until = rows[0]["arrives"] + 10_000  # a bundle: what arrives within ten seconds
            part = [row for row in rows if row["arrives"] < until]
            rows = rows[len(part) :]
            made.add_elements([window.TimestampedValue(row, row["at"] / 1000) for row in part])
            for row in part:
                newest[row["part"]] = max(newest[row["part"]], row["at"] - delay)
            advance()
        for idle in newest.keys() - came:
            newest[idle] = max(newest[idle], step["until"] - delay)
        advance()
    # A stream does not end: at the end of this one Beam closes all windows, whatever is in them. Those do not count.
    made.add_elements([window.TimestampedValue({"kind": "step", "number": _ENDED}, watermark / 1000)])
    return made


def main() -> None:
    """Run all queries as one pipeline."""
    workload = json.loads(Path(sys.argv[1]).read_text())
    options = json.loads(sys.argv[3])
    pipeline = beam.Pipeline(
        runner="BundleBasedDirectRunner", options=PipelineOptions(["--streaming", "--allow_unsafe_triggers"])
    )
    rows = pipeline | stream(workload, options["delay"] * 60_000) | beam.ParDo(Clock())
    for query in options["queries"]:
        kinds = ("bid", "auction") if query == "join" else ("bid",)
        _ = (
            rows
            | f"{query} rows" >> beam.Filter(lambda row, kinds=kinds: row["kind"] in kinds)
            | f"{query} windows" >> beam.WindowInto(windows_of(query))
            | f"{query} keys" >> beam.Map(lambda row, query=query: (key_of(query, row), row))
            | f"{query} figures" >> beam.CombinePerKey(Figures())
            | f"{query} out" >> beam.ParDo(Write(query, sys.argv[2]))
        )
    pipeline.run().wait_until_finish()


if __name__ == "__main__":
    main()
