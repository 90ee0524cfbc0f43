"""Tables of a lake as sinks: each epoch is one commit, or each row replaces the one with its key."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import check_present, quoted
from spark_client.destinations.completeness import Completeness
from spark_client.destinations.destination import Destination, Written
from spark_client.destinations.sink import SinkDestination, check_replaced, check_summed
from spark_client.errors import UsageError, refused
from spark_client.storage.directories import with_settings
from spark_client.windows.substreams import Substream

WRITER: Final = ("_query", "_epoch")  #: columns that name what has written a row
_PAUSES: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  #: seconds before each attempt at a commit


def of_epoch(rows: DataFrame, query: str, epoch: int) -> DataFrame:
    """Return rows that name the query and the epoch that write them."""
    return rows.withColumns({WRITER[0]: F.lit(query), WRITER[1]: F.lit(epoch).cast("bigint")})


class LakeTable(ABC):
    """A table of a lake that results or receipts are written to.

    Args:
        table: a path or URI, which has a slash; or a name in a catalog. A table that is not there is created at the
            start of the query.
        options: of the format's writer.
        partition_by: columns that partition a table that is created.
        key: columns by which a row replaces the one that is there; empty: rows are added, each epoch once.
    """

    format: ClassVar[str]
    raced: ClassVar[tuple[str, ...]]  #: parts of the messages of commits that another one was in the way of
    note_setting: ClassVar[str]  #: of a session: what a commit by SQL carries
    completes = True

    def __init__(
        self,
        table: str,
        options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        key: Sequence[str] = (),
    ) -> None:
        self._table = table
        self._options = dict(options or {})
        self._partition_by = tuple(partition_by)
        self._key = tuple(key)
        self._known: Completeness | None = None  # what the table has; None: not read yet

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table!r})"

    @property
    def replaces(self) -> bool:
        """Return whether a row replaces the one that has its key."""
        return bool(self._key)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows that the table has now."""
        return spark.table(self._in_sql())

    @abstractmethod
    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the rows that `send` commits as a stream of the format's own, each once. Those that others remove from
        the table are no rows of the stream."""

    @classmethod
    def destination(cls, to: Written) -> Destination:
        """Return the destination of ``.format(…)``."""
        return SinkDestination(cls(to.place, to.options, to.partition_by))

    @abstractmethod
    def _create(self, rows: DataFrame) -> None:
        """Create the table, empty, unless it is there."""

    @abstractmethod
    def _append(self, rows: DataFrame, query: str, epoch: int, note: str) -> None:
        """Commit the rows of an epoch with a note, unless the table has them."""

    @abstractmethod
    def commit_notes(self, spark: SparkSession) -> Iterable[Any]:
        """Return what the newest commits carry; None: a commit has no note."""

    @abstractmethod
    def _in_sql(self) -> str:
        """Return the table as SQL takes it."""

    def _type(self, kind: str) -> str:
        """Return the type that a column of the table has for values of another one, both as SQL has them."""
        return kind

    def _own(self, rows: DataFrame) -> DataFrame:
        """Return the table's columns, of rows that are added."""
        return rows

    def check(self, rows: DataFrame) -> None:
        """Create the table, or compare its columns.

        Raises:
            UsageError: the session lacks the format or the catalog, or the table cannot hold the rows.
        """
        what = f"{self.format.capitalize()} table {self._table}"
        check_present(self._key, rows.columns, f"{what}: key")
        wanted = (rows if self._key else self._own(rows)).limit(0)
        needs = "The session needs the format's packages and a catalog: see docs/howto/lake.md"
        with refused(what, needs, AnalysisException):
            self._create(wanted)
            there = dict(rows.sparkSession.table(self._in_sql()).dtypes)
        if "mergeSchema" in self._options:
            return
        columns = {name: self._type(kind) for name, kind in wanted.dtypes}
        if missing := [f"{quoted(name)} {kind}" for name, kind in columns.items() if name not in there]:
            raise UsageError(
                f"{what} lacks columns of the rows: {', '.join(missing)}. Add them (ALTER TABLE … ADD COLUMNS), choose "
                "another table, or let it grow, with .option('mergeSchema', True)"
            )
        if other := [f"{quoted(name)} is {there[name]}" for name, kind in columns.items() if there[name] != kind]:
            raise UsageError(
                f"{what} has other types than the rows: {', '.join(other)}. Give the rows the table's types, such as "
                "F.sum('amount').cast('double'), or choose another table"
            )

    def check_early(self, rows: DataFrame) -> None:
        """Refuse early results that the final ones would not replace; called with none when the query starts."""
        check_replaced(f"table {self._table}", rows.columns, self._key)
        self.check(rows)

    def check_revised(self, rows: DataFrame) -> None:
        """Refuse results with revisions where one would replace the result that it adds to; called with no rows."""
        check_summed(f"table {self._table}", rows.columns, self._key)

    def write(self, rows: DataFrame, query: str, epoch: int, completed: Sequence[Substream] = ()) -> None:
        """Commit the rows of an epoch and what they complete, so that committing them again changes nothing."""
        known = self._complete(rows.sparkSession).and_also(completed)
        note = known.note(query, epoch)
        self._commit(
            partial(self._merge, rows, "", note) if self._key else partial(self._append, rows, query, epoch, note)
        )
        self._known = known  # and not before: another query's commit through this object would announce it

    def send(self, rows: DataFrame, query: str, epoch: int) -> None:
        """Commit the rows of an epoch as `write`, and so that `stream` gives them."""
        self.write(rows, query, epoch)

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        """Commit early results, each unless a later or a final one of its key is there."""
        replaced = "AND NOT coalesce(there.final, true) AND there.as_of < came.as_of"
        self._commit(partial(self._merge, rows, replaced, self._complete(rows.sparkSession).note(query, as_of)))

    def _complete(self, spark: SparkSession) -> Completeness:
        """Return what is complete in the table as far as this driver knows."""
        if self._known is None:
            self._known = Completeness.of(self.commit_notes(spark))
        return self._known

    def _merge(self, rows: DataFrame, replaced: str, note: str) -> None:
        same = " AND ".join(f"there.{quoted(name)} <=> came.{quoted(name)}" for name in self._key)
        self._by_sql(rows, f"{same} WHEN MATCHED {replaced} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *", note)

    def _by_sql(self, rows: DataFrame, clauses: str, note: str) -> None:
        """Merge rows, which are called `came`, into the table, which is called `there`."""
        view = f"tracker_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(view)
        merge = f"MERGE INTO {self._in_sql()} AS there USING {view} AS came ON {clauses}"
        try:
            with with_settings(rows.sparkSession, {self.note_setting: note}):
                rows.sparkSession.sql(merge).collect()
        finally:
            rows.sparkSession.catalog.dropTempView(view)

    def _commit(self, commit: Callable[[], None]) -> None:
        """Commit, again after each commit that was in the way."""
        for number, pause in enumerate(_PAUSES, 1):
            time.sleep(pause)
            try:
                commit()
            except Exception as error:
                if number == len(_PAUSES) or not any(sign in str(error) for sign in self.raced):
                    raise
            else:
                return
