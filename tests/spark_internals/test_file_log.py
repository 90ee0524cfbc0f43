"""Spark's log of the files that it has read, against the files themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_client.spark_internals.checkpoints import FilesRead
from spark_client.storage.folder import Folder

pytestmark = pytest.mark.spark

NAMES = ("a b", "né", "ne\u0301", "😀", "100%", "a%3Ab", "q'uote", "#x", "a+b", "a=b", "?x", "a\\b")


def read_all(spark: SparkSession, place: Path, checkpoint: Path) -> None:
    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(place))
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.thorough
@pytest.mark.parametrize("compact_interval", [2, 3, 100])
def test_a_file_changed_since_spark_found_it_is_told_apart(
    spark: SparkSession, tmp_path: Path, compact_interval: int
) -> None:
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", compact_interval)
    place, checkpoint, other = tmp_path / "in ü", tmp_path / "cp", tmp_path / "by another name"
    files = [place / f"x={name}" / f"{name}.txt" for name in NAMES]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True)
        file.write_text("first")
        os.utime(file, ns=(0, 1_700_000_000_123_456_789 + number))
    try:
        assert FilesRead(Folder(checkpoint)).replaced(map(str, files)) == [], "there is no log yet"
        read_all(spark, place, checkpoint)
        assert FilesRead(Folder(checkpoint)).replaced(map(str, files)) == []
        other.symlink_to(place)
        for file in files:
            before = file.stat().st_mtime_ns
            file.write_text("other")
            assert FilesRead(Folder(checkpoint)).replaced(map(str, files)) == [str(file)]
            through = str(other / file.relative_to(place))
            assert FilesRead(Folder(checkpoint)).replaced([through]) == [through]
            os.utime(file, ns=(before, before))
        late = place / "late.txt"
        late.write_text("first")
        assert FilesRead(Folder(checkpoint)).replaced([str(late)]) == [], "Spark has not found it"
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")
