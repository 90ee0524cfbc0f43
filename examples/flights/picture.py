"""The picture: how long each airport's day was kept after its last flight had left, tracker against watermark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, MonthLocator
from matplotlib.figure import Figure

from examples.flights.outcome import Outcome

matplotlib.use("Agg")  # a file is all we want: no display is needed

_COLOURS = ("#0b6e4f", "#c8553d", "#d9912b", "#2f6690")
_INK = "#222222"
_PALE = "#e8e8e8"


def draw(outcomes: Sequence[Outcome], span: int, path: Path) -> None:
    """Write the picture as a PNG.

    Args:
        outcomes: the tracker's first, then the watermarks'.
        span: hours of one step of the replay: no release can be timed more finely.
        path: where to.
    """
    hours = pd.concat([outcome.windows["hours"] for outcome in outcomes])
    low, high = min(hours.min(), 0) - 6, hours.max() + 12
    figure = Figure(figsize=(13, 1.9 * len(outcomes) + 1.6))
    grid = figure.add_gridspec(
        len(outcomes), 2, width_ratios=[1.9, 1], hspace=0.55, wspace=0.2, left=0.06, right=0.98, top=0.85, bottom=0.1
    )
    for row, (outcome, colour) in enumerate(zip(outcomes, _COLOURS, strict=False)):
        axis = figure.add_subplot(grid[row, 0])
        _through_the_year(axis, outcome, colour, span, low, high)
        axis.tick_params(labelbottom=row == len(outcomes) - 1)
    _shares(figure.add_subplot(grid[:, 1]), outcomes, span, low, high)
    figure.text(0.06, 0.95, "How long is an airport's day kept after its last flight has left?", fontsize=16)
    figure.text(
        0.06,
        0.915,
        "One dot is one window: airport, scheduled day, carrier. Time is the replay's clock, which moves in steps of "
        f"{span} hours; grey: released in the same step as the last flight.",
        fontsize=9.5,
        color="#555555",
    )
    figure.savefig(path, dpi=110)


def _through_the_year(axis: Axes, outcome: Outcome, colour: str, span: int, low: float, high: float) -> None:
    windows = outcome.windows
    never = windows["hours"].isna()
    right = windows[~never & ~windows["wrong"]]
    wrong = windows[windows["wrong"]]
    axis.axhspan(0, span, color=_PALE, zorder=0)
    axis.plot(right["day"], right["hours"], ".", color=colour, markersize=2.5)
    axis.plot(wrong["day"], wrong["hours"], "X", color=_INK, markersize=8, markeredgecolor="white")
    axis.plot(windows[never]["day"], [high - 5] * never.sum(), "^", color=_INK, markersize=7, markeredgecolor="white")
    told = [
        f"{outcome.wrong:,} wrong (✖), {outcome.lost:,} flights lost" if outcome.wrong else "none wrong",
        f"{outcome.never:,} never released (▲)" if outcome.never else "all released",
    ]
    axis.set_title(f"{outcome.name}:  {',  '.join(told)}", loc="left", fontsize=11, color=colour, fontweight="bold")
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(matplotlib.ticker.MultipleLocator(24))
    axis.set_ylabel("hours")
    axis.xaxis.set_major_locator(MonthLocator())  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_formatter(DateFormatter("%b"))  # type: ignore[no-untyped-call]
    axis.spines[["top", "right"]].set_visible(False)


def _shares(axis: Axes, outcomes: Sequence[Outcome], span: int, low: float, high: float) -> None:
    axis.axvspan(0, span, color=_PALE, zorder=0)
    for outcome, colour in zip(outcomes, _COLOURS, strict=False):
        hours = outcome.windows["hours"].sort_values()
        share = [100 * (place + 1) / len(hours) for place in range(len(hours))]
        axis.plot(hours, share, drawstyle="steps-post", color=colour, label=outcome.name, linewidth=2.2)
    axis.set_title("Windows released by then", loc="left", fontsize=11, fontweight="bold")
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(24))
    axis.set_ylim(0, 101)
    axis.set_xlabel("hours after the last flight of the airport's day")
    axis.set_ylabel("% of all windows")
    axis.grid(axis="y", color=_PALE)
    axis.legend(frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
