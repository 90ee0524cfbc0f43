"""Where a tracked query puts its results, so that a replay puts them there once.

An output is given the rows of an epoch, and again the same rows when the epoch is replayed. It returns what it has sent
on into a channel, to be reported in the same epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from pyspark.sql import DataFrame

from spark_client.channels import Channel
from spark_client.directories import is_table_of, publish
from spark_client.errors import UsageError
from spark_client.fileforms import Told
from spark_client.fronts import Group
from spark_client.probes import ExecutorProbe, in_files
from spark_client.runs import Run
from spark_client.substreams import TRACKER

BatchFunction: TypeAlias = Callable[[DataFrame, int], object]
Counted: TypeAlias = Mapping[str, list[Group]]  #: by segment: what was sent on it


class Output(Protocol):
    """Takes the rows of one epoch.

    Attributes:
        concurrent: whether it may be written to while the rest of the batch runs, by another thread.
    """

    concurrent: bool

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:
        """Writes them, or finds them written; says what was sent into channels.

        Args:
            rows: of the epoch.
            run: that writes.
            epoch: the batch's number.
            told: the columns that are known to tell where each row belongs.
        """
        ...


class Files:
    """A table of files: one directory ``epoch=N`` for each epoch that had results, published whole, once."""

    concurrent = True

    def __init__(self, path: Path, file_format: str, options: Mapping[str, str], partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._format = file_format
        self._options = dict(options)
        self._partition_by = partition_by

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
        writer = rows.write.format(self._format).options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        publish(self._path / f"epoch={epoch}", writer.save)
        return {}


class Function:
    """A function of the user's, as for ``foreachBatch``. It is called again when an epoch is replayed."""

    concurrent = False

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:  # noqa: ARG002
        self._function(rows.drop(TRACKER), epoch)
        return {}


class Sent:
    """A channel to another query.

    Args:
        channel: it.
        ordinal: columns that tell apart the children of one row.
        probe: makes the executors' probe of (query, run, batch); None: the driver counts.
    """

    concurrent = True

    def __init__(
        self,
        channel: Channel,
        ordinal: tuple[str, ...],
        probe: Callable[[tuple[str, str, int]], ExecutorProbe] | None,
    ) -> None:
        self._channel = channel
        self._ordinal = ordinal
        self._probe = probe

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:
        # What counts is what can be read, whichever attempt wrote it: so it is counted after it was published.
        channel = self._channel
        path = channel.write(rows, run.query, epoch, self._ordinal, told)
        published = partial(channel.in_files, rows.sparkSession, [path])
        if self._probe is None:
            return {channel.segment: in_files(path, channel.form, published)}
        self._probe((run.query, run.run, epoch)).on(published()).write.format("noop").mode("overwrite").save()
        return {}
