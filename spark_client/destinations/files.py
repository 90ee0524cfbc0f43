"""Tables of files in a format of Spark's: one directory ``epoch=N`` for each epoch that had results, published once."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.counting.groups import files
from spark_client.destinations.destination import EarlyOutput, Place, Written
from spark_client.errors import UsageError, refused
from spark_client.plan.batches import BatchId, Counted
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import ReleasePlan
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.folder import Filling, Folder, claim_table, is_table_of, write_numbered

_KEEP_NAMES: Final = ("parquet", "orc")
#: Types as Spark shows them, of which its Parquet holds any values.
_HELD: Final = re.compile(
    r"string|binary|boolean|tinyint|smallint|int|bigint|float|double|decimal\(\d+,\d+\)|date|timestamp(_ntz)?"
    r"|struct<start:(timestamp|timestamp_ntz),end:\2>"
)
_INSTEAD: Final = (
    "Choose another format (parquet holds any results), other names, or .foreachBatch(…) and write there what the "
    "format can hold, by the key (scope, window, keys)"
)


class FileDestination(Place):
    """A table of files. Early results are beside it, in directories of Parquet files of which the newest one counts.

    Args:
        to: the table; its options are those of Spark's writer.
    """

    concurrent = True
    reads_all = True
    takes_all = True

    def __init__(self, to: Written) -> None:
        self._to = to
        assert to.folder is not None, "files are in no catalog"
        self._folder = to.folder
        self._owner = ""  # the query whose table it is, once that is known

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:  # noqa: ARG002
        """Have Spark write one row of nulls with these columns elsewhere, to find what it would refuse at an end.

        Raises:
            UsageError: the format, its options or the partitions cannot hold such rows, or files would not give them
                back; or a directory is on a file system that cannot publish whole.
        """
        self._folder.check("the path of the results,")
        if self._to.early is not None:
            self._to.early.check("early_path")
        shown = f"format({self._to.file_format!r}), for results with the columns {', '.join(schema.fieldNames())}"
        reserved = [name for name in schema.fieldNames() if name.lower() == "epoch"]
        if reserved:
            raise UsageError(
                f"{shown}: each batch's results are in a directory epoch=N, which readers take for a column, and not "
                f"{reserved[0]!r} of the results: call it otherwise, with .alias('…')"
            )
        if self._is_as_usual and all(_HELD.fullmatch(field.dataType.simpleString()) for field in schema):
            return  # nothing would be refused, and a job of Spark's is a tenth of a start
        row = spark.range(1).select(*[F.lit(None).cast(f.dataType).alias(f.name) for f in schema.fields])
        trial = f"_check.{uuid.uuid4().hex}"
        try:
            with refused(f"{shown}: Spark cannot write them", _INSTEAD):
                self._folder.write(f"{trial}/epoch=0", self._save(row))
                found = self._names(spark, trial) if self._to.file_format in _KEEP_NAMES else None
        finally:
            self._folder.remove(trial)
        if found is not None and sorted(found) != sorted([*schema.fieldNames(), "epoch"]):
            raise UsageError(f"{shown}: files of this format do not keep these names: they give {found}. {_INSTEAD}")

    def _names(self, spark: SparkSession, trial: str) -> list[str]:
        if self._is_as_usual:  # which Arrow reads as well, without a job of Spark's
            return [*files(self._folder / trial / "epoch=0").schema.names, "epoch"]
        return spark.read.format(self._to.file_format).load(self._folder.url(trial)).columns

    @property
    def _is_as_usual(self) -> bool:
        return self._to.file_format == "parquet" and not (self._to.options or self._to.partition_by)

    def _save(self, rows: DataFrame) -> Filling:
        writer = rows.write.format(self._to.file_format).options(**self._to.options)
        by = writer.partitionBy(*self._to.partition_by) if self._to.partition_by else writer
        return lambda to: by.save(str(to))

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        """Write rows, or find them written.

        Raises:
            UsageError: the table is another query's: its epochs would be taken for this one's.
        """
        if self._owner != batch.query:
            claim_table(self._folder, batch.query, "results")
            self._owner = batch.query
        fill: Filling = Parquet(rows) if self._is_as_usual else self._save(rows)
        self._folder.publish(f"epoch={batch.epoch}", fill)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return self._folder.is_published(f"epoch={epoch}")

    def sweep(self, query: str) -> None:
        if is_table_of(self._folder, query):
            self._folder.sweep()

    def directories(self) -> Iterator[tuple[str, Folder]]:
        yield "the path of the results", self._folder
        if self._to.early is not None:
            yield "early_path", self._to.early

    def early(self) -> EarlyOutput | None:
        return None if self._to.early is None else self

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:  # noqa: ARG002
        assert self._to.early is not None, "see early()"
        write_numbered(self._to.early, as_of, Parquet(rows))
