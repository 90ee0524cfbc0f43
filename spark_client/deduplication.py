"""Receiving each row once from a channel that delivers at least once.

Copies of a row carry the same label. To know them apart for ever would take all labels for ever; so each row also says
which of its sender's epochs it belongs to, and of how many rows, with which XOR of labels, that epoch consists. While
an epoch is incomplete its labels are kept. Once all of it is here, whatever else comes of it is a copy: one number for
each sender says so, and the labels go. In the ordinary case an epoch comes whole and once, its count and XOR fit, and
no label is looked at singly.

The state is versioned by the receiver's epoch: a batch begins with the version before it, and so does its replay.
Nothing here knows of Kafka, nor of the tracker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.directories import publish, read_json, remove, write_json, write_parquet
from spark_client.errors import TrackingError
from spark_client.folding import files, fold_labels
from spark_client.substreams import TRACKER

SENDING: Final = "_tracker_sending"  #: the column that says what a record's epoch of the sender consists of

#: `after` is the sender's last epoch before this one that had rows: there are none in between. Null: not known.
SENDING_TYPE: Final = T.StructType(
    [
        T.StructField("sender", T.StringType()),
        T.StructField("epoch", T.LongType()),
        T.StructField("after", T.LongType()),
        T.StructField("rows", T.LongType()),
        T.StructField("xor", T.LongType()),
    ]
)

_LABEL: Final = ("_sender", "_epoch", "_label")


class SenderEpoch(NamedTuple):
    """One epoch of one sender."""

    sender: str
    epoch: int


@dataclass
class Incomplete:
    """What is here of an epoch that is not complete.

    Attributes:
        labels: how many different ones.
        xor: of these.
        parts: the directories that hold them.
    """

    labels: int = 0
    xor: int = 0
    parts: list[str] = field(default_factory=list)


class ReceivedOnce:
    """What one query has received from one channel.

    Args:
        path: of its state, which is this receiver's alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._epoch: int | None = None  # the batch after which the version in hand holds
        self._complete: dict[str, list[list[int]]] = {}  # by sender: ranges of epochs, first and last
        self._incomplete: dict[SenderEpoch, Incomplete] = {}

    def rows(self, records: DataFrame, epoch: int) -> DataFrame | None:
        """A batch's records without the copies: in it, and of what was received before.

        Args:
            records: with `_tracker` and the column `SENDING`.
            epoch: the batch's number.

        Returns:
            Rows without `SENDING`; None if there are no records.

        Raises:
            TrackingError: records that say nothing of their epoch, or of more rows than it is said to have.
        """
        self._load(epoch)
        over: list[SenderEpoch] = []
        unclear: dict[SenderEpoch, tuple[int, Any]] = {}
        counted = self._count(records)
        if not counted:
            return None
        self._epoch = None  # what is in hand is no version until it is published
        for sending, rows, xor in counted:
            key = SenderEpoch(sending["sender"], sending["epoch"])
            known = self._incomplete.get(key, Incomplete())
            if self._is_complete(key):
                over.append(key)
            elif (known.labels + rows, known.xor ^ xor) == (sending["rows"], sending["xor"]):
                self._completed(key, sending["after"])
            elif key in unclear:
                raise _not_as_sent(key)
            else:
                unclear[key] = rows, sending
        doubled = self._take_labels(records, unclear, epoch) if unclear else []
        self._publish(epoch)
        once = records.where(~_of(over)) if over else records
        if doubled:
            once = once.where(~_of(doubled)).unionByName(self._first(records.where(_of(doubled)), epoch))
        return once.drop(SENDING)

    def _count(self, records: DataFrame) -> list[tuple[Any, int, int]]:
        """Records and the XOR of their labels, by what they say of their epoch: which is little to bring here."""
        label = F.col(f"{TRACKER}.label")
        grouped = records.groupBy(SENDING).agg(F.count("*"), F.bit_xor(label)).collect()
        if foreign := sum(row[1] for row in grouped if row[0] is None or row[0]["sender"] is None):
            raise TrackingError(
                f"{foreign} records were not sent by a query of this job: they do not say what they belong to. "
                "Give the channel a topic of its own"
            )
        return [(row[0], row[1], row[2]) for row in grouped]

    def _take_labels(
        self, records: DataFrame, unclear: dict[SenderEpoch, tuple[int, Any]], epoch: int
    ) -> list[SenderEpoch]:
        """Keeps the new labels of epochs that do not come whole and once; says which of them have copies here."""
        fresh = _labels(records.where(_of(unclear))).distinct()
        known = {part for key in unclear for part in self._incomplete.get(key, Incomplete()).parts}
        if known:
            before = self._kept(records.sparkSession, sorted(known))
            fresh = fresh.join(before, list(_LABEL), "left_anti")
        target = self._part(epoch)
        publish(target, write_parquet(fresh))  # a replay has the same records: what its first attempt wrote stands
        table = files(target).to_table().combine_chunks()
        taken = fold_labels(*[table[name].combine_chunks() for name in _LABEL]) if table.num_rows else {}
        doubled = []
        for key, (rows, sending) in unclear.items():
            labels, xor = taken.get(key, (0, 0))
            if labels < rows:
                doubled.append(key)
            held = self._incomplete.setdefault(key, Incomplete())
            held.labels += labels
            held.xor ^= xor
            held.parts.append(target.name)
            if held.labels > sending["rows"] or (held.labels == sending["rows"] and held.xor != sending["xor"]):
                raise _not_as_sent(key)
            if held.labels == sending["rows"]:
                self._completed(key, sending["after"])
        return doubled

    def _first(self, records: DataFrame, epoch: int) -> DataFrame:
        """One record for each label that is new with this batch."""
        sender, number, label = _LABEL
        keyed = records.withColumns(
            {sender: F.col(f"{SENDING}.sender"), number: F.col(f"{SENDING}.epoch"), label: F.col(f"{TRACKER}.label")}
        )
        fresh = self._kept(records.sparkSession, [self._part(epoch).name])
        return keyed.join(fresh, list(_LABEL), "left_semi").dropDuplicates(list(_LABEL)).drop(*_LABEL)

    def _kept(self, spark: SparkSession, parts: Iterable[str]) -> DataFrame:
        schema = f"{_LABEL[0]} string, {_LABEL[1]} long, {_LABEL[2]} long"
        return spark.read.schema(schema).parquet(*[str(self._path / name) for name in parts])

    # ---------------------------------------------------------------- complete epochs

    def _is_complete(self, key: SenderEpoch) -> bool:
        return any(first <= key.epoch <= last for first, last in self._complete.get(key.sender, []))

    def _completed(self, key: SenderEpoch, after: int | None) -> None:
        """All of an epoch is here, and of those since `after` there is nothing."""
        self._incomplete.pop(key, None)
        ranges = self._complete.get(key.sender, [])
        merged: list[list[int]] = []
        for first, last in sorted([*ranges, [key.epoch if after is None else after + 1, key.epoch]]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1][1] = max(last, merged[-1][1])
            else:
                merged.append([first, last])
        self._complete[key.sender] = merged

    # ---------------------------------------------------------------- versions

    def _load(self, epoch: int) -> None:
        if self._epoch is not None and self._epoch < epoch:
            return
        before = max((number for number in self._versions() if number < epoch), default=None)
        version = {} if before is None else read_json(self._version(before))
        self._complete = version.get("complete", {})
        self._incomplete = {SenderEpoch(*key): Incomplete(**content) for key, content in version.get("incomplete", [])}
        self._epoch = epoch - 1

    def _publish(self, epoch: int) -> None:
        version = {
            "complete": self._complete,
            "incomplete": [[list(key), asdict(content)] for key, content in self._incomplete.items()],
        }
        write_json(self._version(epoch), version)
        self._epoch = epoch
        earlier = [number for number in self._versions() if number < epoch]
        for number in earlier[:-1]:
            self._version(number).unlink(missing_ok=True)
        before = read_json(self._version(earlier[-1])) if earlier else None
        contents = [*self._incomplete.values(), *(Incomplete(**c) for _, c in (before or {}).get("incomplete", []))]
        needed = {part for content in contents for part in content.parts} | {self._part(epoch).name}
        for part in self._path.glob("labels-*"):
            if part.name < self._part(epoch).name and part.name not in needed:
                remove(part)

    def _part(self, epoch: int) -> Path:
        return self._path / f"labels-{epoch:012d}"

    def _version(self, epoch: int) -> Path:
        return self._path / f"version-{epoch:012d}.json"

    def _versions(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("version-")) for path in self._path.glob("version-*.json"))


def _labels(records: DataFrame) -> DataFrame:
    sender, number, label = _LABEL
    return records.select(
        F.col(f"{SENDING}.sender").alias(sender),
        F.col(f"{SENDING}.epoch").alias(number),
        F.col(f"{TRACKER}.label").alias(label),
    )


def _of(keys: Collection[SenderEpoch]) -> Column:
    """Whether a record is of one of these epochs."""
    by_sender: dict[str, list[int]] = {}
    for sender, epoch in keys:
        by_sender.setdefault(sender, []).append(epoch)
    of, number = F.col(f"{SENDING}.sender"), F.col(f"{SENDING}.epoch")
    return reduce(Column.__or__, [(of == sender) & number.isin(epochs) for sender, epochs in by_sender.items()])


def _not_as_sent(key: SenderEpoch) -> TrackingError:
    return TrackingError(
        f"rows have come of epoch {key.epoch} of sender {key.sender} that it was not said to consist of: "
        "either the topic is not this channel's alone, or the channel's outbox was removed while the sender could "
        "still repeat the epoch, and its work is not deterministic"
    )
