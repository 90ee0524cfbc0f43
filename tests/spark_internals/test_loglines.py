"""Lines of Spark's logs are those that Spark has written, whatever the names in them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

from spark_client.spark_internals.checkpoints import files_of, lines_of
from spark_client.storage.folder import Folder

ODD = ["a\u2028b.json", "a\u0085b.json", "a\x1cb.json", "plain.json"]


@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_end_with_a_line_feed_alone(tmp_path: Path, end: str) -> None:
    (tmp_path / "0").write_bytes(f"v1\na\u2028b\x0cc\rd\r\n e {end}".encode())
    assert lines_of(Folder(tmp_path), "0") == ["v1", "a\u2028b\x0cc\rd\r", " e "]


@pytest.mark.spark
def test_files_of_any_name_are_found_in_the_log_of_their_source(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ODD:
        (tmp_path / "in" / name).write_text('{"n": 1}')
    stream = spark.readStream.schema("n long").json(str(tmp_path / "in")).writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(Path(unquote(path)).name for path, _ in files_of(Folder(tmp_path / "cp"), 0)) == sorted(ODD)
