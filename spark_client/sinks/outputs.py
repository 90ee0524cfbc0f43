"""Where a tracked query puts its results, so that a replay puts them there once.

An output is given the rows of an epoch, and again the same rows when the epoch is replayed. It returns what it has sent
on into a channel, to be reported in the same epoch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.channels.files import Channel, DoubledLabelsError
from spark_client.counting.probes import ExecutorProbe, in_files
from spark_client.counting.runs import Run
from spark_client.errors import UsageError
from spark_client.plan.fileforms import Told
from spark_client.plan.fronts import Group
from spark_client.plan.substreams import TRACKER
from spark_client.release.quarantine import Quarantine
from spark_client.storage.directories import is_table_of, publish, sweep

_KEEP_NAMES: Final = ("parquet", "orc")
_INSTEAD: Final = (
    "Choose another format (parquet holds any results), other names, or .foreachBatch(…) and write there what the "
    "format can hold, by the key (scope, window, keys)"
)

BatchFunction: TypeAlias = Callable[[DataFrame, int], object]
Counted: TypeAlias = Mapping[str, list[Group]]  #: by segment: what was sent on it


class Output(Protocol):
    """Takes the rows of one epoch.

    Attributes:
        concurrent: whether it may be written to while the rest of the batch runs, by another thread.
        reads_all: whether it reads all rows that it is given; else nobody knows how many.
    """

    concurrent: bool
    reads_all: bool

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:
        """Writes them, or finds them written; says what was sent into channels.

        Args:
            rows: of the epoch.
            run: that writes.
            epoch: the batch's number.
            told: the columns that are known to tell where each row belongs.
        """
        ...

    def begun(self, query: str, epoch: int) -> bool:
        """Whether somebody else may have taken rows of an epoch of this query, so that it has to be brought to its end.

        Args:
            query: its id.
            epoch: that is not committed.
        """
        ...

    def sweep(self, query: str) -> None:
        """Removes what drivers of this query that were killed have left half written."""
        ...


class Files:
    """A table of files: one directory ``epoch=N`` for each epoch that had results, published whole, once."""

    concurrent = True
    reads_all = True

    def __init__(self, path: Path, file_format: str, options: Mapping[str, str], partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._format = file_format
        self._options = dict(options)
        self._partition_by = partition_by

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        """Has Spark write one row of nulls with these columns elsewhere: what it refuses now it would refuse at an end.

        Args:
            schema: of the results.
            spark: the session.

        Raises:
            UsageError: the format, its options or the partitions cannot hold them, or files would not give them back.
        """
        shown = f"format({self._format!r}), for results with the columns {', '.join(schema.fieldNames())}"
        reserved = [name for name in schema.fieldNames() if name.lower() == "epoch"]
        if reserved:
            raise UsageError(
                f"{shown}: each batch's results are in a directory epoch=N, which readers take for a column, and not "
                f"{reserved[0]!r} of the results: call it otherwise, with .alias('…')"
            )
        row = spark.range(1).select(*[F.lit(None).cast(f.dataType).alias(f.name) for f in schema.fields])
        self._path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="_check.", dir=self._path) as directory:
            try:
                self._writer(row).save(f"{directory}/epoch=0")
                found = spark.read.format(self._format).load(directory).columns if self._format in _KEEP_NAMES else None
            except Exception as error:
                text = str(error).partition("\n")[0]
                raise UsageError(f"{shown}: Spark cannot write them: {text}. {_INSTEAD}") from error
        if found is not None and sorted(found) != sorted([*schema.fieldNames(), "epoch"]):
            raise UsageError(f"{shown}: files of this format do not keep these names: they give {found}. {_INSTEAD}")

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        writer = rows.write.format(self._format).options(**self._options)
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:  # noqa: ARG002
        """Writes them, or finds them written.

        Raises:
            UsageError: the table is another query's: its epochs would be taken for this one's.
        """
        if not is_table_of(self._path, run.query):
            raise UsageError(
                f"{self._path} has the results of another query, or of this one with another checkpoint, whose epochs "
                "have the same numbers: give the query a path of its own"
            )
        publish(self._path / f"epoch={epoch}", self._writer(rows).save)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return (self._path / f"epoch={epoch}").is_dir()

    def sweep(self, query: str) -> None:
        if self._path.is_dir() and is_table_of(self._path, query):
            sweep(self._path)


class Function:
    """A function of the user's, as for ``foreachBatch``. It is called again when an epoch is replayed."""

    concurrent = False
    reads_all = False

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:  # noqa: ARG002
        self._function(rows.drop(TRACKER), epoch)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return False  # nobody is told how far it came; the next deployment calls it again with the same rows

    def sweep(self, query: str) -> None:
        pass


class Sent:
    """A channel to another query.

    Args:
        channel: it.
        ordinal: columns that tell apart the children of one row.
        probe: makes the executors' probe of (query, run, batch); None: the driver counts.
        quarantine: where rows go that share a label with another, if the channel takes one of each only; None: such an
            epoch fails.
    """

    concurrent = True
    reads_all = True

    def __init__(
        self,
        channel: Channel,
        ordinal: tuple[str, ...],
        probe: Callable[[tuple[str, str, int]], ExecutorProbe] | None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._channel = channel
        self._ordinal = ordinal
        self._probe = probe
        self._quarantine = quarantine

    def check(self, rows: DataFrame) -> None:
        """Looks at rows that are to be sent, before it is settled that they are.

        Args:
            rows: them.

        Raises:
            TrackingError: they cannot be sent, nor be set aside.
        """
        if self._quarantine is None:
            self._channel.check_children(rows, self._ordinal)

    def carried(self, rows: DataFrame) -> DataFrame:
        """The same rows; whoever reads one that the channel would alter fails.

        Args:
            rows: of which some are to be sent.
        """
        return self._channel.carried(rows)

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:
        # What counts is what can be read, whichever attempt wrote it: so it is counted after it was published.
        channel = self._channel
        try:
            path = channel.write(rows, run.query, epoch, self._ordinal, told)
        except DoubledLabelsError:
            if self._quarantine is None:
                raise
            rows = (
                rows.persist()
            )  # both parts have to be of the same rows, even if work on them does not come out alike
            try:
                one_each, surplus = channel.surplus(rows, self._ordinal)
                self._quarantine.put_doubled(epoch, channel.segment, surplus)
                path = channel.write(one_each, run.query, epoch, self._ordinal, None)
            finally:
                rows.unpersist()
        published = partial(channel.in_files, rows.sparkSession, [path])
        if self._probe is None:
            return {channel.segment: in_files(path, channel.form, published)}
        self._probe((run.query, run.run, epoch)).on(published()).write.format("noop").mode("overwrite").save()
        return {}

    def begun(self, query: str, epoch: int) -> bool:
        return self._channel.begun(query, epoch)

    def sweep(self, query: str) -> None:
        self._channel.sweep(query)
