"""A stream of the epochs that senders have published in a channel.

A channel that keeps whole epochs, each under its sender and number, is read in two steps: this source gives the epochs
of a batch, in offsets that Spark's checkpoint keeps; the channel reads their rows. Nothing here reads or counts rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import TrackingError
from spark_client.spark_internals.checkpoints import is_of_files
from spark_client.spark_internals.readers import (
    DataSource,
    LastingReader,
    SimpleDataSourceStreamReader,
    register_source,
    source_name,
)
from spark_client.storage.folder import Folder

_MANY: Final = 1000


class EpochStore(ABC):
    """Store of a channel's epochs. It travels to Spark's process for sources, so it can be pickled."""

    @abstractmethod
    def __str__(self) -> str:
        """Return what people call it."""

    @abstractmethod
    def senders(self) -> Sequence[str]:
        """Return those who have published there, in an order that stays."""

    @abstractmethod
    def published(self, sender: str, after: int) -> Sequence[int]:
        """Return the numbers of a sender's epochs that are there, ascending.

        Args:
            after: the last number that is left out.
        """

    @abstractmethod
    def discard(self, sender: str, before: int) -> None:
        """Remove epochs that have been received, and that their sender will not repeat.

        Args:
            before: the first that stays.
        """


class EpochFolders(EpochStore):
    """Epochs that a channel has in a folder for each sender."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def senders(self) -> list[str]:
        return [name[:-1] for name in self._folder.names() if name[-1] == "/" and name[0] not in "_."]


def epochs_of(spark: SparkSession, segment: str, store: EpochStore, limit: int | None, keep: bool) -> DataFrame:
    """Return the stream: ``sender``, ``epoch``.

    Args:
        limit: at most so many epochs in a batch; None: a thousand.
        keep: whether epochs stay when they have been received.
    """

    class PublishedEpochs(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name("tracker-epochs", segment)

        def schema(self) -> str:
            return "sender string, epoch long"

        def simpleStreamReader(self, schema: T.StructType) -> SimpleDataSourceStreamReader:  # noqa: ARG002, N802
            return _EpochStream(store, limit or _MANY, keep)

    register_source(spark, PublishedEpochs, f"channel {segment!r}")
    return spark.readStream.format(PublishedEpochs.name()).load()


def epochs_in(batch: DataFrame) -> list[tuple[str, int]]:
    """Return the epochs that a batch of the stream has, each with its sender."""
    return [(row["sender"], row["epoch"]) for row in batch.collect() if row["sender"] is not None]


class _EpochStream(LastingReader):
    """Offsets are ``{sender: the last of its epochs taken}``."""

    def __init__(self, store: EpochStore, limit: int, keep: bool) -> None:
        self._store = store
        self._limit = limit
        self._keep = keep
        self._target: dict[str, int] | None = None  # with availableNow: the last of each sender that is taken

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave what is published from now on for the next run."""
        self._target = {
            sender: epochs[-1] for sender in self._store.senders() if (epochs := self._store.published(sender, -1))
        }

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        self._check(start)
        end = dict(start)
        taken: list[tuple[str, int]] = []
        for sender in self._store.senders():
            published = self._store.published(sender, start.get(sender, -1))
            if self._target is not None:
                published = [epoch for epoch in published if epoch <= self._target.get(sender, -1)]
            for epoch in published[: self._limit - len(taken)]:
                taken.append((sender, epoch))
                end[sender] = epoch
        return iter(taken), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        self._check(start)
        taken: list[tuple[str, int]] = []
        for sender, last in sorted(end.items()):
            after = start.get(sender, -1)
            found = [epoch for epoch in self._store.published(sender, after) if epoch <= last]
            if last > after and last not in found:
                raise TrackingError(
                    f"epoch {last} of sender {sender} is gone from the channel at {self._store}, and a batch that has "
                    "to be replayed needs it. Put its directory back, or start the job again, with new checkpoints and "
                    "new paths for channels; remove no epoch that was not received"
                )
            taken.extend((sender, epoch) for epoch in found)
        return iter(taken)

    def _check(self, start: dict[str, Any]) -> None:
        if is_of_files(start):
            raise TrackingError(
                f"this checkpoint was made by an earlier version, whose with_watermark read the files of {self._store} "
                "through a source of Spark's own; that position cannot be carried over. Start the job "
                "from scratch: stop its queries, delete it with `tracker delete-job`, and start them again with new "
                "checkpoints and new paths for channels and results"
            )

    def commit(self, end: dict[str, Any]) -> None:
        """Discard what Spark will not ask for again, but a sender's newest epoch, which may be repeated."""
        if self._keep:
            return
        for sender, last in end.items():
            newer = self._store.published(sender, last)
            self._store.discard(sender, last + 1 if newer else last)
