"""Tracked streams: DataFrames that know their segment, as users hold them.

A tracked stream is a streaming DataFrame that knows its segment. Row by row operations (filters, joins with static
tables, new columns) are written as on a DataFrame and carried out inside each batch, between the place where rows are
counted as received and the place where their children are counted as sent. So a row that a filter drops is still
accounted for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import methodcaller
from typing import Any, Final

from pyspark.sql import Column, DataFrame

from spark_client.api.readers import Readable
from spark_client.api.writer import Starter, TrackedWriter
from spark_client.columns import TRACKER
from spark_client.errors import UsageError, check_faults
from spark_client.plan.streams import Step

_BRING_ROWS: Final = ("right", "rightouter", "outer", "full", "fullouter")
#: Methods of DataFrame that work row by row, so that applying them to each batch is applying them to the stream.
_ROW_BY_ROW: Final = frozenset(
    [
        "select",
        "selectExpr",
        "where",
        "filter",
        "withColumn",
        "withColumns",
        "withColumnRenamed",
        "withColumnsRenamed",
        "drop",
        "join",
        "crossJoin",
        "fillna",
        "dropna",
        "replace",
        "hint",
        "unpivot",
    ]
)
#: Attributes by which a DataFrame shows its columns without running anything.
_SHAPE: Final = ("schema", "dtypes", "printSchema", "isStreaming", "sparkSession")


class TrackedStream:
    """A stream of a tracked job, as `Tracking.source` and `Tracking.receive` give it.

    Has the methods of a DataFrame that work row by row (``select``, ``where``, ``withColumn``, ``join`` with a static
    table, …), ``transform`` for all others of that kind, and ``schema``, ``dtypes``, ``printSchema``. Name columns with
    ``F.col``; keep the column ``_tracker`` in a ``select``. Stateful operators (``groupBy``, ``dropDuplicates``, joins
    of two streams) belong to `Tracking.release` or `Tracking.with_watermark`.

    Attributes:
        segment: that its rows are received from.
        columns: the names of its rows' columns, ``_tracker`` among them.
        readable: what is declared of it, in its session.
        tracking: the `Tracking` that has declared it.
    """

    def __init__(self, tracking: Starter, readable: Readable) -> None:
        self.tracking = tracking
        self.readable = readable

    @property
    def segment(self) -> str:
        """The segment that its rows are received from."""
        return self.readable.plan.segment

    @property
    def columns(self) -> list[str]:
        """The columns of its rows."""
        return list(self.readable.df.columns)

    def __repr__(self) -> str:
        return f"TrackedStream(segment={self.segment!r}, columns={self.columns})"

    def transform(self, step: Callable[..., DataFrame], *args: Any, **kwargs: Any) -> TrackedStream:
        """Apply a function from DataFrame to DataFrame that works row by row, as ``DataFrame.transform`` does.

        It is called once now, on the stream, and again on every batch.

        Raises:
            UsageError: the result has lost the column `_tracker`.

        >>> flights.transform(lambda df: df.where("distance > 0").join(planes, "tailnum", "left"))  # doctest: +SKIP
        """
        return self._stepped(lambda df: step(df, *args, **kwargs))

    def _stepped(self, step: Step) -> TrackedStream:
        was = self.readable
        df = step(was.df)
        if TRACKER not in df.columns:
            raise UsageError(
                f"the column {TRACKER!r} was lost on the way: it carries label and substream. Keep it, for example "
                f"select({TRACKER!r}, …)"
            )
        plan = replace(was.plan, steps=(*was.plan.steps, step))
        return TrackedStream(self.tracking, replace(was, plan=plan, df=df))

    def __getattr__(self, name: str) -> Any:
        if name in _SHAPE:
            return getattr(self.readable.df, name)
        if name in _ROW_BY_ROW:

            def method(*args: Any, **kwargs: Any) -> TrackedStream:
                how = kwargs.get("how", args[2] if name == "join" and len(args) > 2 else None)
                check_faults(
                    f"{name}:",
                    (
                        any(isinstance(value, TrackedStream) for value in (*args, *kwargs.values())),
                        "two streams are joined with Spark's own operator: tracking.with_watermark(one, …).join("
                        "tracking.with_watermark(other, …), …)",
                    ),
                    (
                        name == "join" and str(how).lower().replace("_", "") in _BRING_ROWS,
                        f"how={how!r} makes rows of the other side alone, which belong to no substream: an inner or a "
                        "left join keeps to the stream's own",
                    ),
                )
                return self._stepped(methodcaller(name, *args, **kwargs))

            return method
        if hasattr(DataFrame, name):
            raise AttributeError(
                f"a tracked stream has no {name!r}: it is not known to work row by row. Use transform(lambda df: "
                f"df.{name}(…)) if it does; aggregate with tracking.release(…), or with Spark's own operators after "
                "tracking.with_watermark(…)"
            )
        raise AttributeError(_by_name(name) if name in self.columns else f"'TrackedStream' has no attribute {name!r}")

    def __getitem__(self, name: str) -> Column:
        raise UsageError(_by_name(name))

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        return TrackedWriter(self.tracking, self.readable)


def _by_name(column: str) -> str:
    return f"write F.col({column!r}): a tracked stream is many DataFrames, one for each batch"
