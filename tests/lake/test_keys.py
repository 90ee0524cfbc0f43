"""Rows of a table of Delta or Iceberg that replace the one with their key."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_client import DeltaTable, IcebergTable, UsageError
from spark_client.destinations.lake import LakeTable
from spark_client.storage.folder import Folder
from tests.lake.test_tables import OF_FORMAT, there, values

pytestmark = pytest.mark.spark


def rows(spark: SparkSession, *given: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(given), "tenant string, part int, n int")


@pytest.mark.thorough
def test_several_rows_of_a_key_in_one_epoch_fail_it_by_name(spark: SparkSession, table: tuple[str, str]) -> None:
    sink = OF_FORMAT[table[0]](table[1], key=["tenant", "part"])
    sink.check(rows(spark))
    several = r'several rows of one epoch have the key \{"tenant":"a","part":null\}'
    for _ in range(2):  # whether the table has such a row or not
        with pytest.raises(PySparkException, match=several):
            sink.write(rows(spark, ("a", None, 1), ("a", 1, 2), ("a", None, 3)), "query", 0)
        assert values(there(spark, table).where("n > 0")) == []
        sink.write(rows(spark, ("a", None, 0), ("a", 1, 0)), "query", 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "moment"),
    list(product([["tenant"], []], ["after it looked", "before it looks"])),
)
def test_a_driver_that_wakes_after_its_successor_changes_nothing(
    spark: SparkSession, table: tuple[str, str], tmp_path: Path, key: list[str], moment: str
) -> None:
    late, successor = (OF_FORMAT[table[0]](table[1], key=key).opened(Folder(tmp_path)) for _ in range(2))
    late.check(rows(spark))
    late.write(rows(spark, ("a", 1, 0), ("b", 1, 0)), "query", 0)

    def goes_on() -> None:
        successor.check(rows(spark))
        successor.write(rows(spark, ("a", 1, 1)), "query", 1)
        successor.write(rows(spark, ("a", 1, 2), ("c", 1, 2)), "query", 2)

    if moment == "before it looks":
        goes_on()
    else:
        fitted = late._fitted

        def stopped(given: DataFrame) -> DataFrame:
            late._fitted = fitted
            goes_on()
            return fitted(given)

        late._fitted = stopped
    late.write(rows(spark, ("a", 1, 1)), "query", 1)
    each = [("a", 1, 0), ("b", 1, 0), ("a", 1, 1), ("a", 1, 2), ("c", 1, 2)]
    found = there(spark, table).select("tenant", "part", "n")
    assert sorted(map(tuple, found.collect())) == sorted(each[1:2] + each[3:] if key else each)


@pytest.mark.thorough
def test_a_null_is_a_key_like_any_other(spark: SparkSession, table: tuple[str, str]) -> None:
    sink = OF_FORMAT[table[0]](table[1], key=["tenant", "part"])
    sink.check(rows(spark))
    for epoch in range(2):
        sink.write(rows(spark, ("a", None, epoch), (None, None, epoch), (None, 1, epoch)), "query", epoch)
    found = sorted(map(tuple, there(spark, table).collect()), key=str)
    assert found == sorted([("a", None, 1), (None, None, 1), (None, 1, 1)], key=str)


@pytest.mark.thorough
def test_columns_that_others_add_keep_what_they_have(spark: SparkSession, table: tuple[str, str]) -> None:
    sink = OF_FORMAT[table[0]](table[1], key=["tenant"])
    sink.check(rows(spark))
    sink.write(rows(spark, ("a", 1, 1)), "query", 0)
    name = f"delta.`{table[1]}`" if table[0] == "delta" else table[1]
    spark.sql(f"alter table {name} add columns (note string)").collect()
    spark.sql(f"update {name} set note = 'seen'").collect()
    sink.write(rows(spark, ("a", 1, 2), ("b", 1, 3)), "query", 1)
    found = there(spark, table).select("tenant", "n", "note")
    assert sorted(map(tuple, found.collect()), key=str) == [("a", 2, "seen"), ("b", 3, None)]


@pytest.mark.thorough
def test_a_table_of_delta_with_a_key_may_grow(spark: SparkSession, tmp_path: Any) -> None:
    place = str(tmp_path / "table")
    options = {"mergeSchema": "true", "delta.appendOnly": "false"}
    for given in (rows(spark, ("a", 1, 1)).drop("part"), rows(spark, ("a", 2, 2), ("b", 1, 3))):
        sink = DeltaTable(place, options, key=["tenant"])
        sink.check(given.limit(0))
        sink.write(given, "query", 0)
    found = there(spark, ("delta", place)).select("tenant", "part", "n")
    assert values(found) == [("a", 2, 2), ("b", 1, 3)]
    assert spark.sql(f"describe detail delta.`{place}`").collect()[0].properties == {"delta.appendOnly": "false"}


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (DeltaTable, "maxRecordsPerFile"),
        (DeltaTable, "replaceWhere"),
        (IcebergTable, "target-file-size-bytes"),
        (IcebergTable, "mergeSchema"),
    ],
)
def test_options_that_would_not_hold_with_a_key_are_refused(kind: type[LakeTable], option: str) -> None:
    kind("lake.shop.daily", {option: "1"})
    with pytest.raises(UsageError, match=rf"{kind.__name__}\('lake.shop.daily', key=…\): option '{option}'"):
        kind("lake.shop.daily", {option: "1"}, key=["tenant"])
