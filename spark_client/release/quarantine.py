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
from spark_client.destinations.sink import Sink
from spark_client.errors import TrackingError
from spark_client.plan.state_layout import can_read
from spark_client.release.parts import RowTally, versions_of
from spark_client.spark_internals.checkpoints import started_query
from spark_client.storage.directories import (
    claim_table,
    publish,
    read_json,
    sweep,
    write_first,
    write_json,
    write_parquet,
)
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream, Substreams
from tracker.client.ledger import COUNTS

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
_LONGEST: Final = 22  #: characters of a kind in the name that a sink knows a query by


@dataclass(frozen=True, slots=True)
class Item:
    """Part of a substream set aside by an epoch, kept mergeable.

    Attributes:
        substream: that it came too late for.
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
        table: gets the rows, and how many they are; only the latter, if the rows go to a sink.
        shape: the release's keys and aggregates, as plain data, if what is set aside is to be kept mergeable; None: it
            is not.
        to: a sink that gets the rows.
    """

    def __init__(
        self, checkpoint: Path, table: Path, shape: Mapping[str, object] | None, to: Sink | None = None
    ) -> None:
        path = checkpoint / "tracker"
        self._checkpoint = checkpoint
        self._path = path
        self._table = table
        self._shape = shape
        self._to = to
        self.newest = ""  #: of what is kept mergeable here, that was put last; empty: nothing was
        if shape is not None:
            _mergeable(path).mkdir(parents=True, exist_ok=True)

    def decide(self, epoch: int, late: Set[Substream], again: bool) -> set[Substream]:
        """Return which substreams of a batch are late, as the epoch's first attempt has found.

        Args:
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

    def put_rows(self, epoch: int, kind: str, rows: DataFrame | None) -> None:
        """Put rows into the table, which this query takes for good; none, if a step has dropped all of them.

        Args:
            kind: as in `LATE_SCHEMA`.

        Raises:
            UsageError: the table is another query's.
        """
        query = started_query(self._checkpoint)
        claim_table(self._table, query, "late rows")
        if rows is not None and self._to is not None:
            given = {"epoch": F.lit(epoch), "kind": F.lit(kind), **{name: named(name) for name in rows.columns}}
            columns = [
                given.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in LATE_SCHEMA
            ]
            # Under a name of their own: the results may go to the same database, under the same epoch.
            self._to.write(rows.select(*columns), f"{query}.late.{_short(kind, _LONGEST)}", epoch)
        elif rows is not None:
            publish(_part(self._table, epoch, kind), write_parquet(rows))

    def put(
        self, epoch: int, kind: str, rows: DataFrame | None, partials: DataFrame, tallies: Mapping[Substream, RowTally]
    ) -> None:
        """Set something aside; again the same if the epoch is replayed.

        Args:
            kind: ``row``, ``aggregate`` or ``kept``.
            rows: of the table: scope, name, end_time, data; None: a step has dropped all of them.
            partials: the same as partial rows.
            tallies: of the rows, by substream.
        """
        self.put_rows(epoch, kind, rows)
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

    def put_bad(self, epoch: int, rows: DataFrame, number: int) -> None:
        """Set rows aside that belong to no substream; what the epoch's first attempt has set aside stands.

        Args:
            rows: of the table: data, reason.
        """
        nothing = [F.lit(None).cast(LATE_SCHEMA[name].dataType).alias(name) for name in ("scope", "name", "end_time")]
        self.put_rows(epoch, "bad", rows.select(*nothing, "data", "reason"))
        self._count(epoch, "bad", "bad", [(None, None, number)])

    def put_doubled(self, epoch: int, segment: str, rows: DataFrame) -> None:
        """Set rows aside that a channel would take for copies of others.

        Args:
            rows: with `_tracker`.
        """
        of = F.col(TRACKER)
        data = F.to_json(F.struct(*[named(name) for name in rows.columns if name != TRACKER]))
        reason = F.lit(f"another row of the batch has the same label on {segment!r}")
        rule = Substreams.from_json(read_json(self._path / "query.json")["substreams"])
        name, end = rule.name_and_end(rule.key)
        columns = [of["scope"].alias("scope"), name.alias("name"), end.alias("end_time")]
        part = f"doubled-{_short(segment)}"
        self.put_rows(epoch, part, rows.select(*columns, data.alias("data"), reason.alias("reason")))
        counted = rows.groupBy(of["scope"].alias("scope"), rule.plain(rule.key).alias("key")).count().collect()
        substreams = [(rule.substream(scope, key), number) for scope, key, number in counted]
        self._count(epoch, part, "doubled", [(its.scope, its.name, number) for its, number in substreams])

    def _count(self, epoch: int, part: str, kind: str, rows: Sequence[tuple[str | None, str | None, int]]) -> None:
        """Note how many rows were set aside of each substream, for the ledger; the first note stands."""
        query = read_json(self._path / "query.json")
        if query is not None:
            note = {"job": query["job"], "segment": query["segment"], "kind": kind, "rows": rows}
            write_first(self._table / COUNTS / f"{epoch}.{part}.json", note)

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
                f"a revision needs the late rows in {path}, aggregated by {self._shape}: restore the directory, or "
                "start the query with these aggregates"
            )
        return str(path)


def mergeable_items(path: Path, last: int) -> list[Item] | None:
    """Return what can be made revisions of.

    Args:
        path: of a checkpoint's ``tracker`` directory.
        last: the last batch that Spark has committed: what a later one has set aside may yet be set aside otherwise.
            So may what was set aside between two batches, until the state after that is published.

    Returns:
        None if the release keeps nothing mergeable.
    """
    kept = _mergeable(path)
    if not kept.is_dir():
        return None
    items = []
    states = (path / "state", *path.glob("outputs/*/state"))
    published = max([last + 1, *(version.acts for state in states for version in versions_of(Folder(state).names()))])
    for found in kept.glob(f"epoch=*/kind=*/{_INDEX}"):
        epoch, kind = int(found.parts[-3].partition("=")[2]), found.parts[-2].partition("=")[2]
        if epoch <= last if epoch >= 0 else -epoch <= published:
            index = read_json(found)
            items += [
                Item(Substream(*key), epoch, kind, RowTally(*tally), index["shape"]) for key, *tally in index["rows"]
            ]
    return items


def _mergeable(path: Path) -> Path:
    return path / "quarantine"


def _short(name: str, longest: int = 64) -> str:
    """Return a name in that of a directory or a query, whatever is in it."""
    if re.fullmatch(r"[A-Za-z0-9_.-]+", name) and len(name) <= longest:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _part(path: Path, epoch: int, kind: str) -> Path:
    return path / f"epoch={epoch}" / f"kind={kind}"
