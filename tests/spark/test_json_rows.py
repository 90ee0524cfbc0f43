"""The names of a row's columns make no difference to what JSON carries of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.plan.jsonrows import from_json, to_json

pytestmark = pytest.mark.spark

NAMES = ["_corrupt_record", "_metadata", "_", "__", "value", "null", "a.b", "Ä", "columnNameOfCorruptRecord"]


def test_columns_of_any_name_come_out_as_they_went_in(spark: SparkSession) -> None:
    rows = spark.createDataFrame([tuple(f"{name} {row}" for name in NAMES) for row in range(3)], NAMES)
    carried = rows.select(to_json(NAMES).alias("text")).select(from_json(F.col("text"), rows.schema).alias("row"))
    assert [tuple(each.row) for each in carried.collect()] == [tuple(each) for each in rows.collect()]


@pytest.mark.parametrize("name", NAMES)
def test_one_column_of_any_name_comes_out_as_it_went_in(spark: SparkSession, name: str) -> None:
    rows = spark.createDataFrame([("x",), (None,)], f"`{name}` string")
    carried = rows.select(to_json([name]).alias("text")).select(from_json(F.col("text"), rows.schema).alias("row"))
    assert [each.row[0] for each in carried.collect()] == ["x", None]
