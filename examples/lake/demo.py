"""Flights over Spark Connect into Delta and Iceberg, all in an object store, while everything is killed.

An application starts two queries over Spark Connect, and ends. Their checkpoints, the channel between them and the
tables are in a store with the interface of S3; so is the tracker's journal. The processes in which the queries have
their batches are killed, then the store, then the tracker. Whenever a query has ended, the application is started
again, as a scheduler would. At the end both tables are read without Spark, held against a computation by pandas, and
asked which days are complete.

The exit status is 0 if both tables are exact and complete, 1 if not, 2 if the demonstration could not run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from examples.flights import replay, truth
from examples.flights.agent import TrackerProcess
from examples.flights.progress import Progress
from examples.lake.services import LakeServer, catalog_of, environment
from examples.services.jars import MissingError
from examples.services.s3 import S3
from spark_client import complete
from tracker.client import TrackerClient

_PLACE = "state/flights"
_STARTS = 30  #: of the application: each kill costs one or two
_PATIENCE = 600.0  #: seconds without an end of the queries


class Lake:
    """The job, and those who keep it going."""

    def __init__(self, directory: Path, days: int, progress: Progress) -> None:
        self._directory = directory
        self._progress = progress
        self.flights = replay.departures("2013-02-04", days)
        self.windows = truth.daily(self.flights, replay.planes())
        self._replay = replay.Replay(self.flights, pd.Timedelta(hours=12), directory)
        counts = self.flights.groupby(["origin", "day"], as_index=False).size().rename(columns={"size": "flights"})
        counts.astype({"day": "datetime64[us, UTC]"}).to_parquet(directory / "timetable.parquet", index=False)
        replay.planes().to_parquet(directory / "planes.parquet", index=False)
        self.store = S3(directory / "store")
        self._starts = 0

    def run(self) -> bool:
        """Replay all, kill all, and tell whether what is in the tables is right."""
        with self.store:
            os.environ.update(environment(self.store))
            (self._directory / "connect").mkdir()
            journal = f"s3://state/tracker?endpoint={self.store.endpoint}"
            with (
                TrackerProcess(self._directory, journal=journal) as self.tracker,
                LakeServer(self._directory / "connect", self.store) as self.connect,
            ):
                self._progress.say(f"{len(self.flights):,} flights, {len(self.windows):,} windows to come; starting")
                kills = {len(self._replay.files) * part // 4: kill for part, kill in enumerate(self._kills(), 1)}
                for file in self._replay.publish():
                    self._keep_going()
                    self._progress.show(f"until {file.until:%d %b %H:%M}")
                    if kill := kills.get(file.number):
                        kill()
                    time.sleep(1)
                self._await_ends()
                found = [self._judge("Delta", *self._delta()), self._judge("Iceberg", *self._iceberg())]
                self.connect.kill()
        return all(found)

    def _kills(self) -> Iterator[Callable[[], None]]:
        def queries() -> None:
            found = self.connect.queries()
            for process in found:
                os.kill(process, signal.SIGKILL)
            self._progress.say(f"killed the processes of {len(found)} queries")

        def store() -> None:
            self.store.kill()
            time.sleep(2)
            self.store.start()
            self._progress.say("killed the store, and started it again after two seconds")

        def tracker() -> None:
            self.tracker.kill()
            time.sleep(2)
            self.tracker.start()
            self._progress.say("killed the tracker, and started it again after two seconds")

        yield from (queries, store, tracker)

    def _keep_going(self) -> None:
        """Start the application if a query of it does not run."""
        if len(self.connect.queries()) >= 2:
            return
        self._starts += 1
        if self._starts > _STARTS:
            raise RuntimeError(f"the queries do not go on; see {self.connect.log}")
        words = [self.connect.url, self.tracker.address, str(self._directory), f"s3a://{_PLACE}"]
        command = [sys.executable, "-m", "examples.lake.application", *words]
        log = self._directory / "application.log"
        with log.open("a") as out:
            subprocess.run(command, stdout=out, stderr=out, timeout=300, check=False)
        until = time.monotonic() + 30
        while len(self.connect.queries()) < 2 and time.monotonic() < until:
            time.sleep(0.2)

    def _await_ends(self) -> None:
        until = time.monotonic() + _PATIENCE
        with TrackerClient(self.tracker.address, retry_for=60) as client:
            while time.monotonic() < until:
                self._keep_going()
                status = client.job("flights")
                self._progress.show(f"{status.open_substreams} airports' days are open")
                written = min(len(self._delta()[0]), len(self._iceberg()[0]))
                if not status.open_substreams and written >= len(self.windows):
                    return
                time.sleep(1)
        raise RuntimeError(f"not all days have ended; see {self.connect.log}")

    def _delta(self) -> tuple[pd.DataFrame, Any]:
        import deltalake

        try:
            table = deltalake.DeltaTable(f"s3://{_PLACE}/daily", storage_options={"AWS_ALLOW_HTTP": "true"})
        except deltalake.exceptions.TableNotFoundError:
            return pd.DataFrame(), None
        return _plain(table.to_pyarrow_table()), table

    def _iceberg(self) -> tuple[pd.DataFrame, Any]:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = catalog_of(self.store, self.connect.catalog).load_table("flights.daily")
        except NoSuchTableError:
            return pd.DataFrame(), None
        return _plain(table.scan().to_arrow()), table

    def _judge(self, name: str, rows: pd.DataFrame, table: Any) -> bool:
        comparison = truth.compare(self.windows, rows)
        days = self.flights.groupby(["origin", "day"]).size().index
        open_ = [1 for origin, day in days if not complete(table, origin, (day, day + replay.DAY))]
        self._progress.say(f"{name}: {comparison}; {len(days) - len(open_)} of {len(days)} airports' days complete")
        return comparison.exact and not open_


def _plain(table: Any) -> pd.DataFrame:
    """Return the rows of a table, as the truth has them."""
    rows = table.to_pylist()
    frame = pd.DataFrame(rows, columns=["origin", "window", "carrier", *truth.VALUES])
    frame["day"] = pd.to_datetime([each["start"] for each in frame["window"]], utc=True)
    return frame[truth.KEY + truth.VALUES]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.lake.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--days", type=int, default=14, help="of flights (default: %(default)s)")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="lake-"))
    progress = Progress()
    try:
        exact = Lake(directory, given.days, progress).run()
    except (MissingError, replay.DataMissingError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    progress.say("exact" if exact else f"NOT exact; logs are in {directory}")
    if exact:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
