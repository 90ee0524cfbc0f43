"""The results of a release, as users hold them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from spark_client.api.streams import TrackedStream
from spark_client.api.writer import TrackedWriter
from spark_client.plan.releases import FunctionKind, ReleasePlan
from spark_client.release.committed import results_so_far
from spark_client.release.declaring import with_function
from spark_client.spark_internals.stores import folder_of
from tracker.contract.values import table


class Released:
    """The results of `Tracking.release`: rows that come out once, when their substream has ended.

    Attributes:
        columns: of the results: the scope, ``window`` (or the substream's name), the keys, the aggregates or the kept
            columns, and ``revision`` if there are revisions, and ``completeness`` if that was asked for.
        stream: the tracked stream whose rows come out.
        release: what is declared of it.
    """

    def __init__(self, stream: TrackedStream, release: ReleasePlan) -> None:
        self.stream = stream
        self.release = release

    def __repr__(self) -> str:
        return f"Released(segment={self.stream.segment!r}, columns={self.columns})"

    def _repr_html_(self) -> str:
        return table({"segment": self.stream.segment, "columns": self.columns})

    @property
    def columns(self) -> list[str]:
        return self.release.columns

    def apply(self, function: Callable[[DataFrame], DataFrame], schema: T.StructType | str | None = None) -> Released:
        """Make the results by a function of all rows that have ended in a batch, as a DataFrame of Spark.

        One batch may end several substreams, or revisions: the function groups, or joins, by their columns, which its
        results have to keep. It is called in the driver; it may be called again when a batch is repeated, and its first
        answer that was published stands. If it fails, so does the batch: start the query again with another function.

        Args:
            function: from DataFrame to DataFrame, with the columns of this release.
            schema: of all columns that it makes; None: it is called now, with no rows, to find out.

        Raises:
            UsageError: its results lack a column of the substream, or a name is taken.

        >>> kept = tracking.release(orders, columns=["id", "at", "price"])                 # doctest: +SKIP
        >>> newest = kept.apply(lambda rows: rows.dropDuplicates(["shop", "window", "id"]))    # doctest: +SKIP
        """
        return self._made("rows", function, schema)

    def applyInPandas(  # noqa: N802 - Spark's name
        self, function: Callable[..., Any], schema: T.StructType | str
    ) -> Released:
        """Make the results by a function of the rows of one substream and key, as a frame of pandas.

        Tasks call it, with the keys and the kept columns, or aggregates, in no order. Times are as pandas reads them
        from Arrow: those of a ``timestamp`` have a zone. All rows of a substream and key are in the memory of one task.

        Args:
            function: of (rows), or of (group, rows) with a `FinishedGroup`; it returns a frame with the columns of
                `schema`, or None for no rows. When it is called, and again, is as for `apply`.
            schema: of the columns that it makes; those of the substream and the keys are put beside them.

        Raises:
            UsageError: a name is taken, or a type cannot be passed to Python.

        >>> kept.applyInPandas(lambda rows: rows[["price"]].nlargest(3, "price"), "price double")   # doctest: +SKIP
        """
        return self._made("pandas", function, schema)

    def applyInArrow(  # noqa: N802 - Spark's name
        self, function: Callable[..., Any], schema: T.StructType | str
    ) -> Released:
        """Make the results by a function of the rows of one substream and key, as a table of Arrow.

        As `applyInPandas`, with `pyarrow.Table` for a frame: it holds all that Spark holds, whatever its year.
        """
        return self._made("arrow", function, schema)

    def _made(self, kind: FunctionKind, function: Callable[..., Any], schema: T.StructType | str | None) -> Released:
        made = with_function(self.release, self.stream.readable.df, kind, function, schema)
        return Released(self.stream, made)

    def state(self, checkpoint: str | os.PathLike[str]) -> DataFrame:
        """Return what the results of open substreams are so far: as they would be released if all of them ended now.

        Read when this is called, from the last batch that the query has committed: the DataFrame stays as it is
        whatever the query does then. So call it again for newer results, in each batch of a `foreachBatch` for example.
        An aggregate that has overflowed is null, or wrapped; results of a function (`apply`, …) are not made: it has
        what the function would get.

        Args:
            checkpoint: of this release's query, which may run, here or elsewhere, or not.

        Returns:
            The columns of the results, without ``revision`` and ``completeness``.

        Raises:
            UsageError: it is not the checkpoint of a release, or of another one; the message names what differs.

        >>> daily.state("/data/cp").where("orders > 1000").show()                          # doctest: +SKIP
        """
        spark = self.stream.readable.df.sparkSession
        return results_so_far(spark, folder_of(spark, checkpoint, "checkpoint"), self.release)

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        return TrackedWriter(self.stream.tracking, self.stream.readable, self.release)
