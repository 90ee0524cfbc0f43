"""The session that a batch runs in, and the settings that are looked at."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.api.refusals import ELSEWHERE, check_session, refuse_elsewhere
from spark_client.errors import UsageError
from spark_client.runtime.queries import _CONF
from spark_client.spark_internals.sessions import is_remote, own_session
from tests.house.trees import parsed
from tests.spark.feed import Feed, row
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark

KEY = "spark.sql.shuffle.partitions"


def test_a_query_has_a_session_of_its_own_for_its_batches(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    before = spark.conf.get(KEY)
    seen: list[Any] = []

    def look(rows: DataFrame, epoch: int) -> None:
        seen.append(rows.sparkSession.conf.get(KEY))
        rows.sparkSession.conf.set(KEY, "7")
        seen.append(rows.select("kind").distinct().sparkSession.conf.get(KEY))
        assert SparkSession.getActiveSession() is not None

    run(feed.stream(spark), tmp_path / "cp", look)
    assert seen == [before, "7", "7", "7"]
    assert spark.conf.get(KEY) == before


def test_batches_merge_partitions_and_write_times_that_others_read(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.put(*[row(number, number) for number in range(20)])
    written: list[int] = []

    def write(rows: DataFrame, epoch: int) -> None:
        for key, value in _CONF.items():
            rows.sparkSession.conf.set(key, value)
        rows.sparkSession.conf.set(KEY, "5")
        path = tmp_path / "out"
        rows.groupBy(F.col("row_id") % 10).agg(F.max("ts").alias("ts")).write.parquet(str(path))
        found = sorted(path.glob("*.parquet"))
        written.append(len(found))
        written.append(sum(pq.ParquetFile(file).schema.column(1).physical_type == "INT64" for file in found))

    run(feed.stream(spark), tmp_path / "cp", write)
    assert written == [1, 1], "one file with few rows, and times in it as numbers"


@pytest.mark.parametrize(
    "key",
    [
        "spark.sql.legacy.interval.enabled",
        "spark.sql.legacy.statisticalAggregate",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.ansi.enabled",
        "spark.sql.caseSensitive",
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        *_CONF,
    ],
)
def test_spark_has_the_settings_that_are_looked_at(spark: SparkSession, key: str) -> None:
    assert spark.conf.get(key) is not None
    with pytest.raises(Exception, match=r"no\.such\.setting"):
        spark.conf.get("spark.no.such.setting")


def test_a_session_of_spark_connect_is_known(spark: SparkSession) -> None:
    check_session(spark)
    assert not is_remote(spark)
    # It is read and not imported: a process has sessions of one kind.
    module = Path(pyspark.__file__).parent / "sql" / "connect" / "session.py"
    classes = {node.name for node in parsed(module.read_text()).body if isinstance(node, ast.ClassDef)}
    assert "SparkSession" in classes
    remote: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    check_session(remote)
    with pytest.raises(UsageError, match="give a SparkSession"):
        check_session(3)


@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_has_no_form_over_spark_connect_is_refused_by_name(what: str) -> None:
    remote: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UsageError, match=re.escape(f"{what} over Spark Connect: ")):
        refuse_elsewhere(remote, what)


def test_a_copy_has_what_the_session_has_and_keeps_its_own(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("three")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        copy = own_session(spark)
        assert copy.table("three").count() == 3
        assert copy.conf.get("spark.sql.shuffle.partitions") == "3"
        copy.conf.set("spark.sql.shuffle.partitions", "5")
        copy.range(1).createOrReplaceTempView("one")
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        assert not spark.catalog.tableExists("one")
    finally:
        spark.catalog.dropTempView("three")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
