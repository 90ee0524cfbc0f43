"""Tasks in Python: the batch that they work for, and their rows as Arrow's.

Relies on properties that Spark sets for a streaming query's jobs (``StreamExecution``, ``MicroBatchExecution``):
``sql.streaming.queryId``, ``streaming.sql.batchId``, and the group of the jobs, which is called as the run.
Fails closed: a task that does not get its batch must not report. Since Spark 4.0.
"""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_client.columns import VARIANTS, types_in


def batch_of(task: TaskContext) -> tuple[str, str, int] | None:
    """Return the query, the run and the batch that a task works for; None: it is of no streaming query."""
    query = task.getLocalProperty("sql.streaming.queryId")
    run = task.getLocalProperty("spark.jobGroup.id")
    batch = int(task.getLocalProperty("streaming.sql.batchId") or -1)
    return None if not query or not run or batch < 0 else (query, run, batch)


# Relies on ``to_arrow_schema`` and ``from_arrow_schema`` of ``pyspark.sql.pandas.types``, on the error with which
# they refuse a type, and on tasks' rows being taken in just that form. Fails closed: a type without a form in Arrow
# is refused when it is declared, and rows of another form fail their task. Since Spark 4.0; from 4.2 on the zone is
# an argument.


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return a schema as Spark takes it from tasks.

    Raises:
        PySparkTypeError: a type has no form in Arrow.
    """
    options: dict[str, Any] = {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # earlier releases of Spark mean UTC
        options["timezone"] = "UTC"
    return to_arrow_schema(schema, **options)


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return what Spark makes of rows with a schema of Arrow's."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)  # the default from 4.2 on


def passes_through_arrow(kind: T.DataType) -> bool:
    """Return whether tasks in Python can make values of a type for Spark; where Spark does not know its form, they
    cannot."""
    try:
        arrow_schema(T.StructType([T.StructField("value", kind)]))
    except PySparkTypeError:
        return False
    # Spark writes a variant in pieces that only Spark puts together.
    return not any(isinstance(each, VARIANTS) for each in types_in(kind))
