"""Types of Spark in Arrow's form: tasks in Python give Spark rows in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.spark_internals.tasks import arrow_schema, passes_through_arrow, spark_schema

pytestmark = pytest.mark.spark

SCHEMA = T.StructType(
    [
        T.StructField("text", T.StringType()),
        T.StructField("long", T.LongType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("decimal", T.DecimalType(10, 2)),
        T.StructField("time", T.TimestampType()),
        T.StructField("wall", T.TimestampNTZType()),
        T.StructField("day", T.DateType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("length", T.DayTimeIntervalType()),
        T.StructField("array", T.ArrayType(T.LongType())),
        T.StructField("map", T.MapType(T.StringType(), T.LongType())),
        T.StructField("struct", T.StructType([T.StructField("scope", T.StringType())])),
    ]
)
ROW = (
    "a",
    1,
    0.5,
    Decimal("1.25"),
    datetime(2024, 1, 2, 3, 4, 5, 678901),
    datetime(2024, 1, 2, 3, 4, 5, 678901),
    date(2024, 1, 2),
    bytearray(b"\x00\xff"),
    timedelta(days=1, microseconds=5),
    [1, None],
    {"k": 1},
    ("s",),
)


def test_a_schema_comes_back_as_it_was() -> None:
    assert spark_schema(arrow_schema(SCHEMA)) == SCHEMA
    assert arrow_schema(SCHEMA).field("time").type == pa.timestamp("us", "UTC")


def test_tasks_make_rows_in_that_form(spark: SparkSession) -> None:
    form = arrow_schema(SCHEMA)

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [batch.column(field.name).cast(field.type) for field in form]
            yield pa.RecordBatch.from_arrays(columns, schema=form)

    rows = spark.createDataFrame([ROW, (None,) * len(ROW)], SCHEMA)
    assert rows.mapInArrow(make, SCHEMA).collect() == rows.collect()


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("long", pa.array([1], pa.int32())),
        *(
            pytest.param(kind, given, marks=pytest.mark.thorough)
            for kind, given in [("string", pa.array([1])), ("timestamp", pa.array([1], pa.timestamp("ns")))]
        ),
    ],
)
def test_rows_of_another_form_fail_their_task(spark: SparkSession, kind: str, given: pa.Array) -> None:
    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_arrays([given], names=["value"])

    with pytest.raises((PySparkException, Py4JJavaError)):
        spark.range(1).mapInArrow(make, f"value {kind}").collect()


@pytest.mark.skipif(pyspark.__version__ < "4", reason="Spark 3.5 has none of these types")
def test_a_type_without_a_form_is_refused() -> None:
    assert passes_through_arrow(SCHEMA)
    text = T.StringType()
    for kind in (T.VariantType(), T.CalendarIntervalType()):
        assert not passes_through_arrow(kind)
    for within in (
        T.ArrayType(T.VariantType()),
        T.MapType(text, T.VariantType()),
        T.MapType(T.StructType([T.StructField("key", T.VariantType())]), text),
        T.StructType([T.StructField("first", text), T.StructField("second", T.VariantType())]),
    ):
        assert not passes_through_arrow(within), within
    with pytest.raises(PySparkTypeError):
        arrow_schema(T.StructType([T.StructField("i", T.CalendarIntervalType())]))
