"""Substreams that a column names: a file, a load, a transaction, a session that has a name of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TEXTS, ColumnOrName, as_column_has_it, texts
from spark_client.windows.belonging import Belonging, Condition, no_revision, of_text
from spark_client.windows.substreams import Ability, Given, Substream, Substreams


@dataclass(frozen=True)
class Named(Substreams):
    """Substreams that are named: their key is the name.

    Attributes:
        name: the name of the column, in results.
        name_type: its type, as DDL.

    >>> Named("load", scope="shop").substream("lyon", "2026-03-01")
    Substream(scope='lyon', name='2026-03-01', end_time=None)
    """

    name: str
    name_type: str = "string"

    marker = "name"
    called = "named substreams"
    example = "names, not windows"

    lacks = frozenset([Ability.THROUGH, Ability.WATERMARK])

    def conditions(self, df: DataFrame, given: ColumnOrName) -> Iterator[Condition]:
        return of_text(df, given, "name")

    def revisable(self, belonging: Belonging) -> Belonging:
        return belonging.requiring(no_revision(self.name))

    def derives(self, kind: T.DataType) -> bool:
        return kind in TEXTS

    def derived(self, given: Column) -> Column:
        return given.cast("string")

    def derived_values(self, given: pa.Array) -> pa.Array:
        return texts(given)

    def scheduled(self, given: Given) -> Any:
        return given.names(self.name_type)

    def when_of(self, value: Any, where: str) -> Any:  # noqa: ARG002
        return as_column_has_it(value, self.name_type) if isinstance(value, str) else value

    def substream(self, scope: str | None, key: Any) -> Substream:
        if key is None:
            raise ValueError("a substream without a name")
        return Substream(scope or "", key, None)

    def key_of(self, substream: Substream) -> str:
        return substream.name

    def has(self, substream: Substream) -> bool:
        return substream.end_time is None

    def bounds(self, substream: Substream) -> tuple[datetime | None, datetime | None]:  # noqa: ARG002
        return None, None

    def name_and_end(self, key: Column) -> tuple[Column, Column]:
        return key, F.lit(None).cast(T.TimestampType())

    @property
    def labelled(self) -> str:
        return self.name

    def shown(self, key: Column) -> list[Column]:
        return [key.cast(self.name_type).alias(self.name)]
