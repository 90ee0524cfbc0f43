"""Rows of a source counted once, however often they are delivered: copies have one identity, and so the same label.

The labels of the rows of all substreams that have not ended are kept beside the checkpoint, in parts: those of each
batch, and what several of them were merged into. A batch's labels, and which of them had come before, stand for the
run that has decided it. The next run decides anew: the rows may have been repaired, and a copy may be late by then.

A substream's labels go when it has ended on the source's segment: each row after that is late, a copy or
not. A substream that only a drain has closed may go on in the next deployment, so its labels stay for that one. The
state is versioned as the receiver's of a channel is (`storage.folder.Versions`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, named, types_in
from spark_client.counting.folding import fold_labels
from spark_client.counting.groups import files
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, torn
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.directories import parquet_of
from spark_client.storage.folder import Folder, Versions
from spark_client.trackers import Place
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import Ended, Late
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

IDENTITIES: Final = "identities"  #: beneath ``tracker`` in a checkpoint: the state
_SCOPE, _KEY, _LABEL = _BY = tuple(f"{TRACKER}_{name}" for name in ("scope", "key", "label"))
_TIMES, _BEFORE = f"{TRACKER}_times", f"{TRACKER}_before"
_LOOK_EVERY: Final = 10.0  #: seconds between two looks at what has ended
_PARTS: Final = 24  #: above which some are merged
_FEW: Final = 4_000_000  #: labels up to which looking at their substreams here costs less than a Spark job does
_OF_BATCH: Final = ("came", "copies", "merged")
_OF_EPOCH: Final = re.compile(r"(?:came|copies|merged|recut|version)-(\d+)(?:\.json)?")


@dataclass
class _Part:
    """Labels that are kept together.

    Attributes:
        substreams: of which there are any.
        live: those of them that have not ended.
        incarnation: how often the job had started afresh when the labels came.
        labels: how many there are, at most.
        merged: the parts that it was made of.
    """

    substreams: frozenset[Substream]
    live: set[Substream]
    incarnation: int
    labels: int
    merged: list[str]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> _Part:
        substreams = frozenset(Substream(*each) for each in described["substreams"])
        return cls(
            substreams, set(substreams), described["incarnation"], described["labels"], described.get("merged", [])
        )


class CountedOnce:
    """Rows of one source, of which copies are not counted again.

    Args:
        checkpoint: of the query that reads the source.
        rule: how its rows fall into substreams.
        segment: that the source feeds.

    Attributes:
        copies: how many rows of the last batch were not passed on.
    """

    def __init__(self, checkpoint: Folder, rule: Substreams, segment: str) -> None:
        self._checkpoint = checkpoint
        self._folder = _folder(checkpoint)
        self._versions = Versions(self._folder)
        self._rule = rule
        self._segment = segment
        self._key_of = f"{_SCOPE} string, {_KEY} {rule.plain_type}"
        self._epoch: int | None = None  # the batch after which the version in hand holds
        self._parts: dict[str, _Part] = {}
        self._place: Place | None = None  # up to where the job's events were looked at
        self._look_at = 0.0
        self._there: set[str] = set()  # what is published
        self.copies = 0

    def unique(self, rows: DataFrame, run: Run, epoch: int) -> DataFrame:
        """Return a batch's rows without those that are copies of others, in it or before it.

        Args:
            rows: with `_tracker`, and its labels.
            run: the query's run, whose tracker knows what has ended.

        Raises:
            TrackingError: the state is not that after the batch before.
        """
        self._load(epoch, run)
        self._epoch = None  # what is in hand is no version until it is published
        self._forget_ended(run)
        spark, keyed = rows.sparkSession, rows.withColumns(dict(zip(_BY, self._keys(), strict=True)))
        came, copies = _named("came", epoch), _named("copies", epoch)
        known = keyed.where(F.col(_SCOPE).isNotNull() & F.col(_KEY).isNotNull())  # bad rows are dealt with elsewhere
        self._write(came, known.groupBy(*_BY).agg(F.count("*").alias(_TIMES)))
        labels, substreams, repeated = self._looked_at(spark, came)
        kept = [name for name, part in self._parts.items() if part.live]
        found = None
        if kept or repeated or copies in self._there:
            self._write(copies, self._copies_of(spark, came, kept))
            found = self._read(spark, [copies], {_TIMES: "long", _BEFORE: "boolean"})
        self.copies, doubled = _number_of(found)
        if substreams:
            described = {"substreams": [*map(list, substreams)], "incarnation": run.incarnation, "labels": labels}
            self._parts[came] = self._described(came, described)
        self._merge(spark, epoch)
        self._publish(epoch)
        if found is None or not self.copies:
            return rows
        _log.info(
            "batch %d: %d rows of segment %r have the identity of others of their substream, and are not counted",
            epoch,
            self.copies,
            self._segment,
        )
        once = keyed.join(found, [*_BY], "left_anti")
        if doubled:
            once = once.unionByName(_first(keyed.join(found.where(~F.col(_BEFORE)), [*_BY], "left_semi")))
        return once.drop(*_BY)

    def sweep(self, epoch: int) -> None:
        """Remove what drivers that were killed have left half written, and what they have decided on a batch.

        Args:
            epoch: of that batch, which Spark has not committed: it may have other rows, as they were repaired since.
        """
        self._folder.sweep()
        for kind in _OF_BATCH:
            name = _named(kind, epoch)
            self._folder.unpublish(name)
            self._folder.delete([f"{name}.json"])

    def _keys(self) -> Iterator[Column]:
        """Return the columns that copies have in common."""
        yield F.col(f"{TRACKER}.scope")
        yield self._rule.plain(self._rule.key)
        yield F.col(f"{TRACKER}.label")

    def _copies_of(self, spark: SparkSession, came: str, kept: Iterable[str]) -> DataFrame:
        """Return the labels of a batch that it has more than once, or that had come before."""
        labels = self._read(spark, [came], {_TIMES: "long"})
        found = labels.where(F.col(_TIMES) > 1).withColumn(_BEFORE, F.lit(False))
        if parts := [*kept]:  # of which there are many more, as a rule
            before = self._read(spark, parts).join(labels, [*_BY]).withColumn(_BEFORE, F.lit(True))
            if over := self._gone:
                before = before.join(self._keys_of(spark, over), [_SCOPE, _KEY], "left_anti")
            found = found.unionByName(before)
        return found.groupBy(*_BY).agg(F.max(_TIMES).alias(_TIMES), F.max(_BEFORE).alias(_BEFORE))

    def _looked_at(self, spark: SparkSession, part: str) -> tuple[int, set[Substream], bool]:
        """Return how many labels a batch has, of which substreams, and whether some come repeatedly."""
        written = files(self._folder / part, [_SCOPE, *([_KEY] if self._rule.plain_type == "string" else [])])
        number = written.count_rows()
        if number > _FEW:
            labels = self._read(spark, [part], {_TIMES: "long"})
            grouped = labels.groupBy(_SCOPE, _KEY).agg(F.max(_TIMES)).collect()
            substreams = {self._rule.substream(row[0], row[1]) for row in grouped}
            return number, substreams, any(row[2] > 1 for row in grouped)
        found: set[Substream] = set()
        repeated = False
        for batch in written.to_batches(columns=[_SCOPE, _KEY, _TIMES]):
            found |= {self._rule.substream(*key) for key in fold_labels(batch[_SCOPE], batch[_KEY], None)}
            repeated |= bool((batch[_TIMES].to_numpy() > 1).any())
        return number, found, repeated

    def _write(self, name: str, labels: DataFrame) -> None:
        """Publish labels, unless an earlier attempt has."""
        self._folder.publish(name, Parquet(labels))
        self._there.add(name)

    def _read(self, spark: SparkSession, parts: Iterable[str], beside: dict[str, str] | None = None) -> DataFrame:
        columns = "".join(f", {name} {kind}" for name, kind in (beside or {}).items())
        reader = parquet_of(spark, f"{self._key_of}, {_LABEL} long{columns}")
        return reader.parquet(*map(self._folder.url, parts))

    # ---------------------------------------------------------------- what has ended

    def _forget_ended(self, run: Run) -> None:
        """Take out what has ended since the last look, which is made now and then."""
        if time.monotonic() < self._look_at or (ended := run.unless_away(lambda: self._ended(run))) is None:
            return
        self._look_at = time.monotonic() + _LOOK_EVERY
        for part in self._parts.values() if ended else ():
            # A row that is late for one of the substreams that the tracker knows it as is late for all of them.
            part.live -= {live for live in part.live if any(each[:2] in ended for each in self._rule.tracked_as(live))}

    def _ended(self, run: Run) -> set[tuple[str, str]]:
        """Return what rows are late for: substreams that have ended since the last look, by scope and name."""
        after = self._place or run.place
        try:
            events, self._place = run.news.events(after, None, [self._segment])
        except TrackingError as error:
            if getattr(error.__cause__, "reason", "") != Refusal.EVENTS_EXPIRED:
                raise
            return self._ended_by_now(run)
        return {
            (event.kind.scope, event.kind.name)
            for event in events
            if isinstance(event.kind, Late) or (isinstance(event.kind, Ended) and not event.kind.by_drain)
        }

    def _ended_by_now(self, run: Run) -> set[tuple[str, str]]:
        """Return likewise what has ended of all that is kept, as the query was away for longer than there are events.

        A substream that the tracker does not know has ended, and was forgotten, unless the job started afresh since.
        """
        self._place = run.place
        kept = {
            (each, part.incarnation == run.incarnation)
            for part in self._parts.values()
            for live in part.live
            for each in self._rule.tracked_as(live)
        }
        ended = run.news.ended_of({each for each, _ in kept}, self._segment)
        return {each[:2] for each, now in kept if each in ended and (now or ended[each] is not None)}

    # ---------------------------------------------------------------- parts

    @property
    def _gone(self) -> set[Substream]:
        """The substreams that have ended, and of which parts have labels yet."""
        live = {each for part in self._parts.values() for each in part.live}
        return {each for part in self._parts.values() for each in part.substreams} - live

    def _keys_of(self, spark: SparkSession, substreams: Iterable[Substream]) -> DataFrame:
        """Return the scopes and keys of some substreams."""
        return spark.createDataFrame([(each.scope, self._rule.key_of(each)) for each in substreams], self._key_of)

    def _described(self, name: str, described: Mapping[str, Any]) -> _Part:
        """Return a part as its first attempt has described it."""
        return _Part.of(self._folder.create(f"{name}.json", described))

    def _merge(self, spark: SparkSession, epoch: int) -> None:
        """Make one part of many small ones, without what has ended, if there are too many."""
        self._parts = {name: part for name, part in self._parts.items() if part.live}
        newest = max((part.incarnation for part in self._parts.values()), default=0)
        settled = [(name, part) for name, part in self._parts.items() if name != _named("came", epoch)]
        known = [(name, part) for name, part in settled if part.incarnation == newest]
        if len(known) < _PARTS:
            return
        known.sort(key=lambda each: each[1].labels)
        chosen = dict(known[: len(known) * 3 // 4])  # the largest wait, so that each label is rewritten rarely
        live = set[Substream]().union(*(part.live for part in chosen.values()))
        described = {"substreams": [*map(list, live)], "incarnation": newest, "merged": sorted(chosen)}
        name = _named("merged", epoch)
        merged = self._described(name, {**described, "labels": sum(part.labels for part in chosen.values())})
        own = self._keys_of(spark, merged.substreams)
        labels = self._read(spark, merged.merged).join(own, [_SCOPE, _KEY], "left_semi")
        self._write(name, labels)
        merged.live &= live
        self._parts = {other: part for other, part in self._parts.items() if other not in merged.merged}
        self._parts[name] = merged

    # ---------------------------------------------------------------- versions

    def _load(self, epoch: int, run: Run) -> None:
        if self._epoch != epoch - 1:
            before = self._versions.before(epoch)
            if epoch and (before is None or before.epoch != epoch - 1):
                found = "missing" if before is None else f"that of batch {before.epoch}"
                raise torn(f"the identities of rows in {self._folder} are {found}", epoch, self._checkpoint)
            version = {} if before is None else before.content
            over = {Substream(*each) for each in version.get("over", [])}
            # A snapshot of a disk has no notes of what was published, so they are not asked for here.
            self._there = {name[:-1] for name in self._folder.names() if name[-1] == "/" and name[0] not in "_."}
            self._parts = {}
            for name in version.get("parts", []):
                part = _Part.of(self._folder.read(f"{name}.json"))
                part.live -= over
                self._parts[name] = part
            self._place = Place.of(version["position"], version["log_id"]) if "position" in version else None
            self._look_at = 0.0
        # Substreams that a drain has closed go on in the next deployment, and no later one.
        self._parts = {name: part for name, part in self._parts.items() if part.incarnation >= run.incarnation - 1}

    def _publish(self, epoch: int) -> None:
        version = {"parts": sorted(self._parts), "over": sorted(map(list, self._gone), key=str)}
        if self._place is not None:
            version |= {"position": self._place.numbers, "log_id": self._place.ids}
        before = self._versions.put(epoch, version)
        self._epoch = epoch
        needed = {*self._parts, *(before or {}).get("parts", [])}
        for name in [name for name in self._there if name not in needed and _epoch_of(name) < epoch]:
            self._folder.unpublish(name)
            self._folder.delete([f"{name}.json"])
            self._there.remove(name)


def begin(checkpoint: Folder, epoch: int) -> None:
    """Let a query that has run without count each row once from an epoch on: of what came before, nothing is known."""
    Versions(_folder(checkpoint)).put(epoch - 1, {})


def recut(spark: SparkSession, checkpoint: Folder, epoch: int, before: Substreams, rule: Substreams) -> None:
    """Move what is kept after an epoch to the windows of another rule, which take in those of the one before."""
    folder = _folder(checkpoint)
    version = Versions(folder).before(epoch + 1)
    if version is None or not (names := version.content.get("parts")):
        return
    over = {Substream(*each) for each in version.content["over"]}
    parts = [_Part.of(folder.read(f"{name}.json")) for name in names]
    live = {rule.recut(each) for part in parts for each in part.substreams - over}
    reader = parquet_of(spark, f"{_SCOPE} string, {_KEY} {before.plain_type}, {_LABEL} long")
    keys = [(each.scope, before.key_of(each)) for each in over]
    ended = spark.createDataFrame(keys, f"{_SCOPE} string, {_KEY} {before.plain_type}")
    labels = reader.parquet(*map(folder.url, names)).join(ended, [_SCOPE, _KEY], "left_anti")
    key = rule.plain(rule.recut_key(before, before.stored(F.col(_KEY))))
    name = _named("recut", epoch)
    folder.publish(name, Parquet(labels.select(_SCOPE, key.alias(_KEY), _LABEL)))
    number, newest = sum(part.labels for part in parts), max(part.incarnation for part in parts)
    described = {"substreams": [*map(list, live)], "incarnation": newest, "labels": number}
    folder.put(f"{name}.json", described)
    Versions(folder).put(epoch, {**version.content, "parts": [name], "over": []})


def is_later(name: str, epoch: int) -> bool:
    """Return whether a file of the state, by its path there, is of a batch after an epoch.

    >>> is_later("came-000000000007/part-0.parquet", 6), is_later("version-000000000006.json", 6)
    (True, False)
    """
    return _epoch_of(name.partition("/")[0]) > epoch


def _folder(checkpoint: Folder) -> Folder:
    return checkpoint / "tracker" / IDENTITIES


def _named(kind: str, epoch: int) -> str:
    return f"{kind}-{epoch:012d}"


def _epoch_of(name: str) -> int:
    found = _OF_EPOCH.fullmatch(name)
    return -1 if found is None else int(found[1])


def _number_of(found: DataFrame | None) -> tuple[int, bool]:
    """Return how many rows of a batch are copies, and whether some are of rows that come with it first."""
    if found is None:
        return 0, False
    extra = F.col(_TIMES) - F.when(F.col(_BEFORE), 0).otherwise(1)
    row = found.agg(F.sum(extra), F.max(~F.col(_BEFORE))).collect()[0]
    return row[0] or 0, bool(row[1])


def _first(rows: DataFrame) -> DataFrame:
    """Return one row of each label: always the same one, should they differ."""
    own = [named(field.name) for field in rows.schema.fields if _has_hash(field.dataType)]
    place = F.row_number().over(Window.partitionBy(*_BY).orderBy(F.xxhash64(*own)))
    return rows.withColumn(_TIMES, place).where(F.col(_TIMES) == 1).drop(_TIMES)


def _has_hash(kind: T.DataType) -> bool:
    return not any(isinstance(each, T.MapType) or each.typeName() == "variant" for each in types_in(kind))
