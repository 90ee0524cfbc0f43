"""Receipt of each row once from a channel that delivers at least once.

Copies of a row carry the same label. To know them apart for ever would take all labels; so each row also carries
which of its sender's epochs it belongs to, and of how many rows, with which XOR of labels, that epoch consists. While
an epoch is incomplete its labels are kept. Once all of it is here, whatever else comes of it is a copy: one number for
each sender says so, and the labels go. In the ordinary case an epoch comes whole and once, its count and XOR fit, and
no label is looked at singly.

The state is versioned by the receiver's epoch: a batch begins with the version before it, and so does its replay.
Nothing here knows of Kafka, nor of the tracker.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.counting.folding import fold_labels
from spark_client.counting.groups import files
from spark_client.errors import TrackingError
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.directories import parquet_of
from spark_client.storage.folder import Backlog, Folder, Versions

#: The column for what a record's epoch of the sender consists of: the JSON of a `Sending`, the same in all
#: records of the epoch, so that it is read once and not once a record.
SENDING: Final = "_tracker_sending"

_LABEL: Final = ("_sending", "_label")
_LABELS: Final = "labels-"  #: before the epoch, in the name of a part


class SenderEpoch(NamedTuple):
    """One epoch of one sender."""

    sender: str
    epoch: int


@dataclass(frozen=True)
class Sending:
    """Contents of one epoch of one sender.

    Attributes:
        after: the sender's last epoch before this one that had rows: there are none in between. None: not known.
    """

    sender: str
    epoch: int
    after: int | None
    rows: int
    xor: int

    @property
    def key(self) -> SenderEpoch:
        return SenderEpoch(self.sender, self.epoch)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Sending:
        return cls(**json.loads(text))


@dataclass
class Incomplete:
    """Part that is here of an incomplete epoch."""

    labels: int = 0
    xor: int = 0
    parts: list[str] = field(default_factory=list)


class ReceivedOnce:
    """Rows received by one query from one channel.

    Args:
        folder: of its state, which is this receiver's alone.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._versions = Versions(folder)
        self._there = Backlog(folder, _epoch_of)
        self._epoch: int | None = None  # the batch after which the version in hand holds
        self._complete: dict[str, list[list[int]]] = {}  # by sender: ranges of epochs, first and last
        self._incomplete: dict[SenderEpoch, Incomplete] = {}

    def rows(self, records: DataFrame, epoch: int) -> DataFrame | None:
        """Return a batch's records without the copies: in it, and of what was received before.

        Args:
            records: with `_tracker` and the column `SENDING`.

        Returns:
            Rows without `SENDING`; None if there are no records.

        Raises:
            TrackingError: records that say nothing of their epoch, or of more rows than it is to have; or the state is
                not the one after the batch before.
        """
        self._load(epoch)
        complete: list[str] = []
        unclear: dict[str, tuple[Sending, int]] = {}
        counted = self._count(records)
        self._epoch = None  # what is in hand is no version until it is published
        for batch_key, rows, xor in counted:
            sending = Sending.from_json(batch_key)
            known = self._incomplete.get(sending.key, Incomplete())
            if self._is_complete(sending.key):
                complete.append(batch_key)
            elif (known.labels + rows, known.xor ^ xor) == (sending.rows, sending.xor):
                self._completed(sending)
            else:
                unclear[batch_key] = sending, rows
        doubled = self._take_labels(records, unclear, epoch) if unclear else []
        self._publish(epoch)
        if not counted:
            return None
        once = records.where(~_of(complete)) if complete else records
        if doubled:
            once = once.where(~_of(doubled)).unionByName(self._first(records.where(_of(doubled)), epoch))
        return once.drop(SENDING)

    def _count(self, records: DataFrame) -> list[tuple[str, int, int]]:
        """Count records and the XOR of their labels by what their headers have of an epoch: little is brought here."""
        label = F.col(f"{TRACKER}.label")
        grouped = records.groupBy(SENDING).agg(F.count("*"), F.bit_xor(label)).collect()
        if foreign := sum(row[1] for row in grouped if row[0] is None):
            raise TrackingError(
                f"{foreign} records were not sent by a query of this job: they have no header of its substreams. "
                "Give the channel a topic of its own"
            )
        return [(row[0], row[1], row[2]) for row in grouped]

    def _take_labels(self, records: DataFrame, unclear: dict[str, tuple[Sending, int]], epoch: int) -> list[str]:
        """Keep the new labels of epochs that do not come whole and once; return which of them have copies here."""
        fresh = _labels(records.where(_of(unclear))).distinct()
        known = {part for sent, _ in unclear.values() for part in self._incomplete.get(sent.key, Incomplete()).parts}
        if known:
            before = self._kept(records.sparkSession, sorted(known))
            fresh = fresh.join(before, list(_LABEL), "left_anti")
        part = _part(epoch)
        # A replay has the same records: what its first attempt wrote stands.
        self._folder.publish(part, Parquet(fresh))
        self._there.add(part)
        table = files(self._folder / part).to_table().combine_chunks()
        batch_key, labels = table[_LABEL[0]], table[_LABEL[1]]
        taken = fold_labels(*[c.combine_chunks() for c in (batch_key, batch_key, labels)]) if table.num_rows else {}
        doubled = []
        for text, (sending, rows) in unclear.items():
            new, xor = taken.get((text, text), (0, 0))
            if new < rows:
                doubled.append(text)
            incomplete = self._incomplete.setdefault(sending.key, Incomplete())
            incomplete.labels += new
            incomplete.xor ^= xor
            incomplete.parts.append(part)
            if incomplete.labels > sending.rows or (
                incomplete.labels == sending.rows and incomplete.xor != sending.xor
            ):
                raise _not_as_sent(sending.key)
            if incomplete.labels == sending.rows:
                self._completed(sending)
        return doubled

    def _first(self, records: DataFrame, epoch: int) -> DataFrame:
        """Return one record for each label that is new with this batch."""
        batch_key, label = _LABEL
        keyed = records.withColumns({batch_key: F.col(SENDING), label: F.col(f"{TRACKER}.label")})
        fresh = self._kept(records.sparkSession, [_part(epoch)])
        return keyed.join(fresh, list(_LABEL), "left_semi").dropDuplicates(list(_LABEL)).drop(*_LABEL)

    def _kept(self, spark: SparkSession, parts: Iterable[str]) -> DataFrame:
        schema = f"{_LABEL[0]} string, {_LABEL[1]} long"
        return parquet_of(spark, schema).parquet(*map(self._folder.url, parts))

    # ---------------------------------------------------------------- complete epochs

    def _is_complete(self, key: SenderEpoch) -> bool:
        return any(first <= key.epoch <= last for first, last in self._complete.get(key.sender, []))

    def _completed(self, sending: Sending) -> None:
        """Note that all of an epoch is here, and that those between `after` and this one had no rows."""
        self._incomplete.pop(sending.key, None)
        first = sending.epoch if sending.after is None else sending.after + 1
        merged: list[list[int]] = []
        for low, high in sorted([*self._complete.get(sending.sender, []), [first, sending.epoch]]):
            if merged and low <= merged[-1][1] + 1:
                merged[-1][1] = max(high, merged[-1][1])
            else:
                merged.append([low, high])
        self._complete[sending.sender] = merged

    # ---------------------------------------------------------------- versions

    def _load(self, epoch: int) -> None:
        if self._epoch is not None and self._epoch < epoch:
            return
        before = self._versions.before(epoch)
        version = {} if before is None else before.content
        self._there = Backlog(self._folder, _epoch_of)
        # Earlier releases published no version with a batch without records, and none of theirs is marked so.
        if epoch and (before is None or (before.epoch != epoch - 1 and version.get("each_batch"))):
            found = "missing" if before is None else f"that of batch {before.epoch}"
            raise TrackingError(
                f"the labels of received rows in {self._folder} are {found}, and Spark goes on with batch {epoch}: "
                "copies could be taken for rows. Nothing of this batch was taken in. Put back the channel's folder "
                "and the query's checkpoint as they were at one time; or start the query with a new checkpoint, which "
                "reads the topic anew"
            )
        self._complete = version.get("complete", {})
        self._incomplete = {SenderEpoch(*key): Incomplete(**content) for key, content in version.get("incomplete", [])}
        self._epoch = epoch - 1

    def _publish(self, epoch: int) -> None:
        version = {
            "each_batch": True,
            "complete": self._complete,
            "incomplete": [[list(key), asdict(content)] for key, content in self._incomplete.items()],
        }
        before = self._versions.put(epoch, version)
        self._epoch = epoch
        contents = [*self._incomplete.values(), *(Incomplete(**c) for _, c in (before or {}).get("incomplete", []))]
        needed = {part for content in contents for part in content.parts} | {_part(epoch)}
        for part in self._there.before(epoch):
            if part not in needed:
                self._there.discard(part)


def _part(epoch: int) -> str:
    return f"{_LABELS}{epoch:012d}"


def _epoch_of(part: str) -> int:
    return int(part.removeprefix(_LABELS))


def _labels(records: DataFrame) -> DataFrame:
    return records.select(F.col(SENDING).alias(_LABEL[0]), F.col(f"{TRACKER}.label").alias(_LABEL[1]))


def _of(sendings: Collection[str]) -> Column:
    """Return whether a record is of one of these epochs."""
    return F.col(SENDING).isin(list(sendings))


def _not_as_sent(key: SenderEpoch) -> TrackingError:
    return TrackingError(
        f"rows have come of epoch {key.epoch} of sender {key.sender} that it was not announced to consist of: "
        "either the topic is not this channel's alone, or the channel's outbox was removed while the sender could "
        "still repeat the epoch, and its work is not deterministic"
    )
