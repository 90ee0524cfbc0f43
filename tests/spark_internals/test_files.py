"""Files and hashes that outlive the Spark that made them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.counting.groups import files
from spark_client.plan.labels import child_label, positional_label, source_label
from spark_client.storage.folder import Folder

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("form", ["INT96", "TIMESTAMP_MICROS"])
def test_files_of_spark_are_read_without_it(spark: SparkSession, conf: Any, tmp_path: Path, form: str) -> None:
    conf("spark.sql.parquet.outputTimestampType", form)
    moment = datetime(2024, 1, 2, 3, 4, 5, 678901)
    rows = spark.createDataFrame([("a", moment), (None, None)], "text string, time timestamp").coalesce(1)
    rows.write.parquet(str(tmp_path / "out"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "_SUCCESS" in names
    assert any(name[0] not in "_." for name in names)
    table = files(Folder(tmp_path / "out"), ["text"]).to_table()
    assert pa.types.is_dictionary(table.schema.field("text").type)
    assert table["text"].to_pylist() == ["a", None]
    micros = table["time"].cast(pa.timestamp("us", table["time"].type.tz)).cast(pa.int64()).to_pylist()
    assert micros == [1_704_164_645_678_901, None]


def test_a_row_has_the_label_that_it_had_under_another_release(spark: SparkSession) -> None:
    row = spark.createDataFrame([(7, "x", None, -1)], "a long, b string, c string, parent long").coalesce(1)
    labels = [
        source_label("flights", [F.col("a"), F.col("b")]),
        source_label("flights", [F.col("a"), F.col("c")]),
        positional_label("flights", "5f0c", 3),
        child_label(F.col("parent"), "clean"),
        child_label(F.col("parent"), "clean", [F.col("b")]),
    ]
    assert list(row.select(*labels).collect()[0]) == [
        4522916549941238836,
        -4991227224801193141,
        -8249038537890396261,
        7447922478060133214,
        -9016114758897811242,
    ]


def test_a_sketch_in_a_state_is_read_under_another_release(spark: SparkSession) -> None:
    # `hll_sketch_agg` of the hashes of 0, 1 and 2, as Spark 4.0.5 has written it.
    kept = "0201070C030003083DA30F0508094A0AB190E2050000000000000000000000000000000000000000"
    sketches = spark.createDataFrame([(kept,)], "kept string").select(F.unhex("kept").alias("sketch"))
    more = spark.range(1, 5).agg(F.hll_sketch_agg(F.xxhash64("id")).alias("sketch"))
    together = sketches.unionAll(more).agg(F.hll_union_agg("sketch").alias("sketch"))
    assert sketches.unionAll(together).select(F.hll_sketch_estimate("sketch")).collect() == [(3,), (5,)]
