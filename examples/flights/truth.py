"""The right content of the released table: the same aggregation as one batch, by other means, and the comparison.

pandas computes it from the departures themselves, so that neither Spark nor the tracker has a part in the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from examples.flights.replay import File

KEY = ["origin", "day", "carrier"]
VALUES = ["flights", "departed", "mean_delay", "worst_delay", "seats"]


def daily(flights: pd.DataFrame, planes: pd.DataFrame) -> pd.DataFrame:
    """Return every window: one row an airport, scheduled day and carrier, with `KEY` and `VALUES`.

    A flight that never got an aircraft (no tail number) is left out. `seats` counts those of known aircraft; null when
    no aircraft of the window is known, as `mean_delay` and `worst_delay` (minutes) are when no flight left.
    """
    rows = flights[flights["tailnum"].notna()].merge(planes, on="tailnum", how="left")
    rows["delay"] = rows["dep_delay"].astype("float64")
    windows = rows.groupby(KEY, as_index=False).agg(
        flights=("row_id", "size"),
        departed=("delay", "count"),
        mean_delay=("delay", "mean"),
        worst_delay=("delay", "max"),
    )
    windows["seats"] = rows.groupby(KEY)["seats"].sum(min_count=1).to_numpy()
    return windows[KEY + VALUES].astype({"flights": "float64", "departed": "float64"})


def complete(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the end of each airport's day: `complete`, the departure of its last flight, by `origin` and `day`."""
    return flights.groupby(["origin", "day"], as_index=False).agg(complete=("known_at", "max"))


def due(windows: pd.DataFrame, flights: pd.DataFrame, files: Sequence[File]) -> list[int]:
    """Count, for each file of the replay, the windows of airports' days that were over by the file's end."""
    over = windows.merge(complete(flights), on=["origin", "day"])["complete"]
    return [int((over < file.until).sum()) for file in files]


@dataclass(frozen=True)
class Comparison:
    """Differences of a released table from the truth; every list holds windows as (origin, day, carrier)."""

    windows: int
    missing: list[tuple[str, str, str]] = field(default_factory=list)
    doubled: list[tuple[str, str, str]] = field(default_factory=list)
    changed: list[tuple[str, str, str]] = field(default_factory=list)
    unexpected: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Every window is there, exactly once, equal; and there were windows to compare."""
        return self.windows > 0 and not (self.missing or self.doubled or self.changed or self.unexpected)

    def __str__(self) -> str:
        if self.exact:
            return f"all {self.windows:,} windows there, exactly once, equal"
        found = [
            f"{len(windows):,} {name} (first: {' '.join(windows[0])})"
            for name, windows in vars(self).items()
            if name != "windows" and windows
        ]
        return f"of {self.windows:,} windows: " + ", ".join(found) if found else "no windows to compare"


def compare(truth: pd.DataFrame, released: pd.DataFrame) -> Comparison:
    """Hold the released table against the truth. Both have `KEY` and `VALUES`; order does not matter.

    Values are compared exactly: the delays are whole minutes, so their sums are exact and their means too.
    """
    wanted = truth.set_index(KEY)[VALUES].astype("float64")
    got = released.set_index(KEY)[VALUES].astype("float64")
    known = got[got.index.isin(wanted.index)]  # every copy of a window is looked at
    expected = wanted.loc[known.index]
    equal = (known.eq(expected) | (known.isna() & expected.isna())).all(axis=1)
    return Comparison(
        windows=len(wanted),
        missing=_names(wanted.index.difference(got.index)),
        doubled=_names(got.index[got.index.duplicated()].unique()),
        changed=_names(known.index[~equal].unique()),
        unexpected=_names(got.index.difference(wanted.index)),
    )


def _names(windows: pd.Index[Any]) -> list[tuple[str, str, str]]:
    return [(origin, f"{day:%Y-%m-%d}", carrier) for origin, day, carrier in windows.sort_values()]
