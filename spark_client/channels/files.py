"""The channel of files: each row is received once.

It is a directory. The sending query publishes one directory of Parquet files for each of its epochs, whole or not at
all, and the first publication stands: a replay finds it. The receiving query's stream is only the list of published
epochs (`epochs`); the rows themselves are read natively, with columns pruned.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_client.channels.channel import Channel
from spark_client.channels.epochfiles import rows_of
from spark_client.channels.epochs import EpochStore, epochs_of
from spark_client.plan.layouts import DerivedLayout
from spark_client.storage.directories import (
    remove,
    sweep,
)


class FileChannel(Channel):
    """A channel of files, as `Tracking.channel` declares it: one receiving query, any number of senders.

    Args:
        segment: that its rows travel.
        path: its directory.
        keep: whether an epoch's files stay when they have been received.
    """

    exact = True

    def __init__(self, segment: str, path: str | os.PathLike[str], keep: bool = False) -> None:
        super().__init__(segment, path)
        self._keep = keep

    def __repr__(self) -> str:
        return f"FileChannel({self.segment!r}, {str(self.path)!r})"

    def write(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Path:
        target = self.path / sender / f"{epoch:012d}"
        self.publish_children(target, rows, ordinal, layout)
        return target

    def begun(self, sender: str, epoch: int) -> bool:
        return (self.path / sender / f"{epoch:012d}").is_dir()

    def sweep(self, sender: str) -> None:
        sweep(self.path / sender)

    def stream(self, spark: SparkSession, wake_ups: DataFrame | None, max_epochs: int | None) -> DataFrame:
        return epochs_of(spark, self.segment, _Directories(self.path), wake_ups, max_epochs, self._keep)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        published = [(row["sender"], row["epoch"]) for row in batch.collect() if row["sender"] is not None]
        if not published:
            return None
        return self.in_files(
            batch.sparkSession, [self.path / sender / f"{number:012d}" for sender, number in published]
        )

    def native(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        return self.of_files(lambda schema: rows_of(self.stream(spark, None, max_epochs), self.path, schema))


class _Directories(EpochStore):
    """A directory for each sender, and in it one for each epoch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def senders(self) -> list[str]:
        try:
            with os.scandir(self._path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "_.")
        except FileNotFoundError:
            return []

    def published(self, sender: str, after: int) -> list[int]:
        try:
            names = os.listdir(self._path / sender)
        except FileNotFoundError:
            return []
        return sorted(epoch for name in names if name.isdigit() and (epoch := int(name)) > after)

    def discard(self, sender: str, before: int) -> None:
        for epoch in self.published(sender, -1):
            if epoch < before:
                remove(self._path / sender / f"{epoch:012d}")
