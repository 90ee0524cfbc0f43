"""The common part of the demonstrations: prepare a part of the year, publish it file by file, and judge.

Example:

    year = Year(Part(days=14), directory)
    tracked = year.track(year.start(spark, tracker.address))
    for _ in year.files(tracked, progress):
        tracked.forward()
        tracked.settle()
    tracked.drain(timeout=60)
    outcome = year.judge("tracker", tracked.released)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from examples.flights import outcome, pipeline, replay, truth
from examples.flights.outcome import Outcome
from examples.flights.pipeline import Pipeline, Version
from examples.flights.progress import Progress
from examples.flights.replay import File, Replay
from examples.flights.tracked import TrackedRun


@dataclass(frozen=True)
class Part:
    """The flights to replay, and the steps.

    Attributes:
        first_day: the first scheduled day.
        days: how many of them.
        span: hours of one file of the replay. No divisor of a day, so that the cuts fall on all hours of the day.
    """

    first_day: str = "2013-01-01"
    days: int = 365
    span: int = 61


class Year:
    """A part of the year, its replay, and what a batch computation makes of it.

    Args:
        part: which one.
        directory: where all files go.

    Attributes:
        replay: publishes its flights.
    """

    def __init__(self, part: Part, directory: Path) -> None:
        self._flights = replay.departures(part.first_day, part.days)
        self._directory = directory
        planes = replay.planes()
        planes.to_parquet(directory / "planes.parquet", index=False)
        self._expected = truth.daily(self._flights, planes)
        self.replay = Replay(self._flights, pd.Timedelta(hours=part.span), directory / "replay")
        self._span = part.span

    def __str__(self) -> str:
        return f"{len(self._flights):,} flights in {len(self.replay.files)} files of {self._span} hours each"

    def start(self, spark: SparkSession, tracker: str, version: Version | None = None) -> Pipeline:
        """Start the pipeline's queries.

        Args:
            spark: the session.
            tracker: the address, or several.
            version: of the pipeline, and its deployment's name; None: the first one.
        """
        timetable = self._flights.groupby(["origin", "day"], as_index=False).agg(flights=("row_id", "size"))
        return pipeline.start(
            spark,
            tracker,
            spark.readStream.schema(replay.DEPARTURES).parquet(str(self.replay.published)),
            spark.createDataFrame(timetable),
            spark.read.parquet(str(self._directory / "planes.parquet")),
            self._directory,
            version or Version("1"),
        )

    def export(self, running: Pipeline) -> None:
        """Take a snapshot of a pipeline that has handed over."""
        pipeline.snapshots(self._directory).export(running.tracking)

    def track(self, running: Pipeline) -> TrackedRun:
        """Watch what a pipeline releases."""
        due = truth.due(self._expected, self._flights, self.replay.files)
        return TrackedRun(running, self._directory / "released", self.replay, due)

    def files(self, tracked: TrackedRun, progress: Progress) -> Iterator[File]:
        """Publish one file after the other, and show how far the replay is when the caller is done with it."""
        rows = 0
        for file in self.replay.publish():
            yield file
            rows += file.rows
            progress.show(
                f"{file.until:%Y-%m-%d}   file {file.number + 1} of {len(self.replay.files)}   "
                f"{rows:,} rows replayed   {tracked.windows:,} windows released"
            )

    def judge(self, name: str, released: pd.DataFrame) -> Outcome:
        """Compare a released table with the batch computation."""
        return outcome.judge(name, released, self._expected, truth.complete(self._flights), self.replay.files)
