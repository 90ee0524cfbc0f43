"""A year of flights in three deployments, each of which hands over to the next; run by `make demo-hand-over`.

The pipeline is that of `demo.py`. A third of the way it is handed over, in the middle of everybody's day, to a version
with another graph: the seats are looked up by a query of its own, behind a channel of its own. After another third
comes a version without that query, which keeps other values: the mean delay as a sum and a count of whole numbers, the
worst one as a bigint. No state of the version before fits it, so that one is exported, mapped and imported. No window
is split, and none is released twice.

The exit status is 0 if the released table is exact: every window there, once, and equal to a batch computation; 1 if
not; 2 if the demonstration could not run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from examples.flights import pipeline
from examples.flights.agent import TrackerProcess
from examples.flights.outcome import COUNTS, Outcome, table
from examples.flights.pipeline import Pipeline, Version
from examples.flights.program import ARTIFACTS, carry_out, parser
from examples.flights.progress import Progress
from examples.flights.spark import local_session
from examples.flights.tracked import TrackedRun
from examples.flights.year import Part, Year
from spark_client import Aggregate, aggregates


def versions() -> list[Version]:
    """Return the versions of the pipeline, in the order of their deployments."""
    return [
        Version("1"),
        Version("2", seats_apart=True),
        Version("3", figures=other_figures(), mapping=upgraded),
    ]


def other_figures() -> dict[str, Aggregate | Column]:
    """Return the same figures, in another order, of which the state keeps something else."""
    mean = aggregates.combine(F.try_divide, aggregates.sum("dep_delay"), aggregates.count("dep_delay"))
    worst = aggregates.max(F.col("dep_delay").cast("long"))
    others: dict[str, Aggregate | Column] = {**pipeline.figures(), "mean_delay": mean, "worst_delay": worst}
    return dict(reversed(others.items()))


def upgraded(state: DataFrame) -> DataFrame:
    """Return the state of `pipeline.figures` in the form that `other_figures` keep."""
    total, number = F.col("mean_delay.part_0").cast("long"), F.col("mean_delay.part_1")
    mean = F.struct(total.alias("total"), number.alias("number"))
    return state.withColumns({"mean_delay": mean, "worst_delay": F.col("worst_delay").cast("long")})


def run(part: Part, directory: Path, progress: Progress) -> tuple[Outcome, list[int]]:
    """Replay everything; all files are below `directory`.

    Returns:
        what was released, and how many substreams were open at each hand-over.
    """
    year = Year(part, directory)
    progress.say(f"{year}; starting Spark")
    with TrackerProcess(directory) as tracker, local_session(directory) as spark:

        def start(version: Version) -> Pipeline:
            return year.start(spark, tracker.address, version)

        first, *others = versions()
        running = start(first)
        tracked = year.track(running)
        opened = _play(year, tracked, running, others, start, progress)
        tracked.drain(timeout=120)
    return year.judge("tracker", tracked.released), opened


def _play(
    year: Year,
    tracked: TrackedRun,
    running: Pipeline,
    others: Sequence[Version],
    start: Callable[[Version], Pipeline],
    progress: Progress,
) -> list[int]:
    """Publish file by file, and hand over in between. Return how many substreams were open then."""
    files = len(year.replay.files)
    places = {(number + 1) * files // (len(others) + 1): version for number, version in enumerate(others)}
    opened = []
    for file in year.files(tracked, progress):
        if file.number in places:
            tracked.hand_over(timeout=120)  # this file has been published: it is for the next deployment
            opened.append(running.tracking.client.get_drain("flights").open_substreams)
            if places[file.number].mapping is not None:
                year.export(running)
            running = start(places[file.number])
            tracked.go_on(running)
            name = running.tracking.deployment
            progress.say(f"handed over to deployment {name} with {opened[-1]:,} substreams open")
        tracked.forward()
        tracked.settle()
    return opened


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    artifacts = ARTIFACTS.with_name("flights-hand-over")
    given = parser("examples.flights.hand_over", __doc__, Part(), artifacts).parse_args(arguments)
    part = Part(given.first_day, given.days)

    def conclude(result: tuple[Outcome, list[int]]) -> tuple[str, bool]:
        outcome, opened = result
        text = f"""
Windows (airport, scheduled day, carrier) of {part.days} days, in {len(opened) + 1} deployments;
airports' days that were open at the hand-overs: {", ".join(f"{each:,}" for each in opened)}

{table([outcome], COUNTS)}

tracker: {outcome.comparison}
"""
        return text, outcome.comparison.exact and all(opened)

    return carry_out(lambda directory, progress: run(part, directory, progress), given.artifacts, conclude)


if __name__ == "__main__":
    sys.exit(main())
