"""The report of shadow mode: window by window, what a job on a watermark closed too early, and what it lost.

As a table, and as a picture: an SVG file that stands alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import check_present
from spark_client.release.ledger import ledger
from spark_client.release.receipts import RECEIPT_SCHEMA
from spark_client.shadow.job import ShadowedJob

_RESULT = ("scope", "end_time", "rows")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 960, 190, 70, 70, 60
_INK, _PALE, _LOST = "#222222", "#dddddd", "#c8553d"


def shadow_report(
    spark: SparkSession,
    job: ShadowedJob,
    receipts: str | os.PathLike[str],
    result: DataFrame,
    late: Sequence[str | os.PathLike[str]] = (),
    lost: DataFrame | None = None,
) -> DataFrame:
    """Compare a job on Spark's watermark with what really ended, window by window.

    Args:
        spark: the session that reads receipts and tables.
        job: the query on the watermark, whose batches have been noted.
        receipts: of the release that has counted the same source beside it.
        result: what the job has written, as ``scope``, ``end_time`` of the window and ``rows``, its ``count(*)``.
            Several lines of a window are added up.
        late: the table of late rows of that release.
        lost: what `ShadowedJob.lost` has found, with ``scope``: then the report has by how much the rows were too late.

    Returns:
        A line for each window that has ended: ``scope``, ``end_time``, ``seen`` (rows that came at all), ``in_result``,
        ``lost`` (null while the job has the window open), ``closed_at``, ``ended_at``, ``minutes_early`` (how long
        before the end the job had closed it; negative: after it), and of ``lost`` rows ``explained`` (how many of them
        came under a watermark that was too far on) and ``minutes_late`` (by so much more the job's delay would have had
        to be, for the latest of them).

    Raises:
        UsageError: a column is not there.

    >>> shadow_report(spark, job, "/data/shadow/receipts", daily).where("lost > 0").show()     # doctest: +SKIP
    """
    check_present(_RESULT, result.columns, "shadow_report(result): column")
    ends = spark.read.schema(RECEIPT_SCHEMA).parquet(os.fspath(receipts)).where("revision = 0")
    ended = ends.groupBy("scope", "end_time").agg(F.max("ended").alias("ended_at"))
    seen = ledger(spark, receipts, late).where("segment is null and end_time is not null")
    seen = seen.groupBy("scope", "end_time").agg(F.sum("sent").alias("seen"))
    written = result.groupBy("scope", "end_time").agg(F.sum("rows").alias("in_result"))
    closed = job.closed(seen)
    if lost is None:
        lost = spark.createDataFrame([], "scope string, end_time timestamp, minutes_late double")
        explained = F.lit(None).cast("long")
    else:
        explained = F.coalesce("explained", F.lit(0).cast("long"))
    too_late = lost.groupBy("scope", "end_time").agg(
        F.count("*").alias("explained"), F.max("minutes_late").alias("minutes_late")
    )
    window = ["scope", "end_time"]
    lines = seen.join(ended, window, "left").join(written, window, "left").join(too_late, window, "left")
    in_result = F.coalesce("in_result", F.lit(0).cast("long"))
    is_closed = F.col("closed_at").isNotNull() | F.col("in_result").isNotNull()
    early = F.when(is_closed, (F.unix_millis("ended_at") - F.unix_millis("closed_at")) / 60_000)
    return lines.join(closed, "end_time", "left").select(
        *window,
        "seen",
        in_result.alias("in_result"),
        F.when(is_closed, F.col("seen") - in_result).alias("lost"),
        "closed_at",
        "ended_at",
        early.alias("minutes_early"),
        explained.alias("explained"),
        "minutes_late",
    )


@dataclass(frozen=True)
class _Line:
    scope: str
    end: datetime
    seen: int
    lost: int
    late: float | None


def draw_shadow_report(report: DataFrame, path: str | os.PathLike[str], title: str = "") -> None:
    """Draw how many rows each window has lost, and by how much the latest of them was too late.

    Args:
        report: of `shadow_report`. Windows that the job has open are left out.
        path: of the SVG file.
        title: stands above it; empty: the number of rows and windows concerned.

    >>> draw_shadow_report(report, "/data/shadow/report.svg")                                 # doctest: +SKIP
    """
    rows = report.where("lost is not null").orderBy("end_time", "scope").collect()
    lines = [_Line(row.scope or "", row.end_time, row.seen, row.lost, row.minutes_late) for row in rows]
    Path(path).write_text(svg(lines, title), encoding="utf-8")


def svg(lines: Sequence[_Line], title: str = "") -> str:
    """Return the picture's text; one bar and one dot for each window, in the order of the lines."""
    lost, seen = sum(line.lost for line in lines), sum(line.seen for line in lines)
    wrong = sum(line.lost != 0 for line in lines)
    title = title or f"{lost:,} of {seen:,} rows lost, in {wrong:,} of {len(lines):,} windows"
    height = _TOP + 2 * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{_INK}"><title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="30" font-size="18" font-weight="bold">{escape(title)}</text>',
        *_panel("rows that the job has lost", _TOP, [(line, float(line.lost)) for line in lines], bars=True),
        *_panel(
            "minutes by which the latest row was too late",
            _TOP + _HEIGHT + _GAP,
            [(line, line.late) for line in lines],
            bars=False,
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(name: str, top: float, values: Sequence[tuple[_Line, float | None]], bars: bool) -> Iterator[str]:
    known = [value for _, value in values if value is not None]
    most = max([*known, 1.0])
    bottom, width = top + _HEIGHT, _WIDTH - _LEFT - 20
    step = width / max(1, len(values))
    yield f'<text x="{_LEFT}" y="{top - 8}">{escape(name)}</text>'
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _HEIGHT
        yield f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_PALE}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share * most:,.0f}</text>'
    for place, (line, value) in enumerate(values):
        if value is None or (bars and not value):
            continue
        x, tall = _LEFT + place * step, max(0.0, value) / most * _HEIGHT
        text = f"{line.scope} {line.end:%Y-%m-%d %H:%M}: {line.lost:,} of {line.seen:,} rows lost"
        text += "" if line.late is None else f", up to {line.late:,.0f} minutes too late"
        shape = (
            f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{max(1.0, step * 0.8):.1f}" height="{tall:.1f}" '
            if bars
            else f'<circle cx="{x + step / 2:.1f}" cy="{bottom - tall:.1f}" r="3" '
        )
        yield f'{shape}fill="{_LOST}"><title>{escape(text)}</title></{"rect" if bars else "circle"}>'
    if values:
        for place, anchor in ((0, "start"), (len(values) - 1, "end")):
            x = _LEFT + (width if place else 0)
            text = f"{values[place][0].end:%Y-%m-%d}"
            yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{text}</text>'
