"""Rows of the table from real data: two weeks of flights in hourly steps, as in `make demo-delays`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.exactness.report import Data, Line
from examples.flights.demo import Options, run
from examples.flights.outcome import Outcome
from examples.flights.progress import Progress

WORKLOAD = "flights"
_WAYS = {
    "tracker": "`Schedule(timetable)`: how many flights each airport's day has; killed half way",
    "watermark, 1 hour": '`withWatermark("sched_dep", "1 hour")`, append mode',
    "watermark, 24 hours": '`withWatermark("sched_dep", "24 hours")`, append mode',
}


def lines(progress: Progress, data: Data) -> list[Line]:
    """Replay the flights.

    Args:
        progress: is shown.
        data: gets the description of the workload.
    """
    options = Options("2013-04-08", 14, span=1)
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as directory:
        result = run(options, Path(directory), progress)
    data.workloads[WORKLOAD] = {"first_day": options.first_day, "days": options.days, "hours of a step": options.span}
    return [_line(way) for way in (result.tracked, *result.watermarks)]


def _line(way: Outcome) -> Line:
    windows = way.windows
    right = windows["hours"].notna() & ~windows["wrong"]
    came = windows[windows["hours"].notna()].groupby(["origin", "carrier"])["day"].max().rename("newest")
    newest = windows.join(came, on=["origin", "carrier"])["newest"]
    minutes = windows.loc[right, "hours"] * 60
    return Line(
        workload=WORKLOAD,
        engine=f"Spark with the {way.name}" if way.name == "tracker" else f"Spark, {way.name}",
        query="daily",
        configured=_WAYS[way.name],
        windows=len(windows),
        right=int(right.sum()) - len(way.comparison.doubled),
        wrong=way.wrong + len(way.comparison.unexpected),
        never=way.never,
        dropped=int((windows["hours"].isna() & (windows["day"] < newest)).sum()),
        doubled=len(way.comparison.doubled),
        lost=way.lost,
        aside=None,
        median=round(float(minutes.median()), 2),
        longest=round(float(minutes.max()), 2),
    )
