"""Columns as users give them: by name or as an expression, resolved against the rows that they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError
from spark_client.spark_internals.columns import plain_name

TRACKER: Final = "_tracker"  #: the column that tracked rows carry: keep it in every `select`


_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
#: Whose text is the same wherever and by whomever it is made, and equal only if it is the same.
TEXTS: Final = (T.StringType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType())

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


def session_zone(df: DataFrame) -> str:
    """Return the time zone that Spark casts by."""
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    return zone


def bytewise(df: DataFrame, value: ColumnOrName) -> Column:
    """Return a column of an identity, for a hash: equal texts of a collation may be different bytes, and so different
    rows.

    Raises:
        UsageError: Spark cannot resolve it.
    """
    kind = resolve(df, value, "identity").dataType.simpleString()
    return F.collate(column(value), "UTF8_BINARY") if " collate " in kind else column(value)


def fold(spark: SparkSession) -> Callable[[str], str]:
    """Return how names of columns are compared in a session: as they are, or whatever their case."""
    sensitive = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    return str if sensitive else str.lower


def resolve(df: DataFrame, value: ColumnOrName, what: str) -> T.StructField:
    """Return the field that a column gives on these rows.

    Raises:
        UsageError: Spark cannot resolve it.
    """
    try:
        return df.select(column(value)).schema.fields[0]
    except Exception as error:
        available = ", ".join(name for name in df.columns if name != TRACKER)
        raise UsageError(f"{what}={value!r} is not a column of the rows, which have: {available}") from error


def texts(values: pa.Array) -> pa.Array:
    """Return values as strings; a dictionary of strings stays one."""
    return values if pa.types.is_dictionary(values.type) else values.cast(pa.string())


def as_column_has_it(text: str, kind: str) -> str:
    """Return a value as the source's column has it: Spark takes a path's ``07`` for the number 7.

    >>> as_column_has_it("07", "int"), as_column_has_it("07", "string")
    ('7', '07')
    """
    return str(int(text)) if kind in _WHOLE else text
