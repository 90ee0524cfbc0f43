"""A dry run over a DataFrame: `tracker replay` for rows that Spark reads, as in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace as changed

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_client.columns import ColumnOrName, column, resolve, text_of
from spark_client.errors import UsageError, refused
from spark_client.windows import eventtime
from tracker.replay.history import ReplayError
from tracker.replay.reading import Collector, Names
from tracker.replay.report import Options, Replay

_READ = Names("time", "arrived", "scope", epoch="us")


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
    pieces = df.select(*times, *texts).mapInArrow(_packed, "piece binary")
    names = _READ if texts else changed(_READ, scope="")
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


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Yield each piece of a task's rows as one value, which a driver takes faster than rows."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"piece": [sink.getvalue().to_pybytes()]})
