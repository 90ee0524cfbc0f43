"""Columns as users give them: by name or as an expression, resolved against the rows that they are of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError, refused
from spark_client.spark_internals.columns import plain_name

TRACKER: Final = "_tracker"  #: the column that tracked rows carry: keep it in every `select`


INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")  #: types of columns, as Spark calls them
#: Types whose values have one text wherever it is made, and equal texts only if they are equal.
TEXTS: Final = (T.StringType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType())
MADE_OF_SEVERAL: Final = (T.ArrayType, T.MapType, T.StructType)
#: By default JSON has milliseconds, on the clock of the session's time zone.
_EXACT_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}

ColumnOrName: TypeAlias = Column | str


def column(value: ColumnOrName) -> Column:
    """Return a column, given as such or by its name."""
    return F.col(value) if isinstance(value, str) else value


def quoted(name: str) -> str:
    """Return a name in Spark's SQL, whatever is in it.

    >>> quoted("http.status"), quoted("a`b")
    ('`http.status`', '`a``b`')
    """
    return f"`{name.replace('`', '``')}`"


def text_in_sql(text: str) -> str:
    """Return a text as a literal of Spark's SQL, whatever is in it.

    >>> print(text_in_sql("o'clock"), text_in_sql("C:\\\\temp"))
    'o\\'clock' 'C:\\\\temp'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def named(name: str) -> Column:
    """Return a column by its very name: ``F.col`` would take a dot for a field of a struct."""
    return F.col(quoted(name))


def names_of(values: Iterable[ColumnOrName]) -> frozenset[str] | None:
    """Return the columns that some columns read, if each is a plain column; None: one is an expression, whose are not
    known.

    >>> sorted(names_of(["origin", "carrier"]))
    ['carrier', 'origin']
    """
    names = set()
    for value in values:
        plain = plain_name(value)
        if plain is None:
            return None
        names.add(plain)
    return frozenset(names)


def text_of(value: Column, kind: str) -> Column:
    """Return the text that names what a value names: one text for all values that Spark groups as one.

    Args:
        value: of a scope, or the name of a substream.
        kind: its type, as DDL.
    """
    if kind in ("float", "double"):
        value = F.when(value == 0, F.lit(0).cast(kind)).otherwise(value)  # -0.0 is another text
    return value.cast("string")


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that a session runs at once; over Spark Connect, which does not show that, the number
    of partitions of its exchanges."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))


def session_zone(df: DataFrame) -> str:
    """Return the time zone that Spark casts by."""
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    return zone


def hashable(df: DataFrame, value: ColumnOrName) -> Column:
    """Return a column of an identity as a hash distinguishes its values.

    Equal texts of a collation may be different bytes, and so different rows.

    Raises:
        UsageError: it is a map or a variant, or has one within: equal ones may be in different orders.
    """
    field = resolve(df, value, "identity")
    check_types([field], _is_hashable, "identity", "whose equal values may be in different orders: give its parts")
    if isinstance(field.dataType, MADE_OF_SEVERAL):
        return whole_text(column(value))
    return F.collate(column(value), "UTF8_BINARY") if " collate " in field.dataType.simpleString() else column(value)


def _is_hashable(kind: T.DataType) -> bool:
    return not any(isinstance(each, (T.MapType, *VARIANTS)) for each in types_in(kind))


def whole_text(value: Column) -> Column:
    """Return a value that is made of several as text: a hash sees neither nulls in it nor where each of them ends."""
    return F.to_json(F.struct(value), _EXACT_TIMES)


def nullable(schema: T.StructType) -> T.StructType:
    """Return a schema in which everything may be null, as files give it back."""
    with_nulls = re.sub(r'"(nullable|containsNull|valueContainsNull)":false', r'"\1":true', schema.json())
    return T.StructType.fromJson(json.loads(with_nulls))


def is_utf8(text: Column) -> Column:
    """Return whether a text is UTF-8: Spark takes any bytes for a text."""
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(text)
    bytes_ = text.cast("binary")  # before Spark 4.0: what is none comes back with other signs in its place
    return bytes_ == F.encode(F.decode(bytes_, "UTF-8"), "UTF-8")


def cast_or_null(value: Column, kind: T.DataType | str) -> Column:
    """Return a value as another type; null where it does not fit. Before Spark 4.0 that takes a session without ANSI
    mode, which is its default there.
    """
    return value.try_cast(kind) if hasattr(value, "try_cast") else value.cast(kind)


# For `isinstance`. Before Spark 4.0 Python has no such types, and no rows with them.
VARIANTS: Final = (T.VariantType,) if hasattr(T, "VariantType") else ()
CALENDAR_INTERVALS: Final = (T.CalendarIntervalType,) if hasattr(T, "CalendarIntervalType") else ()


def fold(spark: SparkSession) -> Callable[[str], str]:
    """Return how names of columns are compared in a session: as they are, or whatever their case."""
    sensitive = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    return str if sensitive else str.lower


def resolve(df: DataFrame, value: ColumnOrName, what: str) -> T.StructField:
    """Return the field that a column gives on these rows."""
    if isinstance(value, str) and plain_name(value) == value:
        alike = [field for field in df.schema if field.name.lower() == value.lower()]
        if [field.name for field in alike] == [value]:  # so that Spark need not be asked, which takes longer
            return alike[0]
    try:
        return df.select(column(value)).schema.fields[0]
    except Exception as error:
        raise _missing(value, df.columns, what) from error


def check_present(names: Iterable[str], columns: Collection[str], what: str, advice: str = "") -> None:
    """Refuse names of columns that rows do not have.

    Args:
        what: the option that names them.
        advice: a sentence at the end of the message: what to do instead.
    """
    for name in names:
        if name not in columns:
            raise _missing(name, columns, what, advice)


def _missing(value: ColumnOrName, columns: Iterable[str], what: str, advice: str = "") -> UsageError:
    available = ", ".join(name for name in columns if name != TRACKER)
    text = f"{what}={value!r} is not a column of the rows, which have: {available}"
    return UsageError(f"{text}. {advice}" if advice else text)


def texts(values: pa.Array) -> pa.Array:
    """Return values as strings; a dictionary of strings stays one."""
    return values if pa.types.is_dictionary(values.type) else values.cast(pa.string())


def as_column_has_it(text: str, kind: str) -> str:
    """Return a value as the source's column has it: Spark takes a path's ``07`` for the number 7.

    >>> as_column_has_it("07", "int"), as_column_has_it("07", "string")
    ('7', '07')
    """
    return str(int(text)) if kind in INTEGERS else text


def types_in(kind: T.DataType) -> Iterator[T.DataType]:
    """Yield a type, and all types that its values are made of."""
    yield kind
    within: list[T.DataType] = []
    if isinstance(kind, T.StructType):
        within = [field.dataType for field in kind.fields]
    elif isinstance(kind, T.ArrayType):
        within = [kind.elementType]
    elif isinstance(kind, T.MapType):
        within = [kind.keyType, kind.valueType]
    for each in within:
        yield from types_in(each)


def check_types(fields: Iterable[T.StructField], fits: Callable[[T.DataType], bool], what: str, reason: str) -> None:
    """Refuse columns of types that something cannot take.

    Args:
        what: they are for, at the beginning of the message.
        reason: a clause that begins with "which", and what to do instead.
    """
    for field in fields:
        if not fits(field.dataType):
            raise UsageError(f"{what}: the column {field.name!r} is {field.dataType.simpleString()}, {reason}")


def schema_of(given: T.StructType | str, what: str) -> T.StructType:
    """Return a schema that is given as such or as text.

    Args:
        what: it is for, at the beginning of the message.
    """
    with refused(f"{what}: {given!r} is no schema, such as 'p50 double, p99 double'"):
        schema = given if isinstance(given, T.StructType) else T.StructType.fromDDL(given)
    if not isinstance(schema, T.StructType):
        raise UsageError(f"{what}: {given!r} names no columns: write 'p50 double, p99 double'")
    return schema
