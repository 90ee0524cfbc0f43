"""What one way of releasing made of the replay: which windows came out, when, and which of them were wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from examples.flights.replay import DAY, File
from examples.flights.truth import KEY, Comparison, compare


@dataclass(frozen=True)
class Outcome:
    """One way of releasing, held against the truth.

    Attributes:
        name: of the way.
        windows: a row for each window of the truth: `KEY`, `hours` from the end of its day to its release on the
            replay's clock (null: never released), and whether it is `wrong`.
        lost: rows that are missing from windows that were released.
        comparison: its released table with the truth.
    """

    name: str
    windows: pd.DataFrame
    lost: int
    comparison: Comparison

    @property
    def released(self) -> int:
        """How many windows came out."""
        return int(self.windows["hours"].notna().sum())

    @property
    def wrong(self) -> int:
        """How many windows came out with other figures than the truth's."""
        return int(self.windows["wrong"].sum())

    @property
    def never(self) -> int:
        """How many windows never came out."""
        return int(self.windows["hours"].isna().sum())

    def row(self) -> list[str]:
        """For `table`."""
        median, most, longest = (self.windows["hours"].quantile(share) for share in (0.5, 0.95, 1.0))
        counts = (self.released, self.wrong, self.never, self.lost)
        return [self.name, *(f"{count:,}" for count in counts), *(f"{hours:.0f} h" for hours in (median, most, longest))]


def judge(name: str, released: pd.DataFrame, truth: pd.DataFrame, files: Sequence[File]) -> Outcome:
    """Hold a released table (`KEY`, `VALUES` and `file`, the number of the replay file that brought it out) to the truth."""
    comparison = compare(truth, released)
    first = released.sort_values("file").drop_duplicates(KEY).set_index(KEY)
    wanted = truth.set_index(KEY)
    until = pd.Series({file.number: file.until for file in files})
    windows = wanted[[]].reset_index()
    came_out = first["file"].map(until).reindex(wanted.index).reset_index(drop=True)
    windows["hours"] = (came_out - (windows["day"] + DAY)) / pd.Timedelta("1h")
    wrong = {(origin, pd.Timestamp(day, tz="UTC"), carrier) for origin, day, carrier in comparison.changed}
    windows["wrong"] = [window in wrong for window in wanted.index]
    lost = wanted["flights"].sub(first["flights"].reindex(wanted.index)).clip(lower=0).sum()
    return Outcome(name, windows, int(lost), comparison)


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes side by side, as text."""
    head = ["", "windows released", "wrong", "never", "rows lost", "released after: median", "95 %", "longest"]
    rows = [head, *(outcome.row() for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
