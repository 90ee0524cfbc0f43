"""Flights over Kafka into PostgreSQL, while Spark's driver, the tracker, the broker and the database are killed.

At the end the tables are held against a computation by pandas over the same flights: every window there, once, equal.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psycopg

from examples.flights import replay, truth
from examples.flights.agent import TrackerProcess
from examples.flights.progress import Progress
from examples.flights.replay import Replay
from examples.flights_kafka import pipeline
from examples.services.jars import MissingError
from examples.services.kafka import Kafka
from examples.services.postgres import Postgres
from examples.services.processes import Service
from spark_client import epochs_table
from tracker.client import TrackerClient

ROOT = Path(__file__).resolve().parents[2]
_FAILURES = 20  # of the driver: each kill of a service may fail it once or twice


@dataclass(frozen=True)
class Options:
    """The extent of a replay and its disturbances."""

    days: int
    span: int
    every: float
    kills: int
    seed: int


class DriverFailingError(Exception):
    """Spark's driver does not come back; the message is the end of its log."""


class Driver(Service):
    """Spark's driver and its children; started again whenever it has ended before it was to."""

    def __init__(self, command: list[str], log: Path) -> None:
        super().__init__(log)
        self._command = command
        self.starts = 0
        self.failures = 0

    def start(self) -> None:
        """Start the driver; its results are seen in the database."""
        self._launch(self._command, cwd=ROOT)
        self.starts += 1

    def look_after(self) -> bool:
        """Start the driver again if it has failed. Return whether it has ended well.

        Raises:
            DriverFailingError: the driver fails again and again.
        """
        assert self.process is not None
        status = self.process.poll()
        if status not in (None, 0):
            self.failures += 1
            if self.failures > _FAILURES:
                raise DriverFailingError("\n".join(self.log.read_text().splitlines()[-5:]))
            self.start()
        return status == 0

    def _answers(self) -> bool:
        return self.process is not None and self.process.poll() is None


def run(options: Options, directory: Path, progress: Progress) -> bool:
    """Replay the flights. Return whether the tables are right."""
    flights = replay.departures("2013-01-01", options.days)
    planes = replay.planes()
    planes.to_parquet(directory / "planes.parquet", index=False)
    timetable = flights.groupby(["origin", "day"], as_index=False).agg(flights=("row_id", "size"))
    timetable.astype({"day": "datetime64[us, UTC]"}).to_parquet(directory / "timetable.parquet", index=False)
    cut = Replay(flights, pd.Timedelta(hours=options.span), directory / "replay")
    dead = {row for row in flights["row_id"] if all(pipeline.fails(row, n + 1) for n in range(pipeline.TRIES))}
    lost = flights["row_id"].isin(dead)
    expected = truth.daily(flights[~lost], planes)
    given_up = int((lost & flights["tailnum"].notna()).sum())
    rounds = random.Random(options.seed)
    progress.say(f"{len(flights):,} flights in {len(cut.files)} files; {given_up} of them will be given up")

    with TrackerProcess(directory) as tracker, Kafka(directory / "kafka") as kafka, Postgres() as postgres:
        for topic in pipeline.TOPICS:
            kafka.create(topic)
        with psycopg.connect(postgres.dsn) as connection:
            connection.execute(epochs_table())
            connection.execute(pipeline.TABLES)
        command = [sys.executable, "-m", "examples.flights_kafka.driver", "--directory", str(directory)]
        command += ["--tracker", tracker.address, "--kafka", kafka.servers, "--postgres", postgres.dsn]
        driver = Driver(command, directory / "driver.log")
        kills: dict[str, Callable[[], None]] = {
            "Spark's driver": driver.restart,
            "tracker": tracker.restart,
            "Kafka": kafka.restart,
            "PostgreSQL": postgres.restart,
        }
        progress.say(f"tracker {tracker.address}, Kafka {kafka.servers}, PostgreSQL {postgres.dsn}; starting Spark")
        killed: collections.Counter[str] = collections.Counter()
        driver.start()
        try:
            publishing = cut.publish()
            next(publishing)
            left = [kind for kind in kills for _ in range(options.kills)]
            rounds.shuffle(left)
            files, published, again = len(cut.files), 1, time.monotonic() + options.every
            while (windows := _windows(postgres)) < len(expected):
                progress.show(
                    f"file {published} of {files}   {windows:,} of {len(expected):,} windows released   "
                    f"killed: {sum(killed.values())}   driver started {driver.starts} times"
                )
                time.sleep(0.5)
                driver.look_after()
                if time.monotonic() < again:
                    continue
                if published < files - 1 or (published < files and not left):  # the last file waits for the last kill
                    next(publishing)
                    published += 1
                if left and windows:  # first let it come to work
                    what = left.pop()
                    kills[what]()
                    killed[what] += 1
                    progress.say(f"killed (SIGKILL) and started again: {what}")
                again = time.monotonic() + options.every * rounds.uniform(0.5, 1.5)
            progress.say("all windows are there; draining")
            with TrackerClient(tracker.address, retry_for=60) as client:
                client.drain("flights", "1", "demo")
                while not driver.look_after():
                    time.sleep(0.2)
                status = client.job("flights")
            with psycopg.connect(postgres.dsn) as connection:
                daily = pd.DataFrame(
                    connection.execute(
                        "select origin, window_start, carrier, flights, departed, mean_delay, worst_delay, seats "
                        "from daily"
                    ).fetchall(),
                    columns=[*truth.KEY, *truth.VALUES],
                )
                daily["day"] = pd.to_datetime(daily["day"], utc=True)
                ((dead_letters,),) = connection.execute("select coalesce(sum(flights), 0) from given_up").fetchall()
        finally:
            driver.kill()

    comparison = truth.compare(expected, daily)
    print(f"\nkilled: {', '.join(f'{what} {times}' for what, times in sorted(killed.items())) or 'nothing'}")
    print(f"table daily: {comparison}")
    print(f"table given_up: {dead_letters} flights, {given_up} expected")
    print(
        f"tracker: {status.open_substreams} substreams open, {status.in_flight} in flight, {status.late_reports} late"
    )
    return comparison.exact and dead_letters == given_up and not status.open_substreams and not status.late_reports


def _windows(postgres: Postgres) -> int:
    try:
        with psycopg.connect(postgres.dsn) as connection:
            ((count,),) = connection.execute("select count(*) from daily").fetchall()
    except psycopg.OperationalError:  # it comes back
        return 0
    return int(count)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights_kafka.demo", description=__doc__)
    parser.add_argument("--days", type=int, default=28, help="default 28")
    parser.add_argument("--span", type=int, default=24, help="hours of one file; default 24")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between files, and kills; default 4")
    parser.add_argument("--kills", type=int, default=2, help="of each kind; default 2")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    progress = Progress()
    directory = Path(tempfile.mkdtemp(prefix="flights-kafka-"))
    try:
        options = Options(given.days, given.span, given.every, given.kills, given.seed)
        exact = run(options, directory, progress)
    except DriverFailingError as error:
        print(
            f"\ndemo-kafka: Spark's driver fails again and again; see {directory}/driver.log\n{error}", file=sys.stderr
        )
        return 1
    except MissingError as error:
        print(f"demo-kafka: {error}", file=sys.stderr)
        return 2
    if not exact:
        print(f"NOT EXACT: logs and checkpoints are in {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    print("exact: the tables are what a batch computation over the same flights gives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
