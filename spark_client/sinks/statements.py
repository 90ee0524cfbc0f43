"""The statements that put rows into a table of a database, by its key or without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import TrackingError, UsageError
from spark_client.plan.releases import AS_OF, FINAL
from spark_client.storage.databases import Cursor, in_statement, name_in

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


@dataclass(frozen=True)
class Statements:
    """Put rows into one table.

    A unique constraint takes two nulls for different, so ``on conflict`` never meets a row again whose key has a null:
    such a row is deleted and inserted.

    Attributes:
        table: as SQL takes it.
        columns: of the rows, in their order.
        key: those of a unique constraint; empty: rows are added.
        placeholder: of the driver.
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
        try:
            # "where", since SQLite would take "on conflict" for a join's condition.
            nothing = f"select {marks} from (select 1 as one) as nobody where 1 = 0"
            cursor.execute(f"{self._into} {nothing}{self._conflict}", samples)
        except Exception as error:
            shown = ", ".join(f"{name} {kind.simpleString()}" for name, kind in zip(self.columns, types, strict=True))
            unique = f", with a unique constraint on ({', '.join(self.key)})" if self.key else ""
            raise UsageError(
                f"table {self.table}: the database or its driver does not take rows with the columns {shown}: {error}. "
                f"The table has to be there{unique}; Table({self.table!r}, rows=lambda results: …) casts a column that "
                "the driver cannot send, such as a decimal to a string or a double"
            ) from error

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
    if isinstance(kind, T.VariantType):
        return T.VariantVal.parseJson("1")
    return next((value for known, value in _SAMPLES if isinstance(kind, known)), None)
