"""A user's function over the rows of one finished substream and key, as tasks call it.

Each process of tasks loads this module, so it needs little of what drivers need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import TrackingError
from spark_client.plan.releases import FinishedGroup, ResultFunction
from spark_client.spark_internals.tasks import arrow_schema
from spark_client.windows.substreams import Substreams

REPAIR: Final = (
    "Nothing of the batch was published, and nothing is lost: repair the function and start the query again, with the "
    "same checkpoint"
)


@dataclass(frozen=True, eq=False)
class GroupFunction:
    """Caller of the function for one group: a table of Arrow, as Spark gives it to a task.

    Attributes:
        keys: the names of the release's keys.
        hidden: the columns that name the group, besides the keys; they are not the function's.
        given: of the rows that Spark gives.
    """

    function: ResultFunction
    rule: Substreams
    keys: Sequence[str]
    hidden: Sequence[str]
    given: T.StructType

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return what the function makes of a group's rows, beside the columns that name the group.

        Raises:
            TrackingError: the function fails, or makes something else than was declared.
        """
        rows = rows.cast(arrow_schema(self.given))  # Spark gives times in the session's zone, and takes them in UTC
        group = self._group(rows)
        try:
            made = self._call(group, rows.drop_columns(list(self.hidden)))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise TrackingError(f"the function {self.function.name} failed for {group}: {text}. {REPAIR}") from error
        own = rows.select([*self.hidden, *self.keys]).slice(0, 1)
        repeated = own.take(pa.array([0] * made.num_rows, pa.int64()))
        return pa.table(
            [*repeated.columns, *made.columns], schema=pa.schema([*own.schema, *made.schema])
        ).replace_schema_metadata(None)

    def _call(self, group: FinishedGroup, rows: pa.Table) -> pa.Table:
        given = rows if self.function.kind == "arrow" else rows.to_pandas()
        function = self.function.function
        made = function(group, given) if takes_group(function) else function(given)
        schema = arrow_schema(self.function.schema)
        if made is None:
            return schema.empty_table()
        if self.function.kind == "pandas":
            import pandas as pd

            if not isinstance(made, pd.DataFrame):
                raise TypeError(f"it returned {type(made).__name__}, not a DataFrame of pandas, or None for no rows")
            columns = list(made.columns)
        else:
            if not isinstance(made, pa.Table):
                raise TypeError(f"it returned {type(made).__name__}, not a Table of pyarrow, or None for no rows")
            columns = made.column_names
        if missing := [name for name in schema.names if name not in columns]:
            raise TypeError(f"its result lacks the columns {missing} of the schema: it has {columns}")
        if self.function.kind == "pandas":
            return pa.Table.from_pandas(made[schema.names], schema=schema, preserve_index=False)
        return made.select(schema.names).cast(schema)

    def _group(self, rows: pa.Table) -> FinishedGroup:
        first = rows.slice(0, 1)
        scope, key = first["_scope"][0].as_py(), self.rule.plain_values(first["_key"])
        keys, marks = ([first[name][0].as_py() for name in names] for names in (self.keys, self.rule.marks))
        substream = self.rule.result_of(scope, key[0].as_py(), marks)
        return FinishedGroup(scope, substream.name, *self.rule.bounds(substream), tuple(keys))


def takes_group(function: Callable[..., Any]) -> bool:
    """Return whether a function takes the group before its rows, as Spark's own functions of groups may."""
    needed = [
        parameter
        for parameter in signature(function).parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is Parameter.empty
    ]
    return len(needed) > 1
