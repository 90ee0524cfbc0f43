"""Tables of a lake as sinks: each epoch is one commit, or each row replaces the one with its key.

A column may have a type that holds all values of the rows' as they are. `DataFrame.to` and Spark's own store assignment
also take types in which values are rounded or cut, so the list is kept here. A date in a column of timestamps, and the
like, is not in it: its meaning would depend on the session.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import check_present, fold, named, quoted
from spark_client.destinations.completeness import Completeness
from spark_client.destinations.destination import Destination, Written
from spark_client.destinations.lineage import Line, Mark, Marks
from spark_client.destinations.sink import SinkDestination, check_replaced, check_summed
from spark_client.errors import TrackingError, UsageError, refused
from spark_client.storage.directories import with_settings
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import COMPLETENESS, Substream

WRITER: Final = ("_query", "_epoch")  #: columns that name what has written a row
_GONE: Final = ("NOT_FOUND", "NOT_EXIST", "TABLE_ONLY_OPERATION", "MISSING_DELTA_TABLE")  #: of a table that is gone
_COPIES: Final = "_tracker_copies"
_PAUSES: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  #: seconds before each attempt at a commit

_Digits: TypeAlias = dict[type[T.DataType], int]

#: Digits that integers of a type may have.
_HAS: Final[_Digits] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
#: Digits of which a type has all integers.
_HOLDS: Final[_Digits] = {
    T.ByteType: 2,
    T.ShortType: 4,
    T.IntegerType: 9,
    T.LongType: 18,
    T.FloatType: 7,
    T.DoubleType: 15,
}


def of_epoch(rows: DataFrame, query: str, epoch: int) -> DataFrame:
    """Return rows that name the query and the epoch that write them."""
    return rows.withColumns({WRITER[0]: F.lit(query), WRITER[1]: F.lit(epoch).cast("bigint")})


def holds_all(kind: T.DataType, to: T.DataType) -> bool:
    """Return whether a type has all values of another one, and a cast gives just these.

    >>> holds_all(T.IntegerType(), T.LongType()), holds_all(T.LongType(), T.DoubleType())
    (True, False)
    """
    if isinstance(kind, T.ArrayType) and isinstance(to, T.ArrayType):
        return holds_all(kind.elementType, to.elementType)
    if isinstance(kind, T.MapType) and isinstance(to, T.MapType):
        return holds_all(kind.keyType, to.keyType) and holds_all(kind.valueType, to.valueType)
    if isinstance(kind, T.StructType) and isinstance(to, T.StructType):
        # A cast takes fields by their places.
        return kind.names == to.names and all(
            holds_all(each.dataType, other.dataType) for each, other in zip(kind.fields, to.fields, strict=True)
        )
    if isinstance(kind, T.DecimalType) and isinstance(to, T.DecimalType):
        return kind.scale <= to.scale and kind.precision - kind.scale <= to.precision - to.scale
    if kind == to or (isinstance(kind, T.FloatType) and isinstance(to, T.DoubleType)):
        return True
    has = _HAS.get(type(kind))
    if isinstance(kind, T.DecimalType) and kind.scale == 0:
        has = kind.precision
    holds = to.precision - to.scale if isinstance(to, T.DecimalType) else _HOLDS.get(type(to))
    return has is not None and holds is not None and has <= holds


def fitted(rows: DataFrame, table: T.StructType) -> DataFrame:
    """Return rows with a table's names and types for their columns, where nothing is lost by that."""
    same = fold(rows.sparkSession)
    there = {same(field.name): field for field in table.fields}
    columns, changed = [], False
    for field in rows.schema.fields:
        column, its = named(field.name), there.get(same(field.name), field)
        if its.dataType.simpleString() != field.dataType.simpleString() and holds_all(field.dataType, its.dataType):
            column, changed = column.cast(its.dataType), True
        changed |= its.name != field.name
        columns.append(column.alias(its.name))
    return rows.select(*columns) if changed else rows


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
    undo: ClassVar[str]  #: a statement that sets a table to one of its commits
    with_a_key: ClassVar[tuple[str, ...]]  #: beginnings of the names of options that hold where rows are merged, too
    completes = True
    marks: Marks | None = None  #: of the query that writes; None: nothing is noted
    _seen = Line((), whole=False)  # at the last look

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
        self._grows = str(self._options.get("mergeSchema", "false")).lower() == "true"
        without = [name for name in self._options if not name.startswith(self.with_a_key)]
        if key and without:
            raise UsageError(
                f"{type(self).__name__}({table!r}, key=…): option {without[0]!r} is the writer's that adds rows, and "
                "rows with a key are merged into the table: set what it does as a property of the table, or leave it "
                "out"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table!r})"

    @property
    def replaces(self) -> bool:
        """Return whether a row replaces the one that has its key."""
        return bool(self._key)

    def opened(self, kept: Folder) -> LakeTable:
        """Return the table as one query writes to it, which notes its commits.

        Args:
            kept: a folder in the query's checkpoint.
        """
        its = copy(self)
        its.marks = Marks(kept, self._table)
        return its

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

    @abstractmethod
    def _line(self, spark: SparkSession, since: Mark | None) -> Line:
        """Return the newest commits of the table, and at least those since some other; None: all of them."""

    @abstractmethod
    def _once(self, line: Line, query: str, epoch: int) -> tuple[str, dict[str, str]]:
        """Return a condition of merged rows and settings of the session with which an epoch is merged only once."""

    def _own(self, rows: DataFrame) -> DataFrame:
        """Return the table's columns, of rows that are added."""
        return rows

    @property
    def _what(self) -> str:
        return f"{self.format.capitalize()} table {self._table}"

    def check(self, rows: DataFrame) -> None:
        """Create the table, or compare its columns.

        Raises:
            UsageError: the session lacks the format or the catalog, or the table cannot hold the rows.
            TrackingError: the table has lost what the query has written.
        """
        what = self._what
        check_present(self._key, rows.columns, f"{what}: key")
        for query, _ in self.marks or ():  # first: a table that is gone would be created
            self._look_back(rows.sparkSession, query)
        wanted = (rows if self._key else self._own(rows)).limit(0)
        needs = "The session needs the format's packages and a catalog: see docs/howto/lake.md"
        with refused(what, needs, AnalysisException):
            self._create(wanted)
            table = rows.sparkSession.table(self._in_sql()).schema
        if self._grows:
            return
        same = fold(rows.sparkSession)
        there = {same(field.name): field for field in table.fields}
        columns = [(there.get(same(field.name)), field) for field in wanted.schema.fields]
        if missing := [f"{quoted(its.name)} {its.dataType.simpleString()}" for has, its in columns if has is None]:
            raise UsageError(
                f"{what} lacks columns of the rows: {', '.join(missing)}. Add them (ALTER TABLE … ADD COLUMNS), choose "
                "another table, or let it grow, with .option('mergeSchema', True)"
            )
        narrow = [(has, its) for has, its in columns if has is not None and not holds_all(its.dataType, has.dataType)]
        if other := [f"{quoted(its.name)} is {has.dataType.simpleString()}" for has, its in narrow]:
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

    def check_rest(self, rows: DataFrame) -> None:
        """Refuse a result that would replace the one that it continues; called with no rows."""
        check_summed(f"table {self._table}", rows.columns, self._key, COMPLETENESS)

    def write(self, rows: DataFrame, query: str, epoch: int, completed: Sequence[Substream] = ()) -> None:
        """Commit the rows of an epoch and what they complete, so that committing them again changes nothing."""
        known = self._complete(rows.sparkSession).and_also(completed)
        self._put(partial(self._merge, "") if self._key else self._append, rows, query, epoch, known)
        self._known = known  # and not before: another query's commit through this object would announce it

    def send(self, rows: DataFrame, query: str, epoch: int) -> None:
        """Commit the rows of an epoch as `write`, and so that `stream` gives them."""
        self.write(rows, query, epoch)

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        """Commit early results, each unless a later or a final one of its key is there."""
        replaced = "AND NOT coalesce(there.final, true) AND there.as_of < came.as_of"
        note = self._complete(rows.sparkSession).note(query, as_of)
        self._commit(partial(self._merge, replaced, rows, query, as_of, note))

    def _complete(self, spark: SparkSession) -> Completeness:
        """Return what is complete in the table as far as this driver knows."""
        if self._known is None:
            self._known = Completeness.of(self.commit_notes(spark))
        return self._known

    def _put(
        self,
        commit: Callable[[DataFrame, str, int, str], None],
        rows: DataFrame,
        query: str,
        epoch: int,
        known: Completeness,
    ) -> None:
        """Commit an epoch, and note where it is in the line of the table's commits.

        Args:
            commit: the rows, of a query and an epoch, with a note.
        """
        spark = rows.sparkSession
        self._commit(partial(commit, rows, query, epoch, known.note(query, epoch)))
        if self.marks is not None:
            self.marks.put(query, epoch, self._with_commit(spark, query, epoch) or self._look_back(spark, query))

    def _with_commit(self, spark: SparkSession, query: str, epoch: int) -> Line | None:  # noqa: ARG002
        """Return the line that `_look_back` saw last with the commit that came after it; None: it has to look again."""
        return None

    def _look_back(self, spark: SparkSession, query: str) -> Line:
        """Return the line of the table's commits.

        Raises:
            TrackingError: a query's own are in it no more.
        """
        mark = None if self.marks is None else self.marks.get(query)
        try:
            line = self._line(spark, mark)
        except AnalysisException as error:
            if not any(sign in str(error) for sign in _GONE):
                raise
            line = Line((), whole=True)
        if self.marks is not None and mark is not None and mark.is_lost(query, line):
            raise TrackingError(
                f"{self._what} has lost results that this query has written, up to epoch {mark.epoch}: it was dropped, "
                "renamed, replaced or set back. Nothing more was written. Bring them back "
                f"({self.undo.format(self._in_sql(), mark.number)}), or give the query the table's new name, and start "
                "it again with the same checkpoint. To go on without them, remove "
                f"{self.marks.url(query)} first: each epoch from then on is written"
            )
        self._seen = line if mark is None else replace(line, restored=max(line.restored, mark.restored))
        return self._seen

    def _without(self, spark: SparkSession, query: str, epoch: int) -> Line | None:
        """Return the line of the table's commits if an epoch is in none of them; None: it is there.

        A table forgets old commits, but not what the query has noted.
        """
        line = self._look_back(spark, query)
        mark = None if self.marks is None else self.marks.get(query)
        is_noted = mark is not None and mark.epoch == epoch
        return None if is_noted or line.last(query, epoch) is not None else line

    def _fitted(self, rows: DataFrame) -> DataFrame:
        """Return rows as the table's columns take them."""
        return fitted(rows, rows.sparkSession.table(self._in_sql()).schema)

    def _merge(self, replaced: str, rows: DataFrame, query: str, epoch: int, note: str) -> None:
        """Commit rows, each in place of the one with its key, unless the table has the epoch.

        Args:
            replaced: a condition of the rows that are replaced; empty: all are, and by a driver that writes after its
                successor, newer ones would be.
        """
        line = None if self.marks is None else self._without(rows.sparkSession, query, epoch)
        if line is None and self.marks is not None and not replaced:
            return
        rows = self._fitted(rows)
        keys = list(map(named, self._key))
        several = F.concat(
            F.lit(f"{self._what}: several rows of one epoch have the key "),
            F.to_json(F.struct(*keys), {"ignoreNullFields": "false"}),
            F.lit(", and nothing says which of them stands. Name columns in key=[…] that tell the rows apart"),
        )
        copies = F.count(F.lit(1)).over(Window.partitionBy(*keys))
        one = (F.col(_COPIES) == 1) | F.raise_error(several).isNotNull()
        came = rows.withColumn(_COPIES, copies).where(one).drop(_COPIES)
        same = " AND ".join(f"there.{quoted(name)} <=> came.{quoted(name)}" for name in self._key)
        taken, added = "*", "*"
        if not self._grows:  # else a star takes new columns, too
            columns = list(map(quoted, rows.columns))
            taken = ", ".join(f"{name} = came.{name}" for name in columns)
            added = f"({', '.join(columns)}) VALUES ({', '.join(f'came.{name}' for name in columns)})"
        clauses = f"{same} WHEN MATCHED {replaced} THEN UPDATE SET {taken} WHEN NOT MATCHED THEN INSERT {added}"
        condition, settings = ("true", {}) if replaced or line is None else self._once(line, query, epoch)
        self._by_sql(came, clauses, settings | {self.note_setting: note}, condition)

    def _by_sql(self, rows: DataFrame, clauses: str, settings: Mapping[str, str], condition: str = "true") -> None:
        """Merge rows, which are called `came`, into the table, which is called `there`.

        Args:
            settings: of the session, for the commit.
            condition: of the rows that are merged.
        """
        view = f"tracker_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(view)
        evolves = "WITH SCHEMA EVOLUTION " if self._grows else ""
        came = f"SELECT * FROM {view} WHERE {condition}"
        merge = f"MERGE {evolves}INTO {self._in_sql()} AS there USING ({came}) AS came ON {clauses}"
        try:
            with with_settings(rows.sparkSession, settings):
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
