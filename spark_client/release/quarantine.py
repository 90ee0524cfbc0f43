"""The quarantine: what came after its substream's end, and so belongs to no result.

It is a table that anybody can read, with the rows as JSON. A release with revisions keeps it mergeable as well, as the
partial rows that a revision is made of. What of an epoch is late is decided by the epoch's first attempt and stands, so
a driver that was restarted, and remembers less, sets nothing aside twice. Nothing here knows of the tracker.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, named
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.state_layout import can_read
from spark_client.release.parts import RowTally
from spark_client.spark_internals.checkpoints import started_query
from spark_client.storage.directories import (
    is_table_of,
    publish,
    read_json,
    sweep,
    write_first,
    write_json,
    write_parquet,
)
from spark_client.windows.substreams import Substream, Substreams
from tracker.client.receipts import COUNTS

_log = logging.getLogger("spark_client")

LATE_SCHEMA: Final = T.StructType(
    [
        T.StructField("epoch", T.LongType()),  # of the release's query, that set it aside
        # row: late, as it came; aggregate: the result row that late rows would have made; kept: a row that was late, as
        # the state had kept it (aggregate-<name>, kept-<name>: the same for another release of the query); bad: a row
        # that belongs to no substream, as it came; doubled-<segment>: one that the channel would take for the copy of
        # another
        T.StructField("kind", T.StringType()),
        T.StructField("scope", T.StringType()),
        T.StructField("name", T.StringType()),  # of the substream; null for windows
        T.StructField("end_time", T.TimestampType()),  # of the window; null for named substreams
        T.StructField("data", T.StringType()),  # the row, as JSON
        T.StructField("reason", T.StringType()),  # of a bad row: what is wrong with it
    ]
)

_INDEX: Final = "_index.json"


@dataclass(frozen=True, slots=True)
class Item:
    """Part of a substream set aside by an epoch, kept mergeable.

    Attributes:
        substream: that it came too late for.
        epoch: of the release's query.
        kind: ``row``, ``aggregate`` or ``kept``.
        tally: the rows it was made of.
        shape: the keys and aggregates of the release.
    """

    substream: Substream
    epoch: int
    kind: str
    tally: RowTally
    shape: Mapping[str, object]


class Quarantine:
    """The quarantine of one release.

    Args:
        checkpoint: of the release's query.
        table: where the table is.
        shape: the release's keys and aggregates, as plain data, if what is set aside is to be kept mergeable; None: it
            is not.
    """

    def __init__(self, checkpoint: Path, table: Path, shape: Mapping[str, object] | None) -> None:
        path = checkpoint / "tracker"
        self._checkpoint = checkpoint
        self._path = path
        self._table = table
        self._shape = shape
        self.newest = ""  #: of what is kept mergeable here, that was put last; empty: nothing was
        if shape is not None:
            _mergeable(path).mkdir(parents=True, exist_ok=True)

    def decide(self, epoch: int, late: Set[Substream], again: bool) -> set[Substream]:
        """Return which substreams of a batch are late, as the epoch's first attempt has found.

        Args:
            late: those that this attempt finds.
            again: the epoch may have been attempted by another driver.
        """
        if not late and not again:
            return set()
        note = self._path / "overdue" / f"{epoch}.json"
        decided = write_first(note, sorted(map(list, late)))
        for old in note.parent.glob("*.json"):
            if int(old.stem) < epoch - 2:
                old.unlink(missing_ok=True)
        return {Substream(*key) for key in decided}

    def put(
        self, epoch: int, kind: str, rows: DataFrame | None, partials: DataFrame, tallies: Mapping[Substream, RowTally]
    ) -> None:
        """Set something aside; again the same if the epoch is replayed.

        Args:
            kind: ``row``, ``aggregate`` or ``kept``.
            rows: of the table: scope, name, end_time, data; None: a step has dropped all of them.
            partials: the same as partial rows.
            tallies: of the rows, by substream.

        Raises:
            UsageError: the table is another query's.
        """
        self._own()
        if rows is not None:
            publish(_part(self._table, epoch, kind), write_parquet(rows))
        self._count(epoch, kind, "late", [(its.scope, its.name, tally.rows) for its, tally in tallies.items()])
        _log.warning(
            "%d substreams, %d rows came after their end, and were set aside in batch %d: tracking.late(%r)",
            len(tallies),
            sum(tally.rows for tally in tallies.values()),
            epoch,
            str(self._checkpoint),
        )
        if self._shape is not None:
            index = {
                "shape": self._shape,
                "rows": [[key, *tally.listed()] for key, tally in tallies.items()],
            }

            def write(path: str) -> None:
                write_parquet(partials)(path)
                write_json(Path(path) / _INDEX, index)

            part = _part(_mergeable(self._path), epoch, kind)
            publish(part, write)
            self.newest = str(part.relative_to(_mergeable(self._path)))

    def put_beside(self, epoch: int, kind: str, rows: DataFrame) -> None:
        """Set aside what another release of the query would have made of rows that are counted already.

        Args:
            kind: with the release's name.
            rows: of the table: scope, name, end_time, data.

        Raises:
            UsageError: the table is another query's.
        """
        self._own()
        publish(_part(self._table, epoch, kind), write_parquet(rows))

    def put_bad(self, epoch: int, rows: DataFrame, number: int) -> None:
        """Set rows aside that belong to no substream; what the epoch's first attempt has set aside stands.

        Args:
            rows: of the table: data, reason.
            number: how many they are.

        Raises:
            UsageError: the table is another query's.
        """
        self._own()
        nothing = [F.lit(None).cast(LATE_SCHEMA[name].dataType).alias(name) for name in ("scope", "name", "end_time")]
        publish(_part(self._table, epoch, "bad"), write_parquet(rows.select(*nothing, "data", "reason")))
        self._count(epoch, "bad", "bad", [(None, None, number)])

    def put_doubled(self, epoch: int, segment: str, rows: DataFrame) -> None:
        """Set rows aside that a channel would take for copies of others.

        Args:
            rows: with `_tracker`.

        Raises:
            UsageError: the table is another query's.
        """
        self._own()
        of = F.col(TRACKER)
        data = F.to_json(F.struct(*[named(name) for name in rows.columns if name != TRACKER]))
        reason = F.lit(f"another row of the batch has the same label on {segment!r}")
        rule = Substreams.from_json(read_json(self._path / "query.json")["substreams"])
        name, end = rule.name_and_end(rule.key)
        columns = [of["scope"].alias("scope"), name.alias("name"), end.alias("end_time")]
        aside = rows.select(*columns, data.alias("data"), reason.alias("reason"))
        part = f"doubled-{_short(segment)}"
        publish(_part(self._table, epoch, part), write_parquet(aside))
        counted = rows.groupBy(of["scope"].alias("scope"), rule.plain(rule.key).alias("key")).count().collect()
        substreams = [(rule.substream(scope, key), number) for scope, key, number in counted]
        self._count(epoch, part, "doubled", [(its.scope, its.name, number) for its, number in substreams])

    def _count(self, epoch: int, part: str, kind: str, rows: Sequence[tuple[str | None, str | None, int]]) -> None:
        """Note how many rows were set aside of each substream, for the ledger; the first note stands."""
        query = read_json(self._path / "query.json")
        if query is not None:
            note = {"job": query["job"], "segment": query["segment"], "kind": kind, "rows": rows}
            write_first(self._table / COUNTS / f"{epoch}.{part}.json", note)

    def _own(self) -> None:
        """Take the table for this query."""
        if not is_table_of(self._table, started_query(self._checkpoint)):
            raise UsageError(
                f"late_path {self._table} has the late rows of another query, whose epochs have the same numbers: give "
                "each query its own"
            )

    def sweep(self) -> None:
        """Remove what drivers that were killed have left half written."""
        sweep(self._path / "overdue")
        for epoch in chain(self._table.glob("epoch=*"), _mergeable(self._path).glob("epoch=*")):
            sweep(epoch)

    def partials(self, epoch: int, kind: str) -> str:
        """Return where the partial rows are that an epoch has set aside.

        Raises:
            TrackingError: they are gone, or were aggregated in another way.
        """
        path = _part(_mergeable(self._path), epoch, kind)
        index = read_json(path / _INDEX)
        if index is None or self._shape is None or not can_read(index["shape"], self._shape):
            raise TrackingError(
                f"a revision needs what is, or was, in {path}, aggregated by {self._shape}: restore the directory, or "
                "start the query with these aggregates"
            )
        return str(path)


def mergeable_items(path: Path, last: int) -> list[Item] | None:
    """Return what can be made revisions of.

    Args:
        path: of a checkpoint's ``tracker`` directory.
        last: the last batch that Spark has committed: what a later one has set aside may yet be set aside otherwise.

    Returns:
        None if the release keeps nothing mergeable.
    """
    kept = _mergeable(path)
    if not kept.is_dir():
        return None
    items = []
    for found in kept.glob(f"epoch=*/kind=*/{_INDEX}"):
        epoch, kind = int(found.parts[-3].partition("=")[2]), found.parts[-2].partition("=")[2]
        if abs(epoch) <= last:
            index = read_json(found)
            items += [
                Item(Substream(*key), epoch, kind, RowTally(*tally), index["shape"]) for key, *tally in index["rows"]
            ]
    return items


def _mergeable(path: Path) -> Path:
    return path / "quarantine"


def _short(segment: str) -> str:
    """Return a segment in the name of a directory, whatever is in it."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", segment):
        return segment
    return hashlib.sha256(segment.encode()).hexdigest()[:12]


def _part(path: Path, epoch: int, kind: str) -> Path:
    return path / f"epoch={epoch}" / f"kind={kind}"
