"""Revisions: what came after a substream's end, put through the same release once more, as a substream of its own.

A revision of the substream ``monday`` is the substream ``monday#r1`` of the same scope, then ``monday#r2``: without an
end time, sent and received in one report, and closed in it. The tracker ends it as it ends any other, and with that
end the release merges what was quarantined. The parts of a revision are written down before it is reported, and stand:
so whatever was quarantined belongs to one revision, and the next driver finishes one that was interrupted in between.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.advice import explained
from spark_client.errors import UsageError
from spark_client.plan.state import can_read
from spark_client.release.parts import NONE, NOTE, RowTally
from spark_client.release.quarantine import LATE_SCHEMA, Item, mergeable_items
from spark_client.spark_internals.checkpoints import last_commit, started_query
from spark_client.storage.directories import parquet_of
from spark_client.storage.folder import Folder
from spark_client.trackers import JobClient
from spark_client.windows.eventtime import INSTANT, micros_of
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal

_NAME: Final = re.compile(r"(.+)#r([1-9][0-9]*)", re.DOTALL)
_LONGEST: Final = 512  #: bytes of a name, at the tracker


@dataclass(frozen=True, slots=True)
class Revision:
    """A substream that was reopened.

    Attributes:
        substream: the one that had ended.
        number: 1, 2, … of that substream.
        rows: how many have come late and are now in it.
    """

    substream: Substream
    number: int
    rows: int
    tally: RowTally  #: of these rows
    parts: tuple[tuple[int, str], ...]  #: of the quarantine that it is made of: (epoch, kind)

    @property
    def name(self) -> str:
        """Return what the tracker calls it."""
        return f"{self.substream.name}#r{self.number}"


def numbered(name: str) -> tuple[str, int]:
    """Return the substream and the number that a name means; 0: it is no revision.

    >>> numbered("monday#r2"), numbered("monday")
    (('monday', 2), ('monday', 0))
    """
    match = _NAME.fullmatch(name)
    return (name, 0) if match is None else (match[1], int(match[2]))


class Revisions:
    """The revisions of one release, as they are written down in its checkpoint: one note for each time that something
    was reopened."""

    def __init__(self, checkpoint: Folder) -> None:
        self._checkpoint = checkpoint
        self._path = checkpoint / "tracker" / "revisions"
        self._notes: list[list[Revision]] = []  # those that were read; they never change

    def all(self) -> list[Revision]:
        """Return every revision there is."""
        while (note := self._path.read(f"{len(self._notes):06d}.json")) is not None:
            self._notes.append([_from_json(fields) for fields in note])
        return [revision for note in self._notes for revision in note]

    @property
    def newest(self) -> str:
        """The newest note; empty: there is none."""
        return f"{len(self._notes) - 1:06d}.json" if self.all() else ""

    def find(self, scope: str, name: str) -> Revision | None:
        """Return the revision that the tracker calls so, if it is one of these."""
        base, number = numbered(name)
        if not number:
            return None
        return next((r for r in self.all() if (r.substream[:2], r.number) == ((scope, base), number)), None)

    def reopen(self, scope: str | None, name: str | None, end_time: datetime | None) -> list[Revision]:
        """Make revisions of what is in the quarantine and in no revision yet.

        Args:
            scope, name, end_time: of which substreams; None: of all.

        Raises:
            UsageError: the release keeps nothing for revisions, or what it kept was aggregated in another way.
        """
        micros = None
        if end_time is not None:
            query = (self._checkpoint / "tracker").read(NOTE) or {"substreams": {}}
            micros = micros_of(end_time, query["substreams"].get("time", INSTANT))
        while True:
            made = self._unrevised(scope, name, micros)
            note = [_to_json(revision) for revision in made]
            if not made or self._path.create(f"{len(self._notes):06d}.json", note) == note:
                return made

    def tell(self, client: JobClient) -> None:
        """Report to the tracker the notes that it has not reported yet: safe to repeat.

        Raises:
            TrackingError: the tracker cannot be reached, or refuses; it is said again when the query starts.
        """
        if not self.all():
            return
        query = (self._checkpoint / "tracker").read(NOTE)
        producer = f"{started_query(self._checkpoint)}.revisions"
        while True:
            try:
                with client.open_producer(query["job"], producer, uuid.uuid4().hex) as producer_run:
                    reported = -1 if producer_run.committed_epoch is None else producer_run.committed_epoch
                    for epoch in range(reported + 1, len(self._notes)):
                        report = producer_run.epoch(epoch)
                        for revision in self._notes[epoch]:
                            scope, rows = revision.substream.scope, revision.rows
                            # Each row is sent and received here, so the labels cancel out.
                            report.add(query["segment"], scope, revision.name, 0, sent=rows, received=rows)
                            report.close(scope, revision.name, front=None)
                        report.report(units=["reopened"], commit=True)
                return
            except TrackerError as error:
                if error.reason != Refusal.FENCED:  # else somebody else is saying it
                    raise explained(error) from error
            except TrackerUnavailable as error:
                raise explained(error) from error

    def _unrevised(self, scope: str | None, name: str | None, end_time: int | None) -> list[Revision]:
        last = last_commit(self._checkpoint)
        items = mergeable_items(self._checkpoint / "tracker", -1 if last is None else last)
        if items is None:
            raise UsageError(
                f"the query of checkpoint {self._checkpoint} keeps nothing that could be reopened: it has to be "
                "tracking.release(…, revisions=True), and to run, before rows come late"
            )
        known = self.all()
        taken = {(revision.substream, *part) for revision in known for part in revision.parts}
        wanted: dict[Substream, list[Item]] = {}
        for item in items:
            pairs = zip((scope, name, end_time), item.substream, strict=True)
            wants = all(asked is None or asked == its for asked, its in pairs)
            if wants and (item.substream, item.epoch, item.kind) not in taken:
                wanted.setdefault(item.substream, []).append(item)
        numbers: dict[Substream, int] = {}
        for revision in known:
            numbers[revision.substream] = max(revision.number, numbers.get(revision.substream, 0))
        return [self._made_of(its, numbers.get(its, 0) + 1, wanted[its]) for its in sorted(wanted, key=str)]

    def _made_of(self, substream: Substream, number: int, items: Sequence[Item]) -> Revision:
        query = (self._checkpoint / "tracker").read(NOTE)
        if not Substreams.from_json(query["substreams"]).has(substream):
            raise UsageError(
                f"the late rows of {substream.name} of {substream.scope!r} are of windows that the query does not cut "
                "any more. Read them from the table of late rows, and reopen others with name= or end_time="
            )
        for item in items:
            if not can_read(item.shape, query):
                changed = "keys" if item.shape["keys"] != query["keys"] else "aggregates"
                raise UsageError(
                    f"the late rows of {substream.name} of {substream.scope!r} in epoch {item.epoch} were aggregated "
                    f"with {changed} {item.shape[changed]}, and the query's are now {query[changed]}: they cannot be "
                    "merged. Read them from the table of late rows"
                )
        tally = reduce(RowTally.__add__, (item.tally for item in items), NONE)
        parts = tuple(sorted((item.epoch, item.kind) for item in items))
        made = Revision(substream, number, tally.rows, tally, parts)
        if len(made.name.encode()) > _LONGEST:
            raise UsageError(f"{made.name}: the name of a revision may have {_LONGEST} bytes")
        return made


def late_rows(spark: SparkSession, checkpoint: Folder, table: Folder) -> DataFrame:
    """Return what a release has set aside, and which revision it is in: `LATE_SCHEMA` with ``revision``.

    Args:
        table: where the table of late rows is.
    """
    if any(name.startswith("epoch=") for name in table.names()):
        rows = parquet_of(spark, LATE_SCHEMA).parquet(str(table)).select(*LATE_SCHEMA.fieldNames())
    else:
        rows = spark.createDataFrame([], LATE_SCHEMA)
    revised = [
        (epoch, kind, its.scope, its.name, its.end_time, revision.number)
        for revision in Revisions(checkpoint).all()
        for its in [revision.substream]
        for epoch, kind in revision.parts
    ]
    if not revised:
        return rows.withColumn("revision", F.lit(None).cast("int"))
    schema = "_epoch long, _kind string, _scope string, _name string, _end long, revision int"
    numbers = F.broadcast(spark.createDataFrame(revised, schema))
    same = (
        (F.col("epoch") == F.col("_epoch"))
        & (F.col("kind") == F.col("_kind"))
        & (F.col("scope") == F.col("_scope"))
        & (F.col("name").isNull() | (F.col("name") == F.col("_name")))  # most windows are told apart by their ends
        & F.unix_micros("end_time").eqNullSafe(F.col("_end"))
    )
    return rows.join(numbers, same, "left").select(*rows.columns, "revision")


def _to_json(revision: Revision) -> dict[str, Any]:
    tally = revision.tally
    return {
        "substream": list(revision.substream),
        "number": revision.number,
        "account": [*tally.listed()],
        "parts": [list(part) for part in revision.parts],
    }


def _from_json(fields: dict[str, Any]) -> Revision:
    tally = RowTally(*fields["account"])
    parts = tuple((epoch, kind) for epoch, kind in fields["parts"])
    return Revision(Substream(*fields["substream"]), fields["number"], tally.rows, tally, parts)
