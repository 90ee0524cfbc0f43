"""Spark with the tracker where tables are: over Spark Connect, with checkpoints and Delta tables in a store of objects.

The queries are those that release; results are read from the tables, which have them in the commit that counts.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from benchmarks.exactness.engine import Run, Show, UnavailableError
from benchmarks.exactness.stepwise import Collected, Feed, figures, play, time_of
from benchmarks.exactness.tracked import COUNTS, Give, Promise, Running, Tracked
from benchmarks.exactness.workload import Workload
from examples.lake.services import LakeServer, environment
from examples.services.jars import MissingError
from examples.services.s3 import S3
from spark_client import Front, Released, Schedule, TrackedStream, TrackedWriter, Tracking
from tracker.testing import LocalTracker, ManualClock

_PATIENCE = 60.0  #: seconds for counts to reach the tracker


class InLake(Tracked):
    """Spark with the tracker, over Connect, in a store of objects."""

    def __init__(self, promise: Promise = COUNTS) -> None:
        super().__init__(promise)
        self.name = f"{self.name}, Connect, Delta"
        self.queries = ("tumbling", "join") if promise.counted else ("tumbling", "sliding", "join")

    def run(self, workload: Workload, queries: Sequence[str], directory: Path, show: Show) -> Mapping[str, Run]:
        """See `Engine`."""
        clock = ManualClock(time_of(workload.plan.begins))
        try:
            store = S3(directory / "s3")
            server = LakeServer(directory, store)
        except MissingError as error:
            raise UnavailableError(str(error)) from error
        with patch.dict(os.environ, environment(store)), LocalTracker(clock=clock) as tracker, store, server:
            feed, collected = Feed(directory), Collected()
            spark = SparkSession.builder.remote(server.url).getOrCreate()
            running = _Running(store, spark, tracker.address, feed, self._promise, workload, clock)
            for query in queries:
                running.start(query, f"s3a://state/{directory.name}/{query}", collected)
            runs = play(workload, feed, running, collected, show)
            spark.stop()
            return runs


class _Running(Running):
    def __init__(self, store: S3, *given: Any) -> None:
        super().__init__(*given)
        self._store = store
        self._tables: list[Callable[[], None]] = []

    def settle(self) -> None:
        super().settle()
        for take in self._tables:
            take()

    def _written(
        self, release: Released, query: str, collected: Collected, entity: str | None, *more: str
    ) -> TrackedWriter:
        collected.runs[query], taken = Run(), Counter[Any]()
        path = f"{self._checkpoints[query]}.table"

        def take_new() -> None:
            """Take what the table has, and had not before."""
            with suppress(TableNotFoundError):
                table = DeltaTable(path.replace("s3a", "s3"), storage_options=environment(self._store))
                found = Counter(_shaped(row, entity, more) for row in table.to_pyarrow_table().to_pylist())
                collected.take(query, (found - taken).elements())
                taken.update(found - taken)

        self._tables.append(take_new)
        return release.writeStream.format("delta").option("path", path)

    def _front(self, query: str) -> Front:
        return Schedule(partial(_read, self._counts_of(query))) if self._promise.counted else super()._front(query)

    def _counts(self, tracking: Tracking, source: TrackedStream, query: str) -> Give:  # noqa: ARG002
        given: list[tuple[str, float, int]] = []

        def give(known: list[tuple[str, datetime, int]]) -> None:
            given.extend((tenant, when.timestamp(), count) for tenant, when, count in known)
            whole = self._counts_of(query).with_suffix(".part")
            whole.write_text(json.dumps(given))
            whole.replace(self._counts_of(query))
            until = time.monotonic() + _PATIENCE
            while _expected(tracking, query) < len(given):
                if time.monotonic() > until:
                    raise RuntimeError(f"{query}: the tracker has not got {len(given)} counts")
                time.sleep(0.05)

        return give

    def _counts_of(self, query: str) -> Path:
        return self._feed.path.parent / f"counts-{query}.json"


def _shaped(row: Mapping[str, Any], entity: str | None, more: Sequence[str]) -> tuple[Any, ...]:
    """Return a result with the columns that `Collected` takes."""
    window = (row["window"]["start"], row["window"]["end"])
    times = (round(when.replace(tzinfo=timezone.utc).timestamp() * 1000) for when in window)
    return row["tenant"], row[entity] if entity else 0, *times, *(row[name] for name in (*figures(), *more))


def _expected(tracking: Tracking, job: str) -> int:
    """Count the windows of which the tracker has a count."""
    known = tracking.client.substreams(job, include_ended=True)
    return sum(any(segment.expected is not None for segment in each.segments) for each in known)


def _read(path: Path) -> list[tuple[str, datetime, int]]:
    """Return the counts that are known."""
    if not path.exists():
        return []
    return [(tenant, time_of(round(when * 1000)), count) for tenant, when, count in json.loads(path.read_text())]
