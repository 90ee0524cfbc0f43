"""Spark with its own watermark: the queries in append mode, as its guide writes them, with a delay that is a guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.exactness.engine import Run, Show
from benchmarks.exactness.stepwise import (
    BIDS,
    GAPS,
    IDENTITY,
    SLIDING,
    TUMBLING,
    Collected,
    Feed,
    figures,
    play,
    shaped,
)
from benchmarks.exactness.workload import Step, Workload
from examples.flights.spark import local_session


def _tumbling(rows: DataFrame) -> DataFrame:
    return shaped(rows.where(BIDS).groupBy("tenant", F.window("at", TUMBLING)).agg(*_figures()), None)


def _sliding(rows: DataFrame) -> DataFrame:
    windows = rows.where(BIDS).groupBy("tenant", "auction", F.window("at", TUMBLING, SLIDING))
    return shaped(windows.agg(*_figures()), "auction")


def _session(rows: DataFrame) -> DataFrame:
    sessions = rows.where(BIDS).groupBy("tenant", "person", F.session_window("at", GAPS).alias("window"))
    return shaped(sessions.agg(*_figures()), "person")


def _join(rows: DataFrame) -> DataFrame:
    by = ["tenant", "auction", "window"]
    windows = rows.withColumn("window", F.window("at", TUMBLING))
    auctions = windows.where("kind = 'auction'").select(*by)
    joined = auctions.join(windows.where(BIDS).select(*by, "price"), by)
    return shaped(joined.groupBy(*by).agg(*_figures()), "auction")


def _figures() -> list[Column]:
    return [column.alias(name) for name, column in figures().items()]


#: Spark's queries over rows that have a watermark on `at`.
NATIVE: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "tumbling": _tumbling,
    "sliding": _sliding,
    "session": _session,
    "join": _join,
}


class Watermark:
    """Spark with `withWatermark`."""

    queries = tuple(NATIVE)

    def __init__(self, delay: str, *, unique: bool = False) -> None:
        """Run with a watermark.

        Args:
            delay: of the watermark, `5 minutes` say.
            unique: take each row once, by `dropDuplicatesWithinWatermark`.
        """
        self.name = f"Spark, watermark of {delay}" + ", rows deduplicated" * unique
        self.configured = (
            f'`withWatermark("at", "{delay}")`, append mode; empty batches move the watermark (the default)'
        )
        self._delay = delay
        self._unique = unique

    def run(self, workload: Workload, queries: Sequence[str], directory: Path, show: Show) -> Mapping[str, Run]:
        """See `Engine`."""
        with local_session(directory) as spark:
            feed, collected = Feed(directory), Collected()
            rows = feed.stream(spark).withWatermark("at", self._delay)
            if self._unique:
                rows = rows.dropDuplicatesWithinWatermark(IDENTITY)
            running = [
                NATIVE[query](rows)
                .writeStream.outputMode("append")
                .option("checkpointLocation", str(directory / query))
                .foreachBatch(collected.taker(query))
                .start()
                for query in queries
            ]
            return play(workload, feed, _Running(running, queries), collected, show)


class _Running:
    def __init__(self, running: Sequence[StreamingQuery], names: Sequence[str]) -> None:
        self._running = running
        self._names = names

    def before(self, step: Step) -> None:
        pass

    def settle(self) -> None:
        with ThreadPoolExecutor(len(self._running)) as together:
            list(together.map(StreamingQuery.processAllAvailable, self._running))

    def close(self) -> Mapping[str, int | None]:
        for query in self._running:
            query.stop()
        return dict.fromkeys(self._names)
