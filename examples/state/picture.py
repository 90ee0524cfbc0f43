"""The picture: rows of state over time, one line for each way to end them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from examples.state.replay import STEP, Entry
from examples.state.ways import Outcome

matplotlib.use("Agg")  # a file is all we want: no display is needed

_COLOURS = ("#0b6e4f", "#c8553d", "#d9912b", "#2f6690", "#7a4f9a")
_INK = "#222222"
_PALE = "#e8e8e8"


def draw(outcomes: Sequence[Outcome], truth: dict[Entry, int], needed: Sequence[int], path: Path) -> None:
    """Write the picture as a PNG.

    Args:
        outcomes: the tracker's first.
        truth: how many visits each entry has.
        needed: after each step, how many entries have begun and are not complete.
        path: where to.
    """
    whole = Figure(figsize=(11, 5.6), layout="constrained", facecolor="white")
    axis = whole.subplots()
    hours = [(step + 1) * STEP / 60 for step in range(len(needed) + 1)]  # what the last step leaves is shown, too
    axis.fill_between(
        hours, [*needed, needed[-1]], step="post", color=_PALE, label="entries that are not complete yet", linewidth=0
    )
    for outcome, colour in zip(outcomes, _COLOURS, strict=True):
        wrong = outcome.wrong(truth)
        label = f"{outcome.name}: {wrong:,} of {len(truth):,} results wrong" if wrong else f"{outcome.name}: all right"
        style = "-" if outcome is outcomes[0] else "--"
        axis.plot(
            hours,
            [*outcome.rows, outcome.rows[-1]],
            style,
            drawstyle="steps-post",
            color=colour,
            linewidth=2.2,
            label=label,
        )
    axis.set_title(
        "Rows in Spark's state store: six tenants, of which one is three hours late, and one cut off from 4 h to 8 h",
        loc="left",
        fontsize=11,
        color=_INK,
        fontweight="bold",
    )
    axis.set_xlim(0, hours[-1])
    axis.set_ylim(0, 1.35 * max(max(outcome.rows) for outcome in outcomes))
    axis.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(1))
    axis.set_xlabel("hours on the replay's clock")
    axis.set_ylabel("rows of state")
    axis.grid(axis="y", color=_PALE)
    axis.legend(frameon=False, loc="upper left", ncols=2)
    axis.spines[["top", "right"]].set_visible(False)
    whole.savefig(path, dpi=110)
