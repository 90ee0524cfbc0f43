"""A quarter of a year of flights through two tracked queries while the tracker is killed; run by `make demo`.

One replay, several readers: the tracked pipeline (`pipeline.py`) and, behind its first query, Spark's own watermark
with several delays. When a file of the replay has been published, all of them do what can be done with it before the
next one appears; so all are timed by one clock, the replay's. Half way the tracker is killed without warning while a
batch is under way, and started again seconds later; the pipeline waits for it and goes on.

The quarter takes two to three minutes because a file covers 61 hours; `--days 365` replays the whole year. Such steps
show what is released, but not how soon: no release can be timed more finely than a step. `delays.py` times releases in
steps of one hour.

The exit status is 0 if the released table is exact: every window there, once, and equal to a batch computation; 1 if
not; 2 if the demonstration could not run. That a watermark loses rows is no failure of the demonstration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from examples.flights.agent import TrackerProcess
from examples.flights.baseline import Copies, WatermarkBaseline
from examples.flights.outcome import COUNTS, Outcome, table
from examples.flights.program import ARTIFACTS, carry_out, parser
from examples.flights.progress import Progress
from examples.flights.spark import local_session
from examples.flights.tracked import TrackedRun
from examples.flights.year import Part, Year


@dataclass(frozen=True)
class Options(Part):
    """The extent of a replay, the watermarks beside it, and the tracker's outage.

    Attributes:
        days: how many; the whole year has 365.
        delays: of the watermarks to compare with.
        port: the tracker's; 0: any free one.
        down_for: seconds between the tracker's death and its restart.
    """

    days: int = 90
    delays: tuple[str, ...] = ("1 hour", "24 hours")
    port: int = 0
    down_for: float = 3.0


@dataclass(frozen=True)
class Result:
    """Outcome of a demonstration.

    Attributes:
        tracked: what the pipeline released.
        watermarks: what Spark's own watermark released, by delay.
        before: how many windows the pipeline had released when the tracker was killed.
    """

    tracked: Outcome
    watermarks: list[Outcome]
    before: int

    @property
    def exact(self) -> bool:
        """True if the released table is right, and the tracker died in the middle of it."""
        return self.tracked.comparison.exact and 0 < self.before < self.tracked.released


def run(options: Options, directory: Path, progress: Progress) -> Result:
    """Replay everything; all files are below `directory`."""
    year = Year(options, directory)
    progress.say(str(year))
    with TrackerProcess(directory, options.port) as tracker:
        progress.say(f"tracker: pid {tracker.pid}, {tracker.address}, journal {tracker.journal}; starting Spark")
        with local_session(directory) as spark:
            running = year.start(spark, tracker.address)
            tracked = year.track(running)
            copies = Copies(running.channel, directory / "cleaned")
            cleaned = copies.stream(spark.newSession())  # of its own: its queries are none of the tracking's
            watermarks = [
                WatermarkBaseline(cleaned, delay, directory / f"watermark-{number}", year.replay)
                for number, delay in enumerate(options.delays)
            ]
            before = _play(year, tracked, copies, watermarks, tracker, options.down_for, progress)
            tracked.drain(timeout=60)
            for watermark in watermarks:
                watermark.stop()
    return Result(
        year.judge("tracker", tracked.released),
        [year.judge(f"watermark, {each.delay}", each.released) for each in watermarks],
        before,
    )


def _play(
    year: Year,
    tracked: TrackedRun,
    copies: Copies,
    watermarks: Sequence[WatermarkBaseline],
    tracker: TrackerProcess,
    down_for: float,
    progress: Progress,
) -> int:
    """Publish file by file, and kill the tracker half way. Return how many windows were released by then."""
    half, before = len(year.replay.files) // 2, 0
    accident: Future[None] | None = None
    with ThreadPoolExecutor(1) as elsewhere:
        for file in year.files(tracked, progress):
            if file.number == half:
                before = tracked.windows
                accident = elsewhere.submit(_kill_and_restart, tracker, down_for, progress)
            tracked.forward()
            copies.update()
            tracked.settle()
            for watermark in watermarks:
                watermark.settle()
            if accident is not None and file.number == half:
                accident.result()
    return before


def _kill_and_restart(tracker: TrackerProcess, down_for: float, progress: Progress) -> None:
    time.sleep(0.2)  # into the batch
    pid = tracker.pid
    tracker.kill()
    progress.say(f"tracker killed (SIGKILL, pid {pid}) in the middle of a batch")
    time.sleep(down_for)
    tracker.start()
    progress.say(f"tracker back after {down_for:g} s: pid {tracker.pid}, same port, same journal")


def summary(result: Result) -> str:
    """Return two sentences for the reader: on whether the table is exact, and on what the kill changed."""
    return f"""tracker: {result.tracked.comparison};
         {result.before:,} windows were released before it was killed, {result.tracked.released - result.before:,} after
"""


def conclude(result: Result, options: Options) -> tuple[str, bool]:
    """Return the report for the reader, and whether the released table is exact."""
    text = f"""
Windows (airport, scheduled day, carrier) of {options.days} days, replayed in steps of {options.span} hours:

{table([result.tracked, *result.watermarks], COUNTS)}

{summary(result)}"""
    return text, result.exact


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    default = Options()
    options = parser("examples.flights.demo", __doc__, default, ARTIFACTS)
    options.add_argument("--span", type=int, default=default.span, help=f"hours of one file; default {default.span}")
    options.add_argument(
        "--delays", nargs="+", default=default.delays, metavar="DELAY", help='of watermarks: try "6 hours"'
    )
    options.add_argument("--port", type=int, default=default.port, help="the tracker's; default: any free one")
    given = options.parse_args(arguments)
    chosen = Options(given.first_day, given.days, given.span, tuple(given.delays), given.port)
    return carry_out(
        lambda directory, progress: run(chosen, directory, progress),
        given.artifacts,
        lambda result: conclude(result, chosen),
    )


if __name__ == "__main__":
    sys.exit(main())
