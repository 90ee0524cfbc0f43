"""A batch may have more substreams and marks than one message of the tracker, and Spark's progress stays small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.client.processes import Server

pytestmark = pytest.mark.spark

LOW = ("max_promises=700", "max_report_substreams=900", "max_report_entries=1000", "max_message_bytes=60000")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("probe", "number", "times", "limits"),
    [
        pytest.param("driver", 5_000, 2, LOW, marks=pytest.mark.slow),
        ("executors", 5_000, 2, LOW),
        pytest.param("driver", 1_000_000, 10, (), marks=pytest.mark.slow),
    ],
)
def test_a_batch_of_any_size_is_reported_in_pieces_and_released(
    spark: SparkSession, tmp_path: Path, probe: Any, number: int, times: int, limits: tuple[str, ...]
) -> None:
    """Rows of many tenants, each with its mark, in one batch, through a channel into a release."""
    path = tmp_path / "raw"
    rows = spark.range(number * times).selectExpr(
        "id",
        "timestamp'2024-01-01 00:05:00' as ts",
        f"cast(id % {number} as string) as tenant",
        f"id >= {number * (times - 1)} as is_last",
    )
    rows.write.parquet(str(path))
    raw = spark.readStream.schema(spark.read.parquet(str(path)).schema).parquet(str(path))
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", "memory", *[word for limit in limits for word in ("--limit", limit)])
    try:
        with Tracking(spark, "large", server.address, probe=probe) as tracking:
            source = tracking.source(
                raw, "in", scope="tenant", window=("ts", "1 hour"), identity=["id"], front=Marks("is_last")
            )
            channel = tracking.channel("clean", str(tmp_path / "clean"))
            sending = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
            results = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
            query = sending.start()
            results.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
            tracking.process_all_available()
            assert max(len(str(progress)) for progress in query.recentProgress) < 30_000
            assert tracking.client.job("large").open_substreams == 0
        out = spark.read.parquet(str(tmp_path / "out"))
        assert out.count() == out.select("tenant").distinct().count() == number
        assert out.agg(F.min("rows"), F.max("rows")).first() == (times, times)
    finally:
        server.stop()
