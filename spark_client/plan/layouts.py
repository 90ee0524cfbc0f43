"""Layouts of tracked rows in files.

`ExplicitLayout`: with `_tracker`, as rows carry it. `DerivedLayout`: the scope and the window, or the name, of a row
are mostly columns of it, and writing them a second time costs more than everything else that a channel adds to writing
rows. So these files have the label as a column, `_tracker_label`, and a row's substream, `_tracker_elsewhere`, only
where it differs from what the row's key columns give, because a step has changed them. If it is known that no step has,
the files lack that column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TEXTS, TRACKER, ColumnOrName, named, names_of, texts
from spark_client.windows.substreams import TRACKER_TYPE, Substreams

LABEL: Final = "_tracker_label"
ELSEWHERE: Final = "_tracker_elsewhere"

#: Makes tracked rows of what files hold.
Reader: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class ExplicitLayout:
    """Files hold what rows carry, `_tracker` included.

    Attributes:
        label: the labels, for pyarrow.
        columns: what `keys_and_labels` reads of files.
        texts: which of them may be strings that repeat.
    """

    rule: Substreams

    label = pc.field(TRACKER, "label")
    columns = (TRACKER,)
    texts = (f"{TRACKER}.scope", f"{TRACKER}.name")

    def to_files(self, columns: Sequence[str], label: Column, layout: DerivedLayout | None = None) -> list[Column]:  # noqa: ARG002
        """Return what files hold of tracked rows.

        Args:
            columns: theirs but `_tracker`, in the files' order.
            label: that the rows are to have, instead of their own.
            layout: whose key columns are known to name each row's substream; None: they may have changed.
        """
        return [*map(named, columns), F.col(TRACKER).withField("label", label).alias(TRACKER)]

    def schema_of_files(self, schema: T.StructType) -> T.StructType:
        """Return what columns files have, for rows with these."""
        return schema

    def reader(self) -> Reader:
        """Return what makes tracked rows of what files hold. To be made once: it costs a hundred calls into the JVM."""
        return lambda rows: rows

    def keys_and_labels(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return scopes, ends or names, and labels of rows in files."""
        tracked = batch.column(TRACKER)
        return tracked.field("scope"), tracked.field(self.rule.key_field), tracked.field("label")


@dataclass(frozen=True, slots=True)
class DerivedLayout:
    """Files leave out what the key columns give: see `ExplicitLayout` for the methods of both.

    Attributes:
        scope: the column that has the scope; None: all rows are in the scope ``""``.
        key: the column of the time that windows are over, or of the name.
    """

    rule: Substreams
    scope: str | None
    key: str

    label = pc.field(LABEL)

    def fits(self, schema: T.StructType) -> bool:
        """Return whether rows with these columns have what is needed, in types whose text is the same for everyone."""
        types = {field.name: field.dataType for field in schema.fields}
        if LABEL in types or ELSEWHERE in types:
            return False
        scope_fits = self.scope is None or types.get(self.scope) in TEXTS
        key = types.get(self.key)
        return scope_fits and key is not None and self.rule.derives(key)

    @property
    def texts(self) -> Sequence[str]:
        return self.names if self.rule.plain_type == "string" else self.names[:-1]

    @property
    def names(self) -> list[str]:
        """The key columns."""
        return [self.key] if self.scope is None else [self.scope, self.key]

    @property
    def columns(self) -> Sequence[str]:
        return [*self.names, LABEL, ELSEWHERE]

    def _derived(self) -> Mapping[str, Column]:
        scope = F.lit("") if self.scope is None else named(self.scope).cast("string")
        return {"scope": scope, self.rule.key_field: self.rule.derived(named(self.key))}

    def to_files(self, columns: Sequence[str], label: Column, layout: DerivedLayout | None = None) -> list[Column]:
        stored = [*map(named, columns), label.alias(LABEL)]
        if layout == self:
            return stored
        belongs = self._derived()
        differs = F.lit(False)
        for name, value in belongs.items():
            differs = differs | ~F.col(f"{TRACKER}.{name}").eqNullSafe(value)
        elsewhere = F.when(differs, F.struct(*[F.col(f"{TRACKER}.{name}").alias(name) for name in belongs]))
        return [*stored, elsewhere.alias(ELSEWHERE)]

    def schema_of_files(self, schema: T.StructType) -> T.StructType:
        own = [field for field in schema.fields if field.name != TRACKER]
        elsewhere = T.StructType([TRACKER_TYPE[name] for name in ("scope", self.rule.key_field)])
        return T.StructType([*own, T.StructField(LABEL, T.LongType()), T.StructField(ELSEWHERE, elsewhere)])

    def reader(self) -> Reader:
        derived = F.col(ELSEWHERE).isNull()
        fields = {
            name: F.when(derived, value).otherwise(F.col(f"{ELSEWHERE}.{name}"))
            for name, value in self._derived().items()
        }
        fields["label"] = F.col(LABEL)
        whole = [fields.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in TRACKER_TYPE.fields]
        tracker = F.struct(*whole)
        return lambda rows: rows.withColumn(TRACKER, tracker).drop(LABEL, ELSEWHERE)

    def keys_and_labels(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        scopes = pa.repeat("", len(batch)) if self.scope is None else batch.column(self.scope)
        keys = self.rule.derived_values(batch.column(self.key))
        elsewhere = batch.column(ELSEWHERE) if ELSEWHERE in batch.schema.names else None
        if elsewhere is not None and elsewhere.null_count < len(batch):
            derived = elsewhere.is_null()
            moved = self.rule.plain_values(elsewhere.field(self.rule.key_field))
            scopes = pc.if_else(derived, scopes.cast(pa.string()), elsewhere.field("scope"))
            keys = pc.if_else(derived, keys.cast(moved.type), moved)
        return texts(scopes), keys, batch.column(LABEL)


RowLayout: TypeAlias = ExplicitLayout | DerivedLayout


def derived_layout(rule: Substreams, scope: ColumnOrName | None, key: ColumnOrName) -> DerivedLayout | None:
    """Return the layout by the key columns of a declaration; None: they are expressions over others."""
    scopes: frozenset[str | None] | None = frozenset([None]) if scope is None else names_of([scope])
    keys = names_of([key])
    if scopes is None or keys is None:
        return None
    (scope_name,), (key_name,) = scopes, keys
    return DerivedLayout(rule, scope_name, key_name)


def layout_of(rule: Substreams, columns: Mapping[str, Any] | None) -> RowLayout:
    """Return the layout of a channel's files, by its description."""
    return ExplicitLayout(rule) if columns is None else DerivedLayout(rule, columns["scope"], columns["key"])
