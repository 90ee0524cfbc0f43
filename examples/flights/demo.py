"""A year of flights through two tracked queries, with a tracker that is killed on the way; run by `make demo`.

One replay, several readers: the tracked pipeline (`pipeline.py`) and, behind its first query, Spark's own watermark
with several delays. When a file of the replay has been published, all of them do what can be done with it before the
next one appears; so all are timed by one clock, the replay's. Half way the tracker is killed without warning while a
batch is under way, and started again seconds later; the pipeline waits for it and goes on.

A year fits into a few minutes because a file covers 61 hours. Such steps show what is released, but not how soon:
no release can be timed more finely than a step. `delays.py` times releases in steps of one hour.

The exit status is 0 if the released table is exact: every window there, once, and equal to a batch computation; 1 if
not; 2 if the demonstration could not run. That a watermark loses rows is no failure of the demonstration.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pandas as pd

from examples.flights import pipeline, replay, truth
from examples.flights.agent import TrackerDiedError, TrackerProcess
from examples.flights.baseline import Copies, WatermarkBaseline
from examples.flights.outcome import COUNTS, Outcome, judge, table
from examples.flights.progress import Progress
from examples.flights.replay import DataMissingError, Replay
from examples.flights.spark import JavaMissingError, local_session
from examples.flights.tracked import TrackedRun

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts" / "flights"


@dataclass(frozen=True)
class Options:
    """What is replayed, and how.

    Attributes:
        first_day: the first scheduled day.
        days: how many of them.
        span: hours of one file of the replay. No divisor of a day, so that the cuts fall on all hours of the day.
        delays: of the watermarks to compare with.
        port: the tracker's; 0: any free one.
        down_for: seconds between the tracker's death and its restart.
    """

    first_day: str = "2013-01-01"
    days: int = 365
    span: int = 61
    delays: tuple[str, ...] = ("1 hour", "24 hours")
    port: int = 0
    down_for: float = 3.0


@dataclass(frozen=True)
class Result:
    """What came of it.

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
        """Whether the released table is what it has to be, and the tracker died in the middle of it."""
        return self.tracked.comparison.exact and 0 < self.before < self.tracked.released


def run(options: Options, directory: Path, progress: Progress) -> Result:
    """Replay everything; all files are below `directory`."""
    flights = replay.departures(options.first_day, options.days)
    planes = replay.planes()
    expected = truth.daily(flights, planes)
    planes.to_parquet(directory / "planes.parquet", index=False)
    cut = Replay(flights, pd.Timedelta(hours=options.span), directory / "replay")
    progress.say(f"{len(flights):,} flights in {len(cut.files)} files of {options.span} hours each")

    with TrackerProcess(directory, options.port) as tracker:
        progress.say(f"tracker: pid {tracker.pid}, {tracker.address}, journal {tracker.journal}; starting Spark")
        with local_session(directory) as spark:
            timetable = flights.groupby(["origin", "day"], as_index=False).agg(flights=("row_id", "size"))
            running = pipeline.start(
                spark,
                tracker.address,
                spark.readStream.schema(replay.DEPARTURES).parquet(str(cut.published)),
                spark.createDataFrame(timetable),
                spark.read.parquet(str(directory / "planes.parquet")),
                directory,
            )
            tracked = TrackedRun(running, directory / "released", cut, truth.due(expected, flights, cut.files))
            copies = Copies(running.channel, directory / "cleaned")
            cleaned = copies.stream(spark.newSession())  # of its own: the tracking does not hear of its queries
            watermarks = [
                WatermarkBaseline(cleaned, delay, directory / f"watermark-{number}", cut)
                for number, delay in enumerate(options.delays)
            ]
            before = _play(cut, tracked, copies, watermarks, tracker, options.down_for, progress)
            tracked.drain(timeout=60)
            for watermark in watermarks:
                watermark.stop()

    complete = truth.complete(flights)
    return Result(
        judge("tracker", tracked.released, expected, complete, cut.files),
        [judge(f"watermark, {each.delay}", each.released, expected, complete, cut.files) for each in watermarks],
        before,
    )


def _play(
    cut: Replay,
    tracked: TrackedRun,
    copies: Copies,
    watermarks: Sequence[WatermarkBaseline],
    tracker: TrackerProcess,
    down_for: float,
    progress: Progress,
) -> int:
    """Publish file by file, and kill the tracker half way; how many windows were released by then."""
    half, before, rows = len(cut.files) // 2, 0, 0
    accident: Future[None] | None = None
    with ThreadPoolExecutor(1) as elsewhere:
        for file in cut.publish():
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
            rows += file.rows
            progress.show(
                f"{file.until:%Y-%m-%d}   file {file.number + 1} of {len(cut.files)}   {rows:,} rows replayed   "
                f"{tracked.windows:,} windows released"
            )
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
    """What a reader wants to know besides the table: whether it is exact, and what the kill changed."""
    return f"""tracker: {result.tracked.comparison};
         {result.before:,} windows were released before it was killed, {result.tracked.released - result.before:,} after
"""


def verdict(result: Result) -> int:
    """Print whether the released table is exact; the exit status."""
    if result.exact:
        print("exact: the released table is what a batch computation over the same rows gives")
        return 0
    print("NOT EXACT: the released table is not what it has to be", file=sys.stderr)
    return 1


def conclude(result: Result, options: Options, artifacts: Path) -> int:
    """Print and keep the outcome; the exit status."""
    text = f"""
Windows (airport, scheduled day, carrier) of {options.days} days, replayed in steps of {options.span} hours:

{table([result.tracked, *result.watermarks], COUNTS)}

{summary(result)}"""
    print(text)
    (artifacts / "outcome.txt").write_text(text)
    return verdict(result)


def carry_out(options: Options, artifacts: Path, conclude: Callable[[Result, Options, Path], int]) -> int:
    """Run, and conclude; whatever goes wrong on the way is cleaned up, and named if a user can mend it.

    Args:
        options: what to replay.
        artifacts: the directory for what is kept. It is emptied first.
        conclude: prints and keeps the result, and returns the exit status.
    """
    signal.signal(signal.SIGTERM, _terminate)
    progress = Progress()
    try:
        shutil.rmtree(artifacts, ignore_errors=True)
        artifacts.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as directory:
            result = run(options, Path(directory), progress)
    except (DataMissingError, JavaMissingError, TrackerDiedError, OSError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2
    progress.say("replayed")
    return conclude(result, options, artifacts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m examples.flights.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first-day", default=default.first_day, metavar="DATE")
    parser.add_argument("--days", type=int, default=default.days, help=f"default {default.days}")
    parser.add_argument("--span", type=int, default=default.span, help=f"hours of one file; default {default.span}")
    parser.add_argument(
        "--delays",
        nargs="+",
        default=default.delays,
        metavar="DELAY",
        help='of watermarks: try "6 hours"',
    )
    parser.add_argument("--port", type=int, default=default.port, help="the tracker's; default: any free one")
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS, help=f"default {ARTIFACTS}")
    given = parser.parse_args(arguments)
    options = Options(given.first_day, given.days, given.span, tuple(given.delays), given.port)
    return carry_out(options, given.artifacts, conclude)


def _terminate(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that everything is stopped and removed on the way out


if __name__ == "__main__":
    sys.exit(main())
