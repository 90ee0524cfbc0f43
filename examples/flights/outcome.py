"""Outcome of one way of releasing the replay: the windows that came out, when each did, and which were wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from examples.flights.replay import File
from examples.flights.truth import KEY, Comparison, compare


@dataclass(frozen=True)
class Outcome:
    """One way of releasing, held against the truth.

    Attributes:
        name: of the way.
        windows: a row for each window of the truth: `KEY`; `hours` from the departure of the last flight of that
            airport's day to the release (null: never released); `files` of the replay in between; and whether it is
            `wrong`.
        lost: rows that are missing from windows that were released.
        comparison: its released table with the truth.
    """

    name: str
    windows: pd.DataFrame
    lost: int
    comparison: Comparison

    @property
    def released(self) -> int:
        """Number of windows that came out."""
        return int(self.windows["hours"].notna().sum())

    @property
    def wrong(self) -> int:
        """Number of windows that came out with other figures than the truth's."""
        return int(self.windows["wrong"].sum())

    @property
    def never(self) -> int:
        """Number of windows that never came out."""
        return int(self.windows["hours"].isna().sum())

    @property
    def at_once(self) -> float:
        """The share of windows that came out by the very file that completed their day."""
        return float((self.windows["files"] == 0).mean())


def judge(
    name: str, released: pd.DataFrame, truth: pd.DataFrame, complete: pd.DataFrame, files: Sequence[File]
) -> Outcome:
    """Hold a released table to the truth.

    Args:
        name: of the way it was released.
        released: `KEY`, `VALUES` and `file`, the number of the replay file that brought the window out.
        truth: of `truth.daily`.
        complete: of `truth.complete`.
        files: the replay's.
    """
    comparison = compare(truth, released)
    first = released.sort_values("file").drop_duplicates(KEY)[[*KEY, "flights", "file"]]
    windows = truth[[*KEY, "flights"]].merge(first, on=KEY, how="left", suffixes=("", "_released"))
    windows = windows.merge(complete, on=["origin", "day"])
    until = pd.Series([file.until for file in files], dtype="datetime64[us, UTC]")
    windows["hours"] = (windows["file"].map(until) - windows["complete"]).dt.total_seconds() / 3600
    windows["files"] = windows["file"] - until.searchsorted(windows["complete"], side="right")
    wrong = pd.DataFrame(comparison.changed, columns=KEY).assign(wrong=True)
    wrong["day"] = pd.to_datetime(wrong["day"], utc=True)
    windows = windows.merge(wrong, on=KEY, how="left")
    windows["wrong"] = windows["wrong"].notna()
    lost = (windows["flights"] - windows["flights_released"]).clip(lower=0).sum()
    return Outcome(name, windows[[*KEY, "hours", "files", "wrong"]], int(lost), comparison)


Column = tuple[str, Callable[[Outcome], str]]  #: a heading, and the cell of one outcome

#: Columns of the counts of windows.
COUNTS: Sequence[Column] = (
    ("released", lambda way: f"{way.released:,}"),
    ("wrong", lambda way: f"{way.wrong:,}"),
    ("never", lambda way: f"{way.never:,}"),
    ("rows lost", lambda way: f"{way.lost:,}"),
)

#: How soon, in hours; of use only if the replay's steps are short beside the delays.
DELAYS: Sequence[Column] = (
    ("at once", lambda way: f"{way.at_once:.0%}"),
    ("median", lambda way: f"{way.windows['hours'].quantile(0.5):.1f} h"),
    ("95 %", lambda way: f"{way.windows['hours'].quantile(0.95):.1f} h"),
    ("longest", lambda way: f"{way.windows['hours'].max():.1f} h"),
)


def table(outcomes: Sequence[Outcome], columns: Sequence[Column]) -> str:
    """Return the outcomes side by side, as text."""
    rows = [["", *(heading for heading, _ in columns)]]
    rows += [[each.name, *(cell(each) for _, cell in columns)] for each in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["   ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
