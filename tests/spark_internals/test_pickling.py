"""Columns in a pickle, and what has to stay behind."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import UsageError
from spark_client.spark_internals.columns import dumps, loads

classic = pytest.importorskip("pyspark.sql.classic.column", reason="columns have nodes since Spark 4.0")
pytestmark = pytest.mark.spark

ROWS = "SELECT * FROM VALUES (1, 'it''s', array(1, 2)), (2, null, array()) AS t(a, `b.c`, d)"


def columns() -> list[Column]:
    """Return a column of each kind of node."""
    return [
        F.col("`b.c`").alias("q q"),
        F.col("a") + 1,
        F.lit("it's \n \N{SNOWMAN}"),
        F.lit(b"\x00\xff"),
        F.lit(datetime(2020, 1, 1)),
        F.when(F.col("a") > 1, F.lit(1)).otherwise(F.lit(None)),
        F.transform("d", lambda each: each + F.col("a")),
        F.expr("concat_ws('-', a, `b.c`)"),
        F.col("a").cast("decimal(10,2)"),
        F.struct("a", F.xxhash64("a", "`b.c`").alias("hash")),
        F.udf(lambda value: value * 10, "int")(F.col("a")),
    ]


def test_columns_give_what_they_gave(spark: SparkSession) -> None:
    rows = spark.sql(ROWS)
    again = loads(dumps(columns()))
    assert rows.select(*again).collect() == rows.select(*columns()).collect()
    assert rows.agg(*loads(dumps([F.sum("a"), F.count("*")]))).collect() == [(3, 2)]


@pytest.mark.slow
def test_another_process_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "columns").write_bytes(dumps(columns()[:-1]))
    program = (
        "import sys; from pathlib import Path; from pyspark.sql import SparkSession;"
        "from spark_client.spark_internals.columns import loads;"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', False)"
        ".config('spark.driver.host', '127.0.0.1').getOrCreate();"
        "columns = loads(Path(sys.argv[1]).read_bytes());"
        "print(spark.sql(sys.argv[2]).select(*columns).count())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "columns"), ROWS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.stdout.split()[-1:] == ["2"], done.stderr[-2000:]


def test_what_is_of_one_session_is_refused(spark: SparkSession) -> None:
    for value, called in ((spark.range(1), "DataFrame"), (spark, "SparkSession")):
        with pytest.raises(UsageError, match=f"has a {called}, which is of one session"):
            dumps({"value": value})


def test_a_column_with_a_subquery_is_refused(spark: SparkSession) -> None:
    rows = spark.range(3)
    for value in (rows.agg(F.max("id")).scalar() + 1, rows.exists()):
        with pytest.raises(UsageError, match="has a subquery, whose DataFrame is of one session"):
            dumps([value])
    assert spark.range(1).select(*loads(dumps([F.lit("classic.Dataset")]))).collect() == [("classic.Dataset",)]


def test_a_column_in_which_spark_keeps_its_node_elsewhere_is_refused(spark: SparkSession) -> None:
    handle: Any = spark._jvm.java.lang.Object()  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="cannot be carried to another process"):
        dumps([classic.Column(handle)])


def test_what_is_of_one_process_is_refused(spark: SparkSession) -> None:
    lock = threading.Lock()
    context = spark.sparkContext
    handle: Any = spark._jsparkSession
    rows = context.parallelize([1])
    for value in (lock, lambda: lock, handle, context, lambda _: context.defaultParallelism, rows):
        with pytest.raises(UsageError, match="cannot be carried to another process"):
            dumps({"value": value})


@pytest.mark.parametrize("version", ["3.5.0", f"{pyspark.__version__}.1"])
def test_bytes_of_another_spark_are_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    data = dumps([F.col("a")])
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(UsageError, match=rf"made under Spark .*, and this is {re.escape(version)}"):
        loads(data)


def test_columns_are_not_loaded_without_a_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dumps([F.col("a")])
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(UsageError, match="create it before the plan is loaded"):
        loads(data)
