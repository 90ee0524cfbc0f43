"""Thirty nightly runs with `availableNow`, a driver that dies in each: every night has what a batch job would give.

A night's files come in any order. A driver dies at a step that is drawn: before or after results are written, or
before receipts are; the next one begins the night again.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Schedule, Tracking, TrackingError
from tests.client.processes import Server
from tests.spark.feed import Feed, row

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NIGHTS = 30
TENANTS = "abc"


class Mortal:
    """A sink that keeps each epoch once, whose driver dies at a step that is drawn, and then writes nothing more."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.epochs: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
        self.deaths = 0
        self._fate: tuple[str, int] | None = None
        self._dead = False

    def start(self, mortal: bool) -> None:
        self._dead = False
        self._fate = (self._draw.choice(["before", "after"]), self._draw.randint(1, 2)) if mortal else None

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        self._die("before")
        found = [(each["tenant"], each["window"].start.day, each["n"]) for each in rows.collect()]
        self.epochs.setdefault((query, epoch), found)
        self._die("after")

    def _die(self, step: str) -> None:
        if self._fate is not None and self._fate[0] == step:
            self._fate = step, self._fate[1] - 1
            if not self._fate[1]:
                self._dead, self.deaths = True, self.deaths + 1
        if self._dead:
            raise RuntimeError("the driver dies here")


@pytest.mark.parametrize("seed", [1])
def test_thirty_nights_equal_a_batch_each_night(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    sink, due, number = Mortal(draw), Counter[tuple[str, int]](), 0

    def counts() -> list[tuple[str, date, int]]:
        return [(tenant, date(2024, 1, day), n) for (tenant, day), n in due.items()]

    def run(mortal: bool) -> None:
        sink.start(mortal)
        with Tracking(spark, job, tracker.address) as tracking:
            rows = tracking.source(
                feed.stream(spark), "in", scope="tenant", window=("ts", "1 day"), front=Schedule(counts)
            )
            daily = tracking.release(rows, aggs={"n": F.count("*")}).writeStream.sink(sink)
            query = daily.option("checkpointLocation", tmp_path / "cp").trigger(availableNow=True).start()
            query.awaitTermination(600)

    for night in range(1, NIGHTS + 1):
        files: list[list[dict[str, object]]] = []
        for tenant in TENANTS:
            for _ in range(draw.randint(1, 2)):
                size = draw.randint(1, 4)
                due[tenant, night] += size
                files.append([row(number + i, 1440 * (night - 1) + i, tenant) for i in range(size)])
                number += size
        draw.shuffle(files)
        for each in files:
            feed.put(*each)
        with suppress(StreamingQueryException, TrackingError):
            run(mortal=True)
        run(mortal=False)
        results = [result for epoch in sink.epochs.values() for result in epoch]
        assert sorted(results) == sorted((tenant, day, n) for (tenant, day), n in due.items()), night
    assert sink.deaths >= NIGHTS // 3
