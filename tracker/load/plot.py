"""The picture of a run: latencies, memory and disk over time. No other module of `tracker.load` needs matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from tracker.load.results import Result, Series
from tracker.load.scenario import Scenario

matplotlib.use("Agg")  # writes files without a display

_MEDIAN: Final = "#2f6690"
_TAIL: Final = "#c8553d"
_DISK: Final = "#d9912b"
_FLOOR: Final = "#999999"
_PALE: Final = "#e8e8e8"


def draw(scenario: Scenario, name: str, result: Result, path: Path) -> None:
    """Draw a run and write the picture as a PNG."""
    uses = [(sample.at, sample.server) for sample in result.samples if sample.server is not None]
    rows = 3 if uses else 2
    figure = Figure(figsize=(11, 2.4 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    series = result.series
    _latency(axes[0], series, series.report_p50, series.report_p99, "Reports: from due to answered")
    _latency(axes[1], series, series.end_p50, series.end_p99, "Ends: from due to seen by the watcher")
    if uses:
        at = [moment for moment, _ in uses]
        axes[2].plot(at, [use.memory / (1 << 20) for _, use in uses], color=_MEDIAN, label="memory")
        axes[2].plot(at, [use.disk / (1 << 20) for _, use in uses], color=_DISK, label="disk")
        axes[2].set_ylim(bottom=0)
        _dress(axes[2], "The tracker's memory and disk", "size, MiB")
    since, until = scenario.warm_up, scenario.warm_up + scenario.duration
    for axis in axes:
        axis.set_xlim(0, until)
        axis.axvspan(0, since, color=_PALE, zorder=0)
    axes[-1].set_xlabel("time after the start, s (grey: the warm-up, which is not counted)")
    figure.suptitle(
        f"{name}: {scenario.rate:g} reports/s, {scenario.producers} producers, {scenario.segments} segments, "
        f"{scenario.open:,} substreams open, {scenario.open / scenario.lifetime:,.0f} ending every second",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def _latency(axis: Axes, series: Series, p50: tuple[float, ...], p99: tuple[float, ...], title: str) -> None:
    if not all(map(math.isnan, series.floor_p99)):
        axis.plot(series.at, series.floor_p99, color=_FLOOR, linewidth=0.9, label="p99 of a call that does nothing")
    axis.plot(series.at, p99, color=_TAIL, linewidth=1.2, label="p99")
    axis.plot(series.at, p50, color=_MEDIAN, linewidth=1.2, label="p50")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    _dress(axis, title, "latency, ms")


def _dress(axis: Axes, title: str, quantity: str) -> None:
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axis.set_ylabel(quantity)
    axis.grid(axis="y", color=_PALE)
    axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=9, borderpad=0)
    axis.spines[["top", "right"]].set_visible(False)
