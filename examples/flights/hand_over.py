"""A year of flights in three deployments, each of which hands over to the next; run by `make demo-hand-over`.

The pipeline is that of `demo.py`. A third of the way it is handed over, in the middle of everybody's day, to a version
with another graph: the seats are looked up by a query of its own, behind a channel of its own. After another third
comes a version without that query, which computes the same figures in another order. No window is split, and none is
released twice.

The exit status is 0 if the released table is exact: every window there, once, and equal to a batch computation; 1 if
not; 2 if the demonstration could not run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from examples.flights import pipeline, replay, truth
from examples.flights.agent import TrackerDiedError, TrackerProcess
from examples.flights.demo import ARTIFACTS
from examples.flights.outcome import COUNTS, Outcome, judge, table
from examples.flights.pipeline import Pipeline, Version
from examples.flights.progress import Progress
from examples.flights.replay import DataMissingError, Replay
from examples.flights.spark import JavaMissingError, local_session
from examples.flights.tracked import TrackedRun


@dataclass(frozen=True)
class Options:
    """What is replayed, and how.

    Attributes:
        first_day: the first scheduled day.
        days: how many of them.
        span: hours of one file of the replay.
    """

    first_day: str = "2013-01-01"
    days: int = 365
    span: int = 61


def versions() -> list[Version]:
    """The versions of the pipeline, in the order of their deployments."""
    return [
        Version("1"),
        Version("2", seats_apart=True),
        Version("3", figures=dict(reversed(pipeline.figures().items()))),
    ]


def run(options: Options, directory: Path, progress: Progress) -> tuple[Outcome, list[int]]:
    """Replay everything; all files are below `directory`.

    Returns:
        what was released, and how many substreams were open at each hand-over.
    """
    flights = replay.departures(options.first_day, options.days)
    planes = replay.planes()
    expected = truth.daily(flights, planes)
    planes.to_parquet(directory / "planes.parquet", index=False)
    cut = Replay(flights, pd.Timedelta(hours=options.span), directory / "replay")
    timetable = flights.groupby(["origin", "day"], as_index=False).agg(flights=("row_id", "size"))
    progress.say(f"{len(flights):,} flights in {len(cut.files)} files of {options.span} hours each; starting Spark")
    with TrackerProcess(directory) as tracker, local_session(directory) as spark:

        def start(version: Version) -> Pipeline:
            return pipeline.start(
                spark,
                tracker.address,
                spark.readStream.schema(replay.DEPARTURES).parquet(str(cut.published)),
                spark.createDataFrame(timetable),
                spark.read.parquet(str(directory / "planes.parquet")),
                directory,
                version,
            )

        first, *others = versions()
        running = start(first)
        tracked = TrackedRun(running, directory / "released", cut, truth.due(expected, flights, cut.files))
        opened = _play(cut, tracked, running, others, start, progress)
        tracked.drain(timeout=120)
    return judge("tracker", tracked.released, expected, truth.complete(flights), cut.files), opened


def _play(
    cut: Replay,
    tracked: TrackedRun,
    running: Pipeline,
    others: Sequence[Version],
    start: Callable[[Version], Pipeline],
    progress: Progress,
) -> list[int]:
    """Publish file by file, and hand over in between; how many substreams were open then."""
    places = {(number + 1) * len(cut.files) // (len(others) + 1): version for number, version in enumerate(others)}
    opened, rows = [], 0
    for file in cut.publish():
        if file.number in places:
            tracked.hand_over(timeout=120)  # this file has been published: it is for the next deployment
            opened.append(running.tracking.client.get_drain("flights").open_substreams)
            running = start(places[file.number])
            tracked.go_on(running)
            name = running.tracking.deployment
            progress.say(f"handed over to deployment {name} with {opened[-1]:,} substreams open")
        tracked.forward()
        tracked.settle()
        rows += file.rows
        progress.show(
            f"{file.until:%Y-%m-%d}   file {file.number + 1} of {len(cut.files)}   {rows:,} rows replayed   "
            f"{tracked.windows:,} windows released"
        )
    return opened


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m examples.flights.hand_over", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first-day", default=default.first_day, metavar="DATE", help=f"default {default.first_day}")
    parser.add_argument("--days", type=int, default=default.days, help=f"default {default.days}")
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS.with_name("flights-hand-over"))
    given = parser.parse_args(arguments)
    progress = Progress()
    try:
        shutil.rmtree(given.artifacts, ignore_errors=True)
        given.artifacts.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as directory:
            options = Options(given.first_day, given.days)
            outcome, opened = run(options, Path(directory), progress)
    except (DataMissingError, JavaMissingError, TrackerDiedError, OSError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2
    progress.say("replayed")
    text = f"""
Windows (airport, scheduled day, carrier) of {options.days} days, in {len(opened) + 1} deployments;
airports' days that were open at the hand-overs: {", ".join(f"{each:,}" for each in opened)}

{table([outcome], COUNTS)}

tracker: {outcome.comparison}
"""
    print(text)
    (given.artifacts / "outcome.txt").write_text(text)
    if outcome.comparison.exact and all(opened):
        print("exact: the released table is what a batch computation over the same rows gives")
        return 0
    print("NOT EXACT: the released table is not what it has to be", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
