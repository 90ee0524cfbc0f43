"""Spark passes over names that begin with an underscore, but for those of partitions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_client.storage.directories import publish

pytestmark = pytest.mark.spark


def test_what_is_being_written_cannot_be_read_yet(spark: SparkSession, tmp_path: Path) -> None:
    """A reader who lists results while they are written would read them twice: there, and under their own name."""
    reader = spark.read.schema("id long, epoch int")

    def write(path: str) -> None:
        spark.range(3).write.parquet(path)
        assert reader.parquet(str(tmp_path)).count() == 0
        (hidden,) = tmp_path.iterdir()
        hidden.rename(tmp_path / "_epoch=0.0123abcd")  # what it must not be called
        assert reader.parquet(str(tmp_path)).count() == 3
        (tmp_path / "_epoch=0.0123abcd").rename(hidden)

    assert publish(tmp_path / "epoch=0", write)
    assert sorted(tuple(row) for row in reader.parquet(str(tmp_path)).collect()) == [(0, 0), (1, 0), (2, 0)]
