"""The quarantine: what came after its substream's end, and so belongs to no result.

It is a table that anybody can read, with the rows as JSON. A release with revisions keeps it mergeable as well, as the
partial rows that a revision is made of. An epoch's first attempt decides which of its rows are late, and that stands,
so a driver that was restarted, and remembers less, sets nothing aside twice. Nothing here knows of the tracker.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, named
from spark_client.destinations.sink import Sink
from spark_client.errors import TrackingError
from spark_client.plan.state import can_read
from spark_client.release.parts import NOTE, RowTally, versions_of
from spark_client.spark_internals.checkpoints import started_query
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.folder import Folder, claim_table
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
_KEPT: Final = re.compile(rf"epoch=(-?\d+)/kind=([^/]+)/{_INDEX}")
_KEEPS: Final = "keeps.json"  #: that a release keeps what is late mergeable, be there any or not
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
        self, checkpoint: Folder, table: Folder, shape: Mapping[str, object] | None, to: Sink | None = None
    ) -> None:
        path = checkpoint / "tracker"
        self._checkpoint = checkpoint
        self._path = path
        self._table = table
        self._shape = shape
        self._to = to
        self._decided: set[int] | None = None  # the epochs that have a decision; None: not listed yet
        self.newest = ""  #: of what is kept mergeable here, that was put last; empty: nothing was
        if shape is not None:
            _mergeable(path).put(_KEEPS, {})

    def decide(self, epoch: int, late: Set[Substream], again: bool) -> set[Substream]:
        """Return which substreams of a batch are late, as the epoch's first attempt has found.

        Args:
            again: the epoch may have been attempted by another driver.
        """
        if not late and not again:
            return set()
        overdue = self._path / "overdue"
        decided = overdue.create(f"{epoch}.json", sorted(map(list, late)))
        if self._decided is None:
            self._decided = {int(name[:-5]) for name in overdue.names() if name[:-5].isdigit()}
        old = {each for each in self._decided if each < epoch - 2}
        overdue.delete(f"{each}.json" for each in old)
        self._decided = {*self._decided, epoch} - old
        return {Substream(*key) for key in decided}

    def put_rows(self, epoch: int, kind: str, rows: DataFrame | None) -> None:
        """Put rows into the table, which this query takes for good; none, if a step has dropped all of them.

        Args:
            kind: the rows' value of ``kind`` in `LATE_SCHEMA`.

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
            self._table.publish(_part(epoch, kind), Parquet(rows))

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

            kept, part = _mergeable(self._path), _part(epoch, kind)
            if not kept.holds(f"{part}/{_INDEX}"):
                attempt = f"{part}/rows.{uuid.uuid4().hex}"
                files = kept.write(attempt, Parquet(partials))
                index["rows_in"] = [f"{attempt}/{file}" for file in files] or [attempt]
                kept.create(f"{part}/{_INDEX}", index)
            self.newest = f"{part}/{_INDEX}"

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
            rows: a DataFrame with the column ``_tracker``.
        """
        of = F.col(TRACKER)
        data = F.to_json(F.struct(*[named(name) for name in rows.columns if name != TRACKER]))
        reason = F.lit(f"another row of the batch has the same label on {segment!r}")
        rule = Substreams.from_json(self._path.read(NOTE)["substreams"])
        name, end = rule.name_and_end(rule.key)
        columns = [of["scope"].alias("scope"), name.alias("name"), end.alias("end_time")]
        part = f"doubled-{_short(segment)}"
        self.put_rows(epoch, part, rows.select(*columns, data.alias("data"), reason.alias("reason")))
        counted = rows.groupBy(of["scope"].alias("scope"), rule.plain(rule.key).alias("key")).count().collect()
        substreams = [(rule.substream(scope, key), number) for scope, key, number in counted]
        self._count(epoch, part, "doubled", [(its.scope, its.name, number) for its, number in substreams])

    def _count(self, epoch: int, part: str, kind: str, rows: Sequence[tuple[str | None, str | None, int]]) -> None:
        """Note how many rows were set aside of each substream, for the ledger; the first note stands."""
        query = self._path.read(NOTE)
        if query is not None:
            note = {"job": query["job"], "segment": query["segment"], "kind": kind, "rows": rows}
            (self._table / COUNTS).create(f"{epoch}.{part}.json", note)

    def sweep(self) -> None:
        """Remove what drivers that were killed have left half written."""
        (self._path / "overdue").sweep()
        for place in (self._table, _mergeable(self._path)):
            place.sweep()
            for name in place.names() if place.path is not None else ():
                if name.startswith("epoch="):
                    (place / name[:-1]).sweep()

    def partials(self, epoch: int, kind: str) -> list[str]:
        """Return the URLs of the partial rows that an epoch has set aside.

        Raises:
            TrackingError: they are gone, or were aggregated in another way.
        """
        kept, part = _mergeable(self._path), _part(epoch, kind)
        index = kept.read(f"{part}/{_INDEX}")
        if index is None or self._shape is None or not can_read(index["shape"], self._shape):
            raise TrackingError(
                f"a revision needs the late rows in {kept.url(part)}, aggregated by {self._shape}: restore the folder, "
                "or start the query with these aggregates"
            )
        return [kept.url(name) for name in index.get("rows_in", [part])]  # version 0.2 had them beside the index


def mergeable_items(path: Folder, last: int) -> list[Item] | None:
    """Return what can be made revisions of.

    Args:
        path: a checkpoint's folder ``tracker``.
        last: the last batch that Spark has committed: what a later one has set aside may yet be set aside otherwise.
            So may what was set aside between two batches, until the state after that is published.

    Returns:
        None if the release keeps nothing mergeable.
    """
    kept = _mergeable(path)
    names = kept.below()
    if not names:
        return None
    items = []
    states = ("state", *(f"outputs/{name}state" for name in path.names("outputs")))
    published = max([last + 1, *(version.acts for state in states for version in versions_of(path.names(state)))])
    for name, epoch, kind in (
        (name, int(found[1]), found[2]) for name in names if (found := _KEPT.fullmatch(name)) is not None
    ):
        if epoch <= last if epoch >= 0 else -epoch <= published:
            index = kept.read(name)
            items += [
                Item(Substream(*key), epoch, kind, RowTally(*tally), index["shape"]) for key, *tally in index["rows"]
            ]
    return items


def _mergeable(path: Folder) -> Folder:
    return path / "quarantine"


def _short(name: str, longest: int = 64) -> str:
    """Return a name in that of a directory or a query, whatever is in it."""
    if re.fullmatch(r"[A-Za-z0-9_.-]+", name) and len(name) <= longest:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _part(epoch: int, kind: str) -> str:
    return f"epoch={epoch}/kind={kind}"
