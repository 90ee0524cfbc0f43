"""A year of flights while the leader of two trackers is killed every ten seconds; run by `make demo-failover`.

The pipeline is that of `demo.py`. Its tracker has two addresses: one process leads, the other one stands by, and both
have their journal in one Redis. Every ten seconds the leader is killed without warning (SIGKILL), the standby takes
over, and the killed one is started again, as the next standby. The job names both addresses, and does nothing else.

The exit status is 0 if the released table is exact: every window there, once, and equal to a batch computation; 1 if
not; 2 if the demonstration could not run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from examples.flights import pipeline, replay, truth
from examples.flights.agent import TrackerDiedError, TrackerProcess
from examples.flights.demo import ARTIFACTS
from examples.flights.outcome import COUNTS, Outcome, judge, table
from examples.flights.progress import Progress
from examples.flights.replay import DataMissingError, Replay
from examples.flights.spark import JavaMissingError, local_session
from examples.flights.tracked import TrackedRun
from examples.services.processes import free_port
from examples.services.redis import Redis, RedisMissingError


@dataclass(frozen=True)
class Options:
    """What is replayed, and how.

    Attributes:
        first_day: the first scheduled day.
        days: how many of them.
        span: hours of one file of the replay.
        every: seconds between two kills.
    """

    first_day: str = "2013-01-01"
    days: int = 365
    span: int = 61
    every: float = 10.0


class Pair:
    """Two trackers with one journal, whose leader is killed again and again while the context lasts.

    Args:
        journal: their journal.
        directory: of their logs.
        every: seconds between two kills.
        progress: shows each.

    Attributes:
        kills: how many there were.
    """

    def __init__(self, journal: str, directory: Path, every: float, progress: Progress) -> None:
        self._trackers = [
            TrackerProcess(directory / f"tracker-{place}", free_port(), journal, standby=True) for place in "ab"
        ]
        self._every = every
        self._progress = progress
        self._over = threading.Event()
        self._killing = threading.Thread(target=self._kill, daemon=True)
        self.kills = 0

    @property
    def address(self) -> str:
        """Both addresses, as clients name them."""
        return "+".join(tracker.address for tracker in self._trackers)

    def __enter__(self) -> Pair:
        first, second = self._trackers
        first.start()
        second.start(wait=False)
        self._killing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._killing.join()
        for tracker in self._trackers:
            tracker.stop()

    def _kill(self) -> None:
        leader, standby = self._trackers
        while not self._over.wait(self._every):
            pid = leader.pid
            leader.kill()
            standby.wait_until_it_listens()
            leader.start(wait=False)
            self.kills += 1
            self._progress.say(f"leader killed (SIGKILL, pid {pid}); pid {standby.pid} leads")
            leader, standby = standby, leader


def run(options: Options, directory: Path, progress: Progress) -> tuple[Outcome, int]:
    """Replay everything; all files are below `directory`. Return what was released, and how often a leader died."""
    flights = replay.departures(options.first_day, options.days)
    planes = replay.planes()
    expected = truth.daily(flights, planes)
    planes.to_parquet(directory / "planes.parquet", index=False)
    cut = Replay(flights, pd.Timedelta(hours=options.span), directory / "replay")
    timetable = flights.groupby(["origin", "day"], as_index=False).agg(flights=("row_id", "size"))
    progress.say(f"{len(flights):,} flights in {len(cut.files)} files of {options.span} hours each; starting Spark")
    with (
        Redis(directory / "redis") as redis,
        local_session(directory) as spark,
        Pair(redis.journal, directory, options.every, progress) as pair,
    ):
        running = pipeline.start(
            spark,
            pair.address,
            spark.readStream.schema(replay.DEPARTURES).parquet(str(cut.published)),
            spark.createDataFrame(timetable),
            spark.read.parquet(str(directory / "planes.parquet")),
            directory,
        )
        tracked = TrackedRun(running, directory / "released", cut, truth.due(expected, flights, cut.files))
        rows = 0
        for file in cut.publish():
            tracked.forward()
            tracked.settle()
            rows += file.rows
            progress.show(
                f"{file.until:%Y-%m-%d}   file {file.number + 1} of {len(cut.files)}   {rows:,} rows replayed   "
                f"{tracked.windows:,} windows released"
            )
        tracked.drain(timeout=120)
    return judge("tracker", tracked.released, expected, truth.complete(flights), cut.files), pair.kills


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m examples.flights.failover", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first-day", default=default.first_day, metavar="DATE", help=f"default {default.first_day}")
    parser.add_argument("--days", type=int, default=default.days, help=f"default {default.days}")
    parser.add_argument("--every", type=float, default=default.every, metavar="SECONDS", help="between two kills")
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS.with_name("flights-failover"))
    given = parser.parse_args(arguments)
    progress = Progress()
    try:
        shutil.rmtree(given.artifacts, ignore_errors=True)
        given.artifacts.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as directory:
            options = Options(given.first_day, given.days, every=given.every)
            outcome, kills = run(options, Path(directory), progress)
    except (DataMissingError, JavaMissingError, RedisMissingError, TrackerDiedError, OSError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2
    progress.say("replayed")
    text = f"""
Windows (airport, scheduled day, carrier) of {options.days} days, while the leader was killed {kills} times:

{table([outcome], COUNTS)}

tracker: {outcome.comparison}
"""
    print(text)
    (given.artifacts / "outcome.txt").write_text(text)
    if outcome.comparison.exact and kills:
        print("exact: the released table is what a batch computation over the same rows gives")
        return 0
    print("NOT EXACT: the released table is not what it has to be", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
