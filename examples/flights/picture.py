"""The picture: how long each airport's day was kept after its last flight had left, tracker against watermark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter
from matplotlib.figure import Figure

from examples.flights.outcome import Outcome

matplotlib.use("Agg")  # a file is all we want: no display is needed

_COLOURS = ("#0b6e4f", "#c8553d", "#d9912b", "#2f6690")
_INK = "#222222"
_PALE = "#e8e8e8"


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the picture as a PNG.

    Args:
        outcomes: the tracker's first, then the watermarks'.
        path: where to.
    """
    figure(outcomes).savefig(path, dpi=110)


def figure(outcomes: Sequence[Outcome]) -> Figure:
    """Draw every window by its day, and the share of windows that were out by then."""
    hours = pd.concat([outcome.windows["hours"] for outcome in outcomes])
    low, high = min(hours.min(), 0) - 2, hours.max() + 5
    whole = Figure(figsize=(12, 1.7 * len(outcomes) + 1.8), layout="constrained", facecolor="white")
    whole.suptitle(
        "How long after the last flight of an airport's day is the day's result released?",
        x=0.01,
        ha="left",
        fontsize=15,
        color=_INK,
    )
    left, right = whole.subfigures(1, 2, squeeze=False, width_ratios=[1.75, 1])[0]
    axes = left.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
    for axis, outcome, colour in zip(axes, outcomes, _COLOURS, strict=False):
        _by_day(axis, outcome, colour, low, high)
    axes[-1].set_xlabel("scheduled day; one dot is one window (airport, day, carrier)")
    _shares(right.subplots(), outcomes, low, high)
    return whole


def _by_day(axis: Axes, outcome: Outcome, colour: str, low: float, high: float) -> None:
    windows = outcome.windows
    never = windows["hours"].isna()
    right = windows[~never & ~windows["wrong"]]
    wrong = windows[windows["wrong"]]
    axis.plot(right["day"], right["hours"], ".", color=colour, markersize=5)
    axis.plot(wrong["day"], wrong["hours"], "X", color=_INK, markersize=8, markeredgecolor="white")
    axis.plot(windows[never]["day"], [high - 2] * never.sum(), "^", color=_INK, markersize=7, markeredgecolor="white")
    found = [
        f"{outcome.wrong:,} wrong (✖), {outcome.lost:,} flights lost" if outcome.wrong else "none wrong",
        f"{outcome.never:,} never released (▲)" if outcome.never else "all released",
    ]
    axis.set_title(f"{outcome.name}:  {',  '.join(found)}", loc="left", fontsize=11, color=colour, fontweight="bold")
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(matplotlib.ticker.MultipleLocator(12))
    axis.set_ylabel("hours")
    axis.xaxis.set_major_locator(AutoDateLocator())  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_formatter(DateFormatter("%-d %b"))  # type: ignore[no-untyped-call]
    axis.grid(axis="y", color=_PALE)
    axis.spines[["top", "right"]].set_visible(False)


def _shares(axis: Axes, outcomes: Sequence[Outcome], low: float, high: float) -> None:
    for outcome, colour in zip(outcomes, _COLOURS, strict=False):
        hours = outcome.windows["hours"].sort_values()
        share = [100 * (place + 1) / len(hours) for place in range(len(hours))]
        axis.plot(hours, share, drawstyle="steps-post", color=colour, label=outcome.name, linewidth=2.2)
    axis.set_title("Share of all windows released by then", loc="left", fontsize=11, fontweight="bold", color=_INK)
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(6))
    axis.set_ylim(0, 101)
    axis.set_xlabel("hours after the last flight of the airport's day")
    axis.set_ylabel("% of all windows")
    axis.grid(axis="y", color=_PALE)
    axis.legend(frameon=False, loc="best")
    axis.spines[["top", "right"]].set_visible(False)
