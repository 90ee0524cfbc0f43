"""Tables of a database as a sink: results are in them once, whatever fails and is replayed.

Two ways, which can be combined. *By epoch*: the numbers of the epochs that are in the tables are kept in a table beside
them, written in the same transaction; a replay finds its number there and writes nothing. *By key*: a row replaces the
one with its key, so writing it again changes nothing. All tables of a sink are written in one transaction: who reads
them sees all results of an epoch or none.

Needs nothing of the database but a DB-API 2 connection with transactions, and ``INSERT … ON CONFLICT`` for tables with
a key (PostgreSQL, SQLite and others have it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import VARIANTS, check_present, named, quoted
from spark_client.destinations.sink import check_replaced, check_summed
from spark_client.errors import TrackingError, UsageError, check_some, refused
from spark_client.plan.jsonrows import holds, utf8
from spark_client.plan.names import check_apart
from spark_client.plan.releases import AS_OF, FINAL
from spark_client.plan.streams import Step
from spark_client.storage.databases import (
    Connection,
    Cursor,
    check_placeholder,
    check_transactions,
    in_statement,
    name_in,
)
from spark_client.windows.eventtime import DAY
from spark_client.windows.substreams import COMPLETENESS

# Spark holds times that Python's datetime does not, and texts whose bytes are not UTF-8, which come out as other texts.
# So Spark itself looks for such values, row by row, and Python never meets one.

_FIRST: Final = -62_135_596_800_000_000  #: 0001-01-01T00:00:00Z in microseconds since 1970
_LAST: Final = 253_402_300_799_999_999  #: 9999-12-31T23:59:59.999999Z
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SHOWN: Final = 60  #: characters of a value

_CHUNK: Final = 1000  #: rows that are sent to the database at once
_REMEMBERED: Final = 1000  #: batches of a query whose epochs its table has
_SAMPLES: Final[tuple[tuple[type[T.DataType], Any], ...]] = (
    (T.DecimalType, Decimal(1)),
    (T.BooleanType, True),
    (T.IntegralType, 1),
    (T.FractionalType, 1.0),
    (T.BinaryType, b""),
    (T.DateType, date(2000, 1, 1)),
    (T.TimestampType, datetime(2000, 1, 1, tzinfo=timezone.utc)),
    (T.TimestampNTZType, datetime(2000, 1, 1)),
    (T.DayTimeIntervalType, timedelta(1)),
    *([(T.TimeType, time())] if hasattr(T, "TimeType") else []),  # Spark 4.1
)


def values_of(rows: DataFrame, what: str, advice: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of rows, partition by partition; instants as datetimes in UTC.

    Args:
        what: they are to go to, for the message.

    Raises:
        TrackingError: a row has a value that Python does not hold as it is. Those before it have been given.
    """
    fields = rows.schema.fields
    fault: Column = F.lit(None).cast("string")
    columns = []
    for place, field in enumerate(fields):
        value = named(field.name)
        fits = representable(value, field.dataType)
        if fits is not None:
            shown = F.substring(value.cast("string"), 1, _SHOWN)
            fault = F.when(~fits, F.concat(F.lit(f"the column {field.name!r} has "), shown)).otherwise(fault)
            value = F.when(fits, value)
        if isinstance(field.dataType, T.TimestampType):
            value = F.unix_micros(value)
        columns.append(value.alias(f"_{place}"))
    instants = [place for place, field in enumerate(fields) if isinstance(field.dataType, T.TimestampType)]
    for row in rows.select(*columns, fault.alias("_fault")).toLocalIterator():
        *values, wrong = row
        if wrong is not None:
            raise TrackingError(
                f"{what}: {wrong}, and Python holds times of the years 1 to 9999 and texts in UTF-8. Nothing of the "
                f"batch was written. Start the query again, with the same checkpoint, after {advice}"
            )
        for place in instants:
            if values[place] is not None:
                values[place] = _EPOCH + timedelta(microseconds=values[place])
        yield tuple(values)


def representable(value: Column, kind: T.DataType) -> Column | None:
    """Return whether Python holds a value as it is, null included; None: it does whatever the value is."""
    # PySpark shows instants within arrays and the like in this machine's zone, so those keep off the ends by a day.
    return holds(value, kind, partial(_representable, margin=0), partial(_representable, margin=DAY))


def _representable(value: Column, kind: T.DataType, margin: int) -> Column | None:
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(value).between(_FIRST + margin, _LAST - margin)
    if isinstance(kind, T.DateType | T.TimestampNTZType):
        return F.year(value).between(1, 9999)
    return utf8(value, kind)


def epochs_table(name: str = "tracker_epochs") -> str:
    """Return the statement that makes the table of epochs; run it once, where the other tables are made."""
    return f"create table {name} (query varchar(64) not null, epoch bigint not null, primary key (query, epoch))"


@dataclass(frozen=True)
class Table:
    """One table and what goes into it.

    Attributes:
        name: of the table, as SQL takes it. It has to be there.
        key: columns of a unique constraint: a row replaces the one with its key. None: rows are added.
        rows: makes the table's rows of the results. None: the results as they are.

    A column ``window`` becomes ``window_start`` and ``window_end``, as any struct does. Timestamps are sent with their
    zone: the columns should be ``timestamptz``.
    """

    name: str
    key: Sequence[str] = ()
    rows: Step | None = None

    def shape(self, results: DataFrame) -> DataFrame:
        """Return the table's rows, without structs. Called with no rows, too, when the query starts.

        Raises:
            UsageError: they lack a column of the key.
        """
        rows = results if self.rows is None else self.rows(results)
        flat = rows.select([column for field in rows.schema.fields for column in _flat(field)])
        advice = "structs become columns of their own; rename some with Table(…, rows=…)"
        check_apart(flat.columns, results.sparkSession, f"table {self.name}", advice)
        check_present(self.key, flat.columns, f"table {self.name}: key")
        return flat

    def statements(self, rows: DataFrame, placeholder: str, early: bool = False) -> Statements:
        """Return what puts rows of this shape into the table; an early one only where it replaces an older one."""
        return Statements(self.name, rows.columns, self.key, placeholder, early)


class Tables:
    """Tables that results are written to, each once, all in one transaction.

    Args:
        connect: makes a DB-API 2 connection that is not in autocommit mode; with `shard`, of the shard it is given.
        tables: `Table`, or the name of a table that rows are added to.
        shard: the column for the database that a row belongs to. An epoch is then one transaction for each shard it
            has rows for, and a replay writes to those that were not yet done.
        epochs: the table of epochs (`epochs_table`). None: there is none, and each table needs a key.
        placeholder: how the driver writes a parameter: ``%s``, or ``?`` as sqlite3 does.

    Rows are collected by the driver, partition by partition, and sent by the thousand: for results, which are few.

    >>> import psycopg                                                                        # doctest: +SKIP
    >>> sink = Tables(lambda: psycopg.connect(dsn), "daily")                                  # doctest: +SKIP
    >>> daily.writeStream.sink(sink).option("checkpointLocation", "cp").start()               # doctest: +SKIP
    """

    reads_all = True

    def __init__(
        self,
        connect: Callable[..., Connection],
        *tables: Table | str,
        shard: str | None = None,
        epochs: str | None = "tracker_epochs",
        placeholder: str = "%s",
    ) -> None:
        self._tables = [Table(table) if isinstance(table, str) else table for table in tables]
        check_some("a sink of tables", self._tables, "table")
        if epochs is None and (bare := [table.name for table in self._tables if not table.key]):
            raise UsageError(
                f"table {bare[0]}: without a table of epochs, a replay would add its rows again: give it a key"
            )
        check_placeholder(placeholder)
        self._connect = connect
        self._shard = shard
        self._epochs = epochs
        self._placeholder = placeholder

    def check(self, rows: DataFrame) -> None:
        """Refuse rows that the tables could not be written from; called with none when the query starts.

        Raises:
            UsageError: a column is missing, or two cannot be told apart; or, unless there are shards, the database or
                its driver does not take such rows.
        """
        self._check(rows, early=False)

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        """Write the rows of an epoch, unless they are there.

        Raises:
            UsageError: a column is missing, or the connection commits by itself.
            TrackingError: a value is none that Python holds: a time after the year 9999, a text that is not UTF-8.
        """
        self._write(rows, (query, epoch), early=False)

    def check_early(self, rows: DataFrame) -> None:
        """Refuse early results that the final ones would not replace; called with none when the query starts."""
        for table in self._tables:
            check_replaced(f"table {table.name}", table.shape(rows).columns, table.key)
        self._check(rows, early=True)

    def check_revised(self, rows: DataFrame) -> None:
        """Refuse results with revisions where one would replace the result that it adds to; called with no rows."""
        for table in self._tables:
            check_summed(f"table {table.name}", table.shape(rows).columns, table.key)

    def check_rest(self, rows: DataFrame) -> None:
        """Refuse a result that would replace the one that it continues; called with no rows."""
        for table in self._tables:
            check_summed(f"table {table.name}", table.shape(rows).columns, table.key, COMPLETENESS)

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:  # noqa: ARG002
        """Write early results, each unless a later or a final one of its key is there.

        Raises:
            UsageError, TrackingError: as of `write`.
        """
        self._write(rows, None, early=True)

    def _write(self, rows: DataFrame, entry: tuple[str, int] | None, early: bool) -> None:
        several = len(self._tables) > 1
        if several:
            rows = rows.persist()
        transactions: dict[Any, _Transaction] = {}
        try:
            for table in self._tables:
                shaped = table.shape(rows)
                statements = table.statements(shaped, self._placeholder, early)
                for chunk in _chunks(shaped, table):
                    for shard, values in self._by_shard(chunk, shaped.columns, table).items():
                        if shard not in transactions:
                            transactions[shard] = self._begin(shard, entry)
                        transactions[shard].add(statements, values)
            for transaction in transactions.values():
                transaction.commit()
        finally:
            for transaction in transactions.values():
                transaction.close()
            if several:
                rows.unpersist()

    def _check(self, rows: DataFrame, early: bool) -> None:
        shaped = [(table, table.shape(rows)) for table in self._tables]
        for table, its in shaped:
            self._has_shard(its.columns, table)
        if self._shard is not None:
            return  # nobody knows yet which shards there are
        try:
            connection = self._connect()
            transaction = _Transaction(connection)
        except Exception:  # the database is away; it may be back when something has ended, or the batch fails
            return
        try:
            check_transactions(connection)
            for table, its in shaped:
                statements = table.statements(its, self._placeholder, early)
                statements.check(transaction.cursor, [field.dataType for field in its.schema.fields])
        finally:
            transaction.close()

    def _by_shard(
        self, chunk: list[tuple[Any, ...]], columns: list[str], table: Table
    ) -> dict[Any, list[tuple[Any, ...]]]:
        if self._shard is None:
            return {None: chunk}
        self._has_shard(columns, table)
        place = columns.index(self._shard)
        grouped: dict[Any, list[tuple[Any, ...]]] = {}
        for values in chunk:
            grouped.setdefault(values[place], []).append(values)
        return grouped

    def _has_shard(self, columns: Sequence[str], table: Table) -> None:
        check_present([] if self._shard is None else [self._shard], columns, f"table {table.name}: shard")

    def _begin(self, shard: Any, entry: tuple[str, int] | None) -> _Transaction:
        """Return a transaction in a database, with an epoch of a query entered, if there is one to enter."""
        connection = self._connect() if self._shard is None else self._connect(shard)
        transaction = _Transaction(connection)
        try:
            check_transactions(connection)
            if entry is not None and self._epochs is not None:
                transaction.enter(self._epochs, self._placeholder, *entry)
        except BaseException:
            transaction.close()
            raise
        return transaction


class _Transaction:
    """One epoch in one database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.cursor: Cursor = connection.cursor()
        self._done = False

    def enter(self, epochs: str, placeholder: str, query: str, epoch: int) -> None:
        """Enter an epoch, unless it is in the tables already, and remove those that nobody will repeat.

        Should an earlier driver of the query still be at the same epoch, the primary key makes one of the two fail.

        Raises:
            TrackingError: an earlier driver is at an epoch that its successors have left so far behind that it may be
                in the tables and not known any more.
        """
        table = in_statement(placeholder, epochs)

        def execute(sql: str, *parameters: int) -> None:
            statement = sql.replace("?", placeholder).replace("{table}", table)
            self.cursor.execute(statement, (query, *parameters))

        def found(condition: str, *parameters: int) -> bool:
            execute(f"select 1 from {{table}} where query = ? and {condition}", *parameters)
            return self.cursor.fetchone() is not None

        self._done = found("epoch = ?", epoch)
        if self._done:
            return
        execute("insert into {table} (query, epoch) values (?, ?)", epoch)
        # Numbers of what is released between two batches go down: -(K + 1) for the K-th act, of which batches are some.
        if epoch >= 0:
            later = found("epoch > ?", epoch + _REMEMBERED)
            earlier, oldest = "epoch >= 0 and epoch < ?", epoch - _REMEMBERED
        else:
            later = found("(epoch < ? or epoch >= ?)", epoch - _REMEMBERED, _REMEMBERED - epoch)
            earlier, oldest = "epoch < 0 and epoch > ?", epoch + _REMEMBERED
        if later:
            raise TrackingError(
                f"epoch {epoch} of query {query} is long past: another driver of it has written epochs that are more "
                f"than {_REMEMBERED} later. Nothing was written; stop this driver"
            )
        execute(f"delete from {{table}} where query = ? and {earlier}", oldest)

    def add(self, statements: Statements, values: list[tuple[Any, ...]]) -> None:
        if not self._done:
            statements.run(self.cursor, values)

    def commit(self) -> None:
        if not self._done:
            self._connection.commit()

    def close(self) -> None:
        """Roll back what was not committed."""
        with suppress(Exception):  # the connection may be gone; what matters was said by commit
            self._connection.rollback()
        with suppress(Exception):
            self._connection.close()


def _chunks(rows: DataFrame, table: Table) -> Iterator[list[tuple[Any, ...]]]:
    advice = (
        f"Table({table.name!r}, rows=…) makes something else of such values: F.col('window.end').cast('string') is a "
        "time as text, F.make_valid_utf8('kind') a text in UTF-8, and F.hex('kind') its bytes"
    )
    values = values_of(rows, f"table {table.name}", advice)
    while chunk := list(islice(values, _CHUNK)):
        yield chunk


def _flat(field: T.StructField) -> list[Column]:
    if not isinstance(field.dataType, T.StructType):
        return [named(field.name)]
    parts = field.dataType.fieldNames()
    return [F.col(f"{quoted(field.name)}.{quoted(part)}").alias(f"{field.name}_{part}") for part in parts]


# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class Statements:
    """Statements that put rows into one table.

    A unique constraint takes two nulls for different, so ``on conflict`` never meets a row again whose key has a null:
    such a row is deleted and inserted.

    Attributes:
        table: as SQL takes it.
        columns: of the rows, in their order.
        key: those of a unique constraint; empty: rows are added.
        early: whether a row goes only where no later and no final one of its key is.
    """

    table: str
    columns: Sequence[str]
    key: Sequence[str]
    placeholder: str
    early: bool = False

    def run(self, cursor: Cursor, rows: Iterable[Sequence[Any]]) -> None:
        """Put rows into the table.

        Raises:
            TrackingError: the database, or its driver, refuses them.
        """
        places = [self.columns.index(name) for name in self.key]
        whole: list[Sequence[Any]] = []
        holed: list[Sequence[Any]] = []
        for row in rows:
            (holed if any(row[place] is None for place in places) else whole).append(row)
        try:
            if whole:
                marks = ", ".join([self.placeholder] * len(self.columns))
                cursor.executemany(f"{self._into} values ({marks}){self._conflict}", whole)
            for row in holed:
                self._replace(cursor, row, [(name, row[place]) for name, place in zip(self.key, places, strict=True)])
        except Exception as error:
            raise TrackingError(
                f"table {self.table}: the database did not take rows with the columns {', '.join(self.columns)}: "
                f"{error}. Nothing of the batch was written. Mend the table, or the rows with "
                f"Table({self.table!r}, rows=…), and start the query again with the same checkpoint"
            ) from error

    def check(self, cursor: Cursor, types: Sequence[T.DataType]) -> None:
        """Have the database and its driver look at the statement and at a value of each type; no row is put anywhere.

        Raises:
            UsageError: one of them refuses.
        """
        samples = [_sample(kind) for kind in types]
        marks = ", ".join([self.placeholder] * len(self.columns))
        shown = ", ".join(f"{name} {kind.simpleString()}" for name, kind in zip(self.columns, types, strict=True))
        unique = f", with a unique constraint on ({', '.join(self.key)})" if self.key else ""
        with refused(
            f"table {self.table}: the database or its driver does not take rows with the columns {shown}",
            f"The table has to be there{unique}; Table({self.table!r}, rows=lambda results: …) casts a column that the "
            "driver cannot send, such as a decimal to a string or a double",
        ):
            # "where", since SQLite would take "on conflict" for a join's condition.
            nothing = f"select {marks} from (select 1 as one) as nobody where 1 = 0"
            cursor.execute(f"{self._into} {nothing}{self._conflict}", samples)

    @property
    def _into(self) -> str:
        alias = " as stored" if self.early and self.key else ""
        return f"insert into {self._name}{alias} ({', '.join(map(self._quoted, self.columns))})"

    @property
    def _conflict(self) -> str:
        if not self.key:
            return ""
        rest = [self._quoted(name) for name in self.columns if name not in self.key]
        action = f"update set {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "nothing"
        upsert = f" on conflict ({', '.join(map(self._quoted, self.key))}) do {action}"
        if not self.early:
            return upsert
        final, as_of = self._quoted(FINAL), self._quoted(AS_OF)
        return f"{upsert} where stored.{final} = false and stored.{as_of} <= excluded.{as_of}"

    def _replace(self, cursor: Cursor, row: Sequence[Any], key: Sequence[tuple[str, Any]]) -> None:
        same = " and ".join(
            f"{self._quoted(name)} {'is null' if value is None else f'= {self.placeholder}'}" for name, value in key
        )
        values = [value for _, value in key if value is not None]
        if self.early:
            older = f"{self._quoted(FINAL)} = false and {self._quoted(AS_OF)} <= {self.placeholder}"
            as_of = row[self.columns.index(AS_OF)]
            cursor.execute(f"delete from {self._name} where {same} and {older}", [*values, as_of])
            cursor.execute(f"select 1 from {self._name} where {same}", values)
            if cursor.fetchone() is not None:
                return
        else:
            cursor.execute(f"delete from {self._name} where {same}", values)
        marks = ", ".join([self.placeholder] * len(self.columns))
        cursor.execute(f"{self._into} values ({marks})", row)

    @property
    def _name(self) -> str:
        return in_statement(self.placeholder, self.table)

    def _quoted(self, name: str) -> str:
        return name_in(self.placeholder, name)


def _sample(kind: T.DataType) -> Any:
    """Return a value of a type as a row has it; None where each driver takes what there can be, or nobody knows."""
    if isinstance(kind, T.ArrayType):
        return [_sample(kind.elementType)]
    if isinstance(kind, T.MapType):
        return {_sample(kind.keyType): _sample(kind.valueType)}
    if isinstance(kind, VARIANTS):
        return T.VariantVal.parseJson("1")
    return next((value for known, value in _SAMPLES if isinstance(kind, known)), None)
