"""Spark with the tracker, by the counts that sites state, by a delay, or by another promise.

The tracker's clock is the workload's, so that its rules of time are in proportion.

| query | with counts | with a delay |
|---|---|---|
| `tumbling` | a release by tenant and window | the same |
| `sliding` | Spark's own windows under the exact watermark | a release of windows that overlap |
| `session` | Spark's own sessions under the exact watermark | the same |
| `join` | a release that keeps rows and joins those of a window that has ended | the same |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.exactness.engine import Run, Show
from benchmarks.exactness.queries import LENGTH
from benchmarks.exactness.stepwise import (
    BIDS,
    IDENTITY,
    SLIDING,
    TUMBLING,
    Collected,
    Feed,
    figures,
    play,
    shaped,
    time_of,
)
from benchmarks.exactness.watermarks import NATIVE
from benchmarks.exactness.workload import MINUTE, Step, Workload
from examples.flights.spark import local_session
from spark_client import Front, Frontier, Released, Schedule, TrackedStream, TrackedWriter, Tracking, sliding
from tracker.testing import LocalTracker, ManualClock

Give = Callable[[list[tuple[str, datetime, int]]], None]  #: gets tenants, the beginnings of windows, and counts


@dataclass(frozen=True)
class Promise:
    """A promise of the source, and the job's rules for one that does not come.

    Attributes:
        name: as the tables have it.
        configured: with what; empty: the name says it.
        front: makes the promise of windows, of the number of partitions.
        delay: of the promise of the queries under an exact watermark; empty: counts.
        counted: whether windows have the sites' counts.
        rules: of `Tracking`.
        unique: whether the source takes each row once.
    """

    name: str
    configured: str = ""
    front: Callable[[int], Front] = lambda _: Schedule()
    delay: str = ""
    counted: bool = True
    rules: Mapping[str, Any] = field(default_factory=dict)
    unique: bool = False


COUNTS = Promise(
    "counts", "`Schedule()` with each site's counts of rows; sessions and sliding windows: `with_watermark`"
)


def delayed(delay: str) -> Promise:
    """Return the promise of a delay, `5 minutes` say, for each tenant by itself."""
    return Promise(
        f"delay of {delay}",
        f'`Frontier("{delay}", per_scope=True)`; sessions: `Frontier("{delay}", "part", 4)` and `with_watermark`',
        lambda _: Frontier(delay, per_scope=True),
        delay,
        counted=False,
    )


class Tracked:
    """Spark with the tracker."""

    queries = tuple(NATIVE)

    def __init__(self, promise: Promise = COUNTS) -> None:
        """Track by a promise."""
        self.name = f"Spark with the tracker, {promise.name}"
        self.configured = promise.configured or promise.name
        self._promise = promise

    def run(self, workload: Workload, queries: Sequence[str], directory: Path, show: Show) -> Mapping[str, Run]:
        """See `Engine`."""
        clock = ManualClock(time_of(workload.plan.begins))
        with LocalTracker(clock=clock) as tracker, local_session(directory) as spark:
            feed, collected = Feed(directory), Collected()
            running = Running(spark, tracker.address, feed, self._promise, workload, clock)
            for query in queries:
                running.start(query, str(directory / query), collected)
            return play(workload, feed, running, collected, show)


class Running:
    """The queries, each a job of its own."""

    def __init__(
        self,
        spark: SparkSession,
        tracker: str,
        feed: Feed,
        promise: Promise,
        workload: Workload,
        clock: ManualClock | None = None,
    ) -> None:
        self._spark = spark
        self._tracker = tracker
        self._feed = feed
        self._promise = promise
        self._workload = workload
        self._clock = clock
        self._jobs: dict[str, Tracking] = {}
        self._checkpoints: dict[str, str] = {}
        self._counted: list[Windows | _Minutes] = []

    def start(self, query: str, checkpoint: str, collected: Collected) -> None:
        tracking = Tracking(self._spark, query, self._tracker, **self._promise.rules)
        self._jobs[query], self._checkpoints[query] = tracking, checkpoint
        rows = self._feed.stream(self._spark)
        released = query in ("tumbling", "join") or (query == "sliding" and self._promise.delay)
        if not released:
            source = self._minutes(tracking, rows)
            rows = tracking.with_watermark(source, "at", "instants" if query == "session" else "windows")
            written = tracking.write_stream(NATIVE[query](rows), source)
            written.foreachBatch(collected.taker(query)).option("checkpointLocation", checkpoint).start()
            return
        source = self._windows(tracking, rows, query)
        kept = source.where("kind in ('bid', 'auction')" if query == "join" else BIDS)
        if query == "join":
            joined = tracking.release(kept, columns=["kind", "auction", "price"]).apply(_joined)
            writer = self._written(joined, query, collected, "auction")
        else:
            entity = "auction" if query == "sliding" else None
            release = tracking.release(kept, [entity] if entity else [], aggs=figures(), completeness=True)
            writer = self._written(release, query, collected, entity, "completeness")
        writer.option("checkpointLocation", checkpoint).start()

    def _written(
        self, release: Released, query: str, collected: Collected, entity: str | None, *more: str
    ) -> TrackedWriter:
        """Return the writer of a query's results, which are collected with the columns that `shaped` has."""
        take = collected.taker(query)
        return release.writeStream.foreachBatch(lambda batch, epoch: take(shaped(batch, entity, *more), epoch))

    def _counts(self, tracking: Tracking, source: TrackedStream, query: str) -> Give:  # noqa: ARG002
        """Return a function that gives the counts of windows."""
        return partial(tracking.expect, source)

    def _windows(self, tracking: Tracking, rows: DataFrame, query: str) -> TrackedStream:
        length = sliding(TUMBLING, SLIDING) if query == "sliding" else TUMBLING
        if query == "sliding":
            rows = rows.where(BIDS)  # each row becomes several
        front = self._front(query)
        unique = self._promise.unique
        source = tracking.source(
            rows,
            "events",
            scope="tenant",
            window=("at", length),
            front=front,
            identity=IDENTITY if unique else (),
            deduplicate=unique,
        )
        if self._promise.counted:
            self._counted.append(Windows(self._counts(tracking, source, query)))
        return source

    def _front(self, query: str) -> Front:  # noqa: ARG002
        return self._promise.front(self._workload.partitions)

    def _minutes(self, tracking: Tracking, rows: DataFrame) -> TrackedStream:
        delay = self._promise.delay
        front = Frontier(delay, "part", self._workload.partitions) if delay else Schedule()
        source = tracking.source(rows, "events", window=("at", "1 minute"), front=front)
        if not delay:
            self._counted.append(_Minutes(tracking, source, self._workload.plan.begins))
        return source

    def before(self, step: Step) -> None:
        for each in self._counted:
            each.take(step)
        if self._clock:
            self._clock.advance(time_of(step.until) - self._clock.now())

    def settle(self) -> None:
        with ThreadPoolExecutor(len(self._jobs)) as together:
            list(together.map(Tracking.process_all_available, self._jobs.values()))

    def drain(self) -> None:
        for tracking in self._jobs.values():
            tracking.drain(timeout=120)

    def close(self) -> Mapping[str, int | None]:
        aside: dict[str, int | None] = {}
        for query, tracking in self._jobs.items():
            tracking.stop()
            native = query == "session" or (query == "sliding" and not self._promise.delay)
            aside[query] = None if native else tracking.late(self._checkpoints[query]).count()
        return aside


def _joined(rows: DataFrame) -> DataFrame:
    by = ["tenant", "window", "auction"]
    auctions = rows.where("kind = 'auction'").select(*by)
    return rows.where(BIDS).join(auctions, by).groupBy(*by).agg(*(each.alias(n) for n, each in figures().items()))


class Windows:
    """The counts of each site's windows, given to a source as soon as the site has stated all of a window's minutes."""

    def __init__(self, give: Give) -> None:
        self._give = give
        self._stated: dict[tuple[str, int], list[int]] = defaultdict(list)

    def take(self, step: Step) -> None:
        known = []
        for count in step.counts:
            window = count.tenant, count.minute // LENGTH * LENGTH
            minutes = self._stated[window]
            minutes.append(count.rows)
            if len(minutes) == LENGTH // MINUTE and sum(minutes) > 0:
                known.append((count.tenant, time_of(window[1]), sum(minutes)))
        if known:
            self._give(known)


class _Minutes:
    """The counts of minutes, for a source, as soon as all sites have stated them."""

    def __init__(self, tracking: Tracking, source: TrackedStream, begins: int) -> None:
        self._tracking = tracking
        self._source = source
        self._rows: dict[int, int] = defaultdict(int)
        self._complete = begins

    def take(self, step: Step) -> None:
        for count in step.counts:
            self._rows[count.minute] += count.rows
        if step.complete > self._complete:
            minutes = range(self._complete, step.complete, MINUTE)
            known = [(time_of(minute), self._rows[minute]) for minute in minutes if self._rows[minute]]
            self._tracking.expect(self._source, known, through=time_of(step.complete - MINUTE))
            self._complete = step.complete
