"""Before a job is tracked: a dry run over its history, and shadow mode, beside a job that is only read.

The dry run is `tracker replay` for rows that Spark reads, as in a notebook. A job on Spark's own watermark shows in its
checkpoint when it closed windows, and which rows were too late. Its report has, window by window, what it closed too
early and what it lost: as a table, and as a picture: an SVG file that stands alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from dataclasses import replace as changed
from datetime import datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, check_present, column, resolve, text_of
from spark_client.errors import UsageError, refused
from spark_client.release.ledger import ledger
from spark_client.release.receipts import RECEIPT_SCHEMA
from spark_client.spark_internals.checkpoints import WatermarkBatch, batches_of, files_of, last_of_files
from spark_client.storage.directories import check_directory, read_json, write_json
from spark_client.storage.folder import Folder
from spark_client.windows import eventtime

if TYPE_CHECKING:
    from tracker.replay.report import Replay

_RESULT = ("scope", "end_time", "rows")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 960, 190, 70, 70, 60
_INK, _PALE, _LOST = "#222222", "#dddddd", "#c8553d"


def replay(
    df: DataFrame,
    time: ColumnOrName,
    arrived: ColumnOrName,
    scope: ColumnOrName | None = None,
    *,
    window: str = "1h",
    slide: str = "",
    promises: Sequence[str] = (),
    trigger: str = "1min",
    wrong: str = "0%",
    ahead: str = "5min",
) -> Replay:
    """Judge promises on a history: which would have been right, and how soon it would have released windows.

    The columns that are named come to the driver, in pieces: some 20 bytes a row stay there. No tracker is needed.

    Args:
        df: the rows, as a batch.
        time: the column with the times of rows.
        arrived: the column with the time at which each came.
        scope: the column with the tenant; None: there is one for all rows.
        window: the length of windows: ``"1h"``, ``"30 minutes"``.
        slide: from the start of a window to that of the next; empty: the length.
        promises: to try, such as ``"watermark=5min"``; empty: several of each kind.
        trigger: how often a query would have read what had arrived.
        wrong: the share of windows that may be wrong under the promise to take, such as ``"0.1%"``.
        ahead: how far beyond the clock a row's time may be to move a frontier; ``"none"``: as far as it is.

    Returns:
        The result: a notebook shows its report; `table()` and `verdict` are texts, `advice` has the promises to take,
        and `save` writes the report as one page.

    Raises:
        UsageError: a column is missing or has no times, or an option that does not hold.

    >>> replay(spark.table("orders"), "ts", "arrived_at", "shop").save("/tmp/report.html")     # doctest: +SKIP
    """
    from tracker.replay.history import ReplayError  # shadow mode needs none of these
    from tracker.replay.reading import Collector, Names
    from tracker.replay.report import Options, Replay

    if df.isStreaming:
        raise UsageError("replay takes a history, and these rows are a stream: read them with spark.read")
    given = {"time": time, "arrived": arrived, **({} if scope is None else {"scope": scope})}
    fields = {name: resolve(df, value, name) for name, value in given.items()}
    kinds = {name: field.dataType.simpleString() for name, field in fields.items()}
    eventtime.check_kind_of("time", time, kinds["time"])
    eventtime.check_kind_of("arrived", arrived, kinds["arrived"], eventtime.MOMENTS)
    if (kinds["time"] == eventtime.WALL) != (kinds["arrived"] == eventtime.WALL):
        raise UsageError(
            f"time is a {kinds['time']} and arrived a {kinds['arrived']}, so no delay is known: cast one of them"
        )
    times = [eventtime.micros(column(given[name]), kinds[name]).alias(name) for name in ("time", "arrived")]
    texts = [] if scope is None else [text_of(column(scope), kinds["scope"]).alias("scope")]

    # Tasks would find a function of the module by its name, and load all that the module needs.
    def packed(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield each piece of a task's rows as one value, which a driver takes faster than rows."""
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"piece": [sink.getvalue().to_pybytes()]})

    pieces = df.select(*times, *texts).mapInArrow(packed, "piece binary")
    names = Names("time", "arrived", "scope" if texts else "", epoch="us")
    types = {"time": pa.int64(), "arrived": pa.int64(), "scope": pa.string()}
    collected = Collector(pa.schema({name: types[name] for name in names.all}), names)
    for row in pieces.toLocalIterator():
        for batch in pa.ipc.open_stream(bytes(row.piece)):
            collected.add(batch)
    columns = changed(
        collected.columns(), time_name=fields["time"].name, scope_name=fields["scope"].name if texts else ""
    )
    with refused("replay", errors=ReplayError):
        return Replay.of(columns, Options(window, slide, tuple(promises), trigger, wrong, ahead))


class ShadowedJob:
    """A query on Spark's own watermark that is looked at and never touched.

    Args:
        checkpoint: of the query. It is only read.
        notes: a file of yours, in which its batches are noted: Spark forgets them after a hundred.

    Raises:
        UsageError: there is no checkpoint.

    >>> job = ShadowedJob("/cp/daily", "/data/shadow/daily.json")                           # doctest: +SKIP
    >>> with job.watched():                                                                 # doctest: +SKIP
    ...     tracking.await_drained()
    """

    def __init__(self, checkpoint: str | os.PathLike[str], notes: str | os.PathLike[str]) -> None:
        self._checkpoint = Folder(os.fspath(checkpoint))
        self._notes = Path(notes)
        check_directory(checkpoint, "", "give the checkpoint of the query on Spark's watermark")
        self._writing = threading.Lock()

    def note(self) -> int:
        """Note the batches that Spark has planned since the last call; call it at least every hundred batches.

        Returns:
            How many batches are noted in all.
        """
        with self._writing:
            known = self.batches
            new = batches_of(self._checkpoint, known[-1].number if known else -1)
            if new:
                write_json(self._notes, [asdict(batch) for batch in [*known, *new]])
            return len(known) + len(new)

    @contextmanager
    def watched(self, every: float = 5) -> Iterator[None]:
        """Note batches in a thread of its own, and once more at the end.

        Args:
            every: seconds between two looks at the checkpoint.
        """
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(every):
                self.note()

        thread = threading.Thread(target=follow, name="tracking-shadow", daemon=True)
        self.note()
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.note()

    @property
    def batches(self) -> list[WatermarkBatch]:
        """The batches that are noted."""
        noted = read_json(self._notes) or []
        return [WatermarkBatch.from_json(each) for each in noted]

    def closed(self, ends: DataFrame) -> DataFrame:
        """Return when the job closed windows.

        Args:
            ends: windows, by their ``end_time``.

        Returns:
            ``end_time`` and ``closed_at``: when the batch was planned that closed the windows that end then. Those that
            were closed before the first batch that is noted, or are open, are left out.
        """
        batches = self.batches
        advances = [
            (batch.watermark, batch.at) for before, batch in pairwise(batches) if batch.watermark > before.watermark
        ]
        first = batches[0].watermark if batches and batches[0].number else 0
        spark = ends.sparkSession
        moves = spark.createDataFrame(advances, "t long, at long").withColumn("end_time", F.lit(None).cast("timestamp"))
        asked = ends.select("end_time").distinct()
        asked = asked.select(F.unix_millis("end_time").alias("t"), F.lit(None).cast("long").alias("at"), "end_time")
        later = Window.orderBy("t", F.col("at").isNotNull()).rowsBetween(0, Window.unboundedFollowing)
        found = moves.unionByName(asked).withColumn("closed", F.min("at").over(later))
        known = found.where(F.col("end_time").isNotNull() & F.col("closed").isNotNull() & (F.col("t") > first))
        return known.select("end_time", F.timestamp_millis("closed").alias("closed_at"))

    def lost(self, rows: DataFrame, source: int = 0) -> DataFrame:
        """Return which rows came too late for the job's watermark, and by how much.

        Args:
            rows: of the job's source of files, as a batch: ``end_time`` of each row's window, ``file`` (the column
                ``_metadata.file_path``), and what you like.
            source: the place of that source among the query's sources.

        Returns:
            The rows that the job has dropped, with ``batch``, in which they came, and ``minutes_late``: by so much more
            the job's delay would have had to be.

        Raises:
            UsageError: it is no source of files, or a column is not there.
        """
        check_present(("end_time", "file"), rows.columns, "lost(rows): column")
        placed = self._files(rows.sparkSession, source)
        late = F.col("_watermark") >= F.unix_millis("end_time")
        minutes = (F.col("_watermark") - F.unix_millis("end_time")) / 60_000
        named = rows.withColumn("_file", _one_name("file"))
        found = named.join(
            F.broadcast(placed.select(_one_name("_path").alias("_file"), "batch", "_watermark")), "_file"
        )
        return found.where(late).withColumn("minutes_late", minutes).drop("_file", "_watermark")

    def _files(self, spark: SparkSession, source: int) -> DataFrame:
        """Return files, the batch in which each was read, and the watermark by which that batch dropped rows."""
        in_batch: dict[int, tuple[int, int]] = {}
        before: WatermarkBatch | None = None
        read: int | None = None
        for batch in self.batches:
            if before is None:
                read = None if batch.number else -1
            elif batch.number != before.number + 1:
                read = None  # what was read since the last batch that is noted is not known
            last = self._log_offset(batch, source)
            if read is not None:
                watermark = 0 if before is None else before.watermark
                in_batch.update(dict.fromkeys(range(read + 1, last + 1), (batch.number, watermark)))
            before, read = batch, last
        paths = dict(files_of(self._checkpoint, source))
        placed = [(path, *in_batch[number]) for path, number in paths.items() if number in in_batch]
        return spark.createDataFrame(placed, "_path string, batch long, _watermark long")

    def _log_offset(self, batch: WatermarkBatch, source: int) -> int:
        """Return how far a source of files had come after a batch."""
        last = last_of_files(batch, source)
        if last is None:
            raise UsageError(
                f"source {source} of {self._checkpoint} is not one of files, so its rows cannot be told apart: "
                "leave lost= out, and the report counts by window"
            )
        return last


def _one_name(path: str) -> Column:
    """Return a file's name in one form: Spark writes ``file:/a`` and ``file:///a``, with and without escapes."""
    unescape = getattr(F, "try_url_decode", F.url_decode)  # before Spark 4.0 a name with a single % is refused
    return F.regexp_replace(F.coalesce(unescape(path), F.col(path)), "^file:/+", "file:/")


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
