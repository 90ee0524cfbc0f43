"""The common part of the small examples: a session of Spark on this machine, and rows that arrive file by file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield a session for small data, whose clock shows UTC."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = (
        builder.config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


class Arriving:
    """A directory of JSON files: each is a batch.

    Args:
        spark: reads it.
        path: the directory.
        schema: of the rows: ``name type, name type``.
    """

    def __init__(self, spark: SparkSession, path: Path, schema: str) -> None:
        self._spark, self._path, self._schema = spark, path, schema
        self._names = [column.split()[0] for column in schema.split(",")]
        self._files = 0
        path.mkdir(parents=True)

    def put(self, rows: Iterable[Sequence[Any]]) -> None:
        """Let some rows arrive at once; each has its values in the schema's order."""
        self._files += 1
        hidden = self._path / f".{self._files}"
        named = (dict(zip(self._names, row, strict=True)) for row in rows)
        hidden.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in named))
        os.utime(hidden, (1_700_000_000 + self._files,) * 2)  # Spark takes files by their time
        hidden.rename(self._path / f"{self._files}.json")

    @property
    def stream(self) -> DataFrame:
        """The rows that arrive, as a stream."""
        return self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1).json(str(self._path))

    @property
    def batch(self) -> DataFrame:
        """All that has arrived."""
        return self._spark.read.schema(self._schema).json(str(self._path))
