"""The same count of visits in Spark's state store, ended in three ways: the tracker, a time to live, a watermark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]
from pyspark.sql.streaming.query import StreamingQuery

from examples.state.replay import SCHEMA, STEP, Entry, Replay, hour_of
from spark_client import Frontier, SubstreamEnd, SubstreamKey, SubstreamProcessor, Tracking


@dataclass
class Outcome:
    """Outcome of one way.

    Attributes:
        name: of the way.
        rows: of state, after each step.
        released: the last count that came out of each entry.
    """

    name: str
    rows: list[int] = field(default_factory=list)
    released: dict[Entry, int] = field(default_factory=dict)

    def wrong(self, truth: dict[Entry, int]) -> int:
        """Count the entries that have another count than they should, or none."""
        return sum(self.released.get(entry) != visits for entry, visits in truth.items())


class Visits(SubstreamProcessor):
    """Counts visits by user, and gives the counts at the end."""

    def init(self, handle: Any) -> None:
        self.visits = handle.getMapState("visits", "user string", "visits long")

    def handleInputRows(self, key: SubstreamKey, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        for row in rows:
            (visits,) = self.visits.getValue((row.user,)) or (0,)
            self.visits.updateValue((row.user,), (visits + 1,))
        return iter([])

    def handleEnd(self, key: SubstreamKey, end: SubstreamEnd) -> Iterator[Row]:  # noqa: ARG002, N802
        for (user,), (visits,) in self.visits.iterator():
            yield Row(user=user, visits=visits)


class WithTimeToLive(StatefulProcessor):
    """Counts visits by user; an entry goes some time after its last change, so each change gives a count."""

    def __init__(self, ttl: int) -> None:
        self._ttl = ttl

    def init(self, handle: Any) -> None:
        self.visits = handle.getMapState("visits", "user string", "visits long", self._ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        for row in rows:
            (visits,) = self.visits.getValue((row.user,)) or (0,)
            self.visits.updateValue((row.user,), (visits + 1,))
            yield Row(tenant=key[0], start=key[1], user=row.user, visits=visits + 1)

    def close(self) -> None:
        pass


def by_tracker(spark: SparkSession, replay: Replay, directory: Path, server: str) -> Outcome:
    """End each tenant's hour when its own rows show that it is over: they come in the order of its own clock."""
    outcome = Outcome("ended by the tracker")
    with Tracking(spark, "visits", server) as tracking:
        steps = replay.publish(directory / "raw")
        next(steps)
        raw = _stream(spark, directory / "raw")
        front = Frontier("0 seconds", per_scope=True)
        visits = tracking.source(raw, "visits", scope="tenant", window=("at", "1 hour"), front=front)
        counted = tracking.transform_with_state(visits, Visits(), "user string, visits long")
        writer = counted.writeStream.foreachBatch(
            lambda rows, _: _take(outcome, rows.withColumn("start", F.col("window.start")))
        )
        query = writer.option("checkpointLocation", directory / "cp").start()
        for step in chain([0], steps):
            tracking.process_all_available()
            if step == replay.last:
                tracking.finish(visits)
                tracking.process_all_available()
            outcome.rows.append(_state_rows(query))
    return outcome


def by_watermark(spark: SparkSession, replay: Replay, directory: Path, hours: int) -> Outcome:
    """Use Spark's own aggregation: an hour ends for all tenants at once."""
    outcome = Outcome(f"Spark's watermark, {hours} h")
    steps = replay.publish(directory / "raw")
    next(steps)
    raw = _stream(spark, directory / "raw").withWatermark("at", f"{hours} hours")
    counted = raw.groupBy("tenant", F.window("at", "1 hour"), "user").agg(F.count("*").alias("visits"))
    counted = counted.withColumn("start", F.col("window.start"))
    writer = counted.writeStream.outputMode("update").foreachBatch(lambda rows, _: _take(outcome, rows))
    query = writer.option("checkpointLocation", str(directory / "cp")).start()
    for _ in chain([0], steps):
        query.processAllAvailable()
        outcome.rows.append(_state_rows(query))
    query.stop()
    return outcome


def by_times_to_live(
    spark: SparkSession, replay: Replay, directory: Path, hours: Sequence[int], step_seconds: float
) -> list[Outcome]:
    """Run the same processor as the tracker's, whose entries go some time after their last change.

    Times to live are of the machine's clock, so a step takes so long as half an hour is to last. Several run at once.
    """
    steps = replay.publish(directory / "raw")
    next(steps)
    outcomes, queries = [], []
    for each in hours:
        outcome = Outcome(f"Spark's TTL, {each} h")
        ttl = int(each * 60 / STEP * step_seconds * 1000)
        raw = _stream(spark, directory / "raw").withColumn("start", F.window("at", "1 hour")["start"])
        schema = "tenant string, start timestamp, user string, visits long"
        counted = raw.groupBy("tenant", "start").transformWithState(
            WithTimeToLive(ttl), schema, "Update", "ProcessingTime"
        )
        writer = counted.writeStream.outputMode("update").foreachBatch(partial(_take_each, outcome))
        queries.append(writer.option("checkpointLocation", str(directory / f"cp-{each}")).start())
        outcomes.append(outcome)
    while any(query.lastProgress is None for query in queries):  # the first batch starts Python, longer than a step
        time.sleep(0.1)
    due = time.monotonic()
    for _ in chain([0], steps):
        due += step_seconds
        time.sleep(max(0.0, due - time.monotonic()))
        for outcome, query in zip(outcomes, queries, strict=True):
            outcome.rows.append(_state_rows(query))
    for query in queries:
        query.stop()
    return outcomes


def _stream(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).json(str(directory))


def _take_each(outcome: Outcome, rows: DataFrame, epoch: int) -> None:  # noqa: ARG001
    _take(outcome, rows)


def _take(outcome: Outcome, rows: DataFrame) -> None:
    for row in rows.select("tenant", "start", "user", "visits").collect():
        entry = (row.tenant, hour_of(row.start), row.user)
        outcome.released[entry] = row.visits


def _state_rows(query: StreamingQuery) -> int:
    progress: Any = query.lastProgress
    return 0 if progress is None else int(progress["stateOperators"][0]["numRowsTotal"])
