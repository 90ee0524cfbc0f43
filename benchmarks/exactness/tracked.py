"""Spark with the tracker, by two kinds of promises: the counts that sites state, and a delay.

| query | with counts | with a delay |
|---|---|---|
| `tumbling` | a release by tenant and window | the same |
| `sliding` | Spark's own windows under the exact watermark | a release of windows that overlap |
| `session` | Spark's own sessions under the exact watermark | the same |
| `join` | a release that keeps rows and joins those of a window that has ended | the same |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.exactness.engine import Run, Show
from benchmarks.exactness.queries import LENGTH
from benchmarks.exactness.stepwise import BIDS, SLIDING, TUMBLING, Collected, Feed, figures, play, shaped
from benchmarks.exactness.watermarks import NATIVE
from benchmarks.exactness.workload import MINUTE, START, Step, Workload
from examples.flights.agent import TrackerProcess
from examples.flights.spark import local_session
from spark_client import Frontier, Schedule, TrackedStream, Tracking, sliding


class Tracked:
    """Spark with the tracker."""

    queries = tuple(NATIVE)

    def __init__(self, delay: str = "") -> None:
        """Track with counts; or with a delay, `5 minutes` say."""
        self.name = f"Spark with the tracker, delay of {delay}" if delay else "Spark with the tracker, counts"
        self._delay = delay
        self.configured = (
            f'`Frontier("{delay}", per_scope=True)`; sessions: `Frontier("{delay}", "part", 4)` and `with_watermark`'
            if delay
            else "`Schedule()` with each site's counts of rows; sessions and sliding windows: `with_watermark`"
        )

    def run(self, workload: Workload, queries: Sequence[str], directory: Path, show: Show) -> Mapping[str, Run]:
        """See `Engine`."""
        with TrackerProcess(directory / "tracker") as tracker, local_session(directory) as spark:
            feed, collected = Feed(directory), Collected()
            running = Running(spark, tracker.address, feed, self._delay, workload.partitions)
            for query in queries:
                running.start(query, directory / query, collected)
            return play(workload, feed, running, collected, show)


class Running:
    """The queries, each a job of its own."""

    def __init__(self, spark: SparkSession, tracker: str, feed: Feed, delay: str, partitions: int) -> None:
        self._spark = spark
        self._tracker = tracker
        self._feed = feed
        self._delay = delay
        self._partitions = partitions
        self._jobs: dict[str, Tracking] = {}
        self._checkpoints: dict[str, Path] = {}
        self._counted: list[Windows | _Minutes] = []

    def start(self, query: str, checkpoint: Path, collected: Collected) -> None:
        tracking = Tracking(self._spark, query, self._tracker)
        self._jobs[query], self._checkpoints[query] = tracking, checkpoint
        rows = self._feed.stream(self._spark)
        take = collected.taker(query)
        released = query in ("tumbling", "join") or (query == "sliding" and self._delay)
        if not released:
            source = self._minutes(tracking, rows)
            rows = tracking.with_watermark(source, "at", "instants" if query == "session" else "windows")
            written = tracking.write_stream(NATIVE[query](rows), source)
            written.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
            return
        source = self._windows(tracking, rows, query)
        kept = source.where("kind in ('bid', 'auction')" if query == "join" else BIDS)
        if query == "join":
            joined = tracking.release(kept, columns=["kind", "auction", "price"]).apply(_joined)
            writer = joined.writeStream.foreachBatch(lambda batch, epoch: take(shaped(batch, "auction"), epoch))
        else:
            entity = "auction" if query == "sliding" else None
            release = tracking.release(kept, [entity] if entity else [], aggs=figures())
            writer = release.writeStream.foreachBatch(lambda batch, epoch: take(shaped(batch, entity), epoch))
        writer.option("checkpointLocation", str(checkpoint)).start()

    def _windows(self, tracking: Tracking, rows: DataFrame, query: str) -> TrackedStream:
        length = sliding(TUMBLING, SLIDING) if query == "sliding" else TUMBLING
        if query == "sliding":
            rows = rows.where(BIDS)  # each row becomes several
        front = Frontier(self._delay, per_scope=True) if self._delay else Schedule()
        source = tracking.source(rows, "events", scope="tenant", window=("at", length), front=front)
        if not self._delay:
            self._counted.append(Windows(tracking, source))
        return source

    def _minutes(self, tracking: Tracking, rows: DataFrame) -> TrackedStream:
        front = Frontier(self._delay, "part", self._partitions) if self._delay else Schedule()
        source = tracking.source(rows, "events", window=("at", "1 minute"), front=front)
        if not self._delay:
            self._counted.append(_Minutes(tracking, source))
        return source

    def before(self, step: Step) -> None:
        for each in self._counted:
            each.take(step)

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
            native = query == "session" or (query == "sliding" and not self._delay)
            aside[query] = None if native else tracking.late(str(self._checkpoints[query])).count()
        return aside


def _joined(rows: DataFrame) -> DataFrame:
    by = ["tenant", "window", "auction"]
    auctions = rows.where("kind = 'auction'").select(*by)
    return rows.where(BIDS).join(auctions, by).groupBy(*by).agg(*(each.alias(n) for n, each in figures().items()))


class Windows:
    """The counts of each site's windows, for a source, as soon as the site has stated all of a window's minutes."""

    def __init__(self, tracking: Tracking, source: TrackedStream) -> None:
        self._tracking = tracking
        self._source = source
        self._stated: dict[tuple[str, int], list[int]] = defaultdict(list)

    def take(self, step: Step) -> None:
        known = []
        for count in step.counts:
            window = count.tenant, count.minute // LENGTH * LENGTH
            minutes = self._stated[window]
            minutes.append(count.rows)
            if len(minutes) == LENGTH // MINUTE and sum(minutes) > 0:
                known.append((count.tenant, _time(window[1]), sum(minutes)))
        if known:
            self._tracking.expect(self._source, known)


class _Minutes:
    """The counts of minutes, for a source, as soon as all sites have stated them."""

    def __init__(self, tracking: Tracking, source: TrackedStream) -> None:
        self._tracking = tracking
        self._source = source
        self._rows: dict[int, int] = defaultdict(int)
        self._complete = START

    def take(self, step: Step) -> None:
        for count in step.counts:
            self._rows[count.minute] += count.rows
        if step.complete > self._complete:
            minutes = range(self._complete, step.complete, MINUTE)
            known = [(_time(minute), self._rows[minute]) for minute in minutes if self._rows[minute]]
            self._tracking.expect(self._source, known, through=_time(step.complete - MINUTE))
            self._complete = step.complete


def _time(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=milliseconds)
