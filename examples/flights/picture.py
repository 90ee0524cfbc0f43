"""The picture: how long after the end of its day each window was released, tracker against watermark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.dates as dates
import pandas as pd
from matplotlib.axes import Axes

from examples.flights.outcome import Outcome

matplotlib.use("Agg")  # a file is all we want: no display is needed

from matplotlib import pyplot as plt  # noqa: E402

_COLOURS = ["#0b6e4f", "#d1495b", "#edae49", "#30638e"]


def draw(outcomes: Sequence[Outcome], span: pd.Timedelta, path: Path) -> None:
    """Write the picture as a PNG.

    Args:
        outcomes: the tracker's first, then the watermarks'.
        span: of one file of the replay: no release can be timed more finely.
        path: where to.
    """
    figure, axes = plt.subplots(
        len(outcomes) + 1, 1, figsize=(11, 2.1 * len(outcomes) + 4), height_ratios=[*(1 for _ in outcomes), 1.6]
    )
    longest = max(outcome.windows["hours"].max() for outcome in outcomes)
    for outcome, colour, axis in zip(outcomes, _COLOURS, axes, strict=False):
        _over_the_year(axis, outcome, colour, longest)
    _shares(axes[-1], outcomes, longest)
    figure.suptitle("When is an airport's day released, and is it right?", x=0.01, ha="left", fontsize=15)
    figure.text(
        0.01,
        0.005,
        f"Time is the replay's clock; the replay moves in steps of {span / pd.Timedelta('1h'):g} hours. "
        "One dot is one window: an airport, a scheduled day and a carrier.",
        fontsize=9,
        color="#555555",
    )
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _over_the_year(axis: Axes, outcome: Outcome, colour: str, longest: float) -> None:
    windows = outcome.windows
    right, wrong, never = (
        windows[windows["hours"].notna() & ~windows["wrong"]],
        windows[windows["wrong"]],
        windows[windows["hours"].isna()],
    )
    axis.plot(right["day"], right["hours"], ".", color=colour, markersize=3, alpha=0.4)
    axis.plot(wrong["day"], wrong["hours"], "x", color="black", markersize=7, markeredgewidth=1.6)
    axis.plot(never["day"], [longest * 1.02] * len(never), "^", color="black", markersize=6, clip_on=False)
    told = [f"{outcome.wrong:,} wrong (x)" if outcome.wrong else "none wrong"]
    told.append(f"{outcome.never:,} never released (▲)" if outcome.never else "all released")
    axis.set_title(f"{outcome.name}: {', '.join(told)}", loc="left", fontsize=11, color=colour, fontweight="bold")
    axis.set_ylim(0, longest * 1.05)
    axis.set_ylabel("hours after\nthe day's end")
    axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(axis.xaxis.get_major_locator()))
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _shares(axis: Axes, outcomes: Sequence[Outcome], longest: float) -> None:
    for outcome, colour in zip(outcomes, _COLOURS, strict=False):
        hours = outcome.windows["hours"].sort_values()
        share = [100 * (place + 1) / len(hours) for place in range(len(hours))]
        axis.plot(hours, share, drawstyle="steps-post", color=colour, label=outcome.name, linewidth=2)
    axis.set_title("Windows released so long after their day's end", loc="left", fontsize=11, fontweight="bold")
    axis.set_xlim(0, longest * 1.05)
    axis.set_ylim(0, 101)
    axis.set_xlabel("hours after the day's end")
    axis.set_ylabel("% of windows")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
