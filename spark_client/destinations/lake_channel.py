"""A channel through a table of a lake: each row once, for queries and readers that share the catalog.

An epoch is one commit of the table, as a sink's is: Delta or Iceberg takes it once, whoever repeats it. A small file in
the channel's folder announces it then, and the receiver reads the announced epochs' rows from the table, which the
format finds by their two columns `_query` and `_epoch`. Spark's own stateful operators read the table's own stream.

Like Kafka's, the channel has an outbox: a replay sends the rows that the first attempt has computed.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import named
from spark_client.destinations.channel import OutboxChannel, Published, epoch_name
from spark_client.destinations.epochs import EpochFolders, epochs_in, epochs_of
from spark_client.destinations.lake import WRITER, LakeTable, of_epoch
from spark_client.errors import UsageError
from spark_client.plan.layouts import DerivedLayout
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substreams

_SENT: Final = "sent"  #: the folder of announcements


class LakeChannel(OutboxChannel):
    """A table of a lake as a channel, as `Tracking.lake_channel` declares it.

    Args:
        table: that the rows are written to, with their substream and label in `_tracker`; this channel's alone.
        path: a folder of the channel's own, for its outbox and for what it announces.

    Raises:
        UsageError: rows of the table replace others.
    """

    exact = True

    def __init__(self, segment: str, table: LakeTable, path: Folder) -> None:
        super().__init__(segment, path)
        if table.replaces:
            raise UsageError(
                f"channel {segment!r}: a row that replaces the one with its key would take it from the receiver: give "
                "the table no key"
            )
        self._table = table.opened(path)
        self._checked = False

    def __repr__(self) -> str:
        return f"LakeChannel({self.segment!r}, {self._table!r})"

    # ---------------------------------------------------------------- sending

    def describe(self, rows: T.StructType, rule: Substreams, layout: DerivedLayout | None = None) -> None:
        self._keep_own("column", rows.names, WRITER)
        super().describe(rows, rule, layout)

    def write(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Published:
        published, sent = self.publish_epoch(rows, sender, epoch, ordinal, layout)
        announced, note = self.path / _SENT / sender, f"{epoch_name(epoch)}.json"
        if published.has_rows and announced.read(note) is None:
            sent = of_epoch(sent, sender, epoch)
            if not self._checked:
                self._table.check(sent)
                self._checked = True
            self._table.send(sent, sender, epoch)
            announced.put(note, {})
        self.tidy(sender, epoch)
        return published

    # ---------------------------------------------------------------- receiving

    def stream(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        return epochs_of(spark, self.segment, _Announced(self.path / _SENT), max_epochs, keep=False)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        announced: dict[str, list[int]] = {}
        for sender, number in epochs_in(batch):
            announced.setdefault(sender, []).append(number)
        if not announced:
            return None
        wanted = F.lit(False)
        for sender, numbers in sorted(announced.items()):
            wanted |= (F.col(WRITER[0]) == sender) & F.col(WRITER[1]).isin(numbers)
        schema, _ = self.description()
        return self._table.rows(batch.sparkSession).where(wanted).select(*map(named, schema.names))

    def native(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        why = "Spark's own stateful operators read the table's stream, which knows no epochs"
        self._refuse_bound(max_epochs, why)
        schema, _ = self.description()
        self._table.check(of_epoch(spark.createDataFrame([], schema), "", 0))
        return self._table.stream(spark).select(*map(named, schema.names))


class _Announced(EpochFolders):
    """The epochs that were announced: a small file for each."""

    def published(self, sender: str, after: int) -> list[int]:
        numbers = (int(name.removesuffix(".json")) for name in self._folder.names(sender) if name[0].isdigit())
        return sorted(number for number in numbers if number > after)

    def discard(self, sender: str, before: int) -> None:
        (self._folder / sender).delete(
            f"{epoch_name(epoch)}.json" for epoch in self.published(sender, -1) if epoch < before
        )
