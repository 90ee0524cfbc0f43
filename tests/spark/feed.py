"""Rows for streams to read: files that appear one by one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SCHEMA = "row_id long, ts timestamp, tenant string, kind string, amount long, value double, part int, is_last boolean"

START = datetime(2024, 1, 1)


def appear(path: Path, rows: Iterable[Mapping[str, Any]], written: float) -> None:
    """Write rows that appear at once, in a file of their own.

    Spark takes files by their time, in milliseconds: two of the same would come in any order.

    Args:
        path: of the file.
        rows: as they become lines of JSON.
        written: the file's time, in seconds since 1970.
    """
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(hidden, (written, written))
    hidden.rename(path)


class Feed:
    """A directory of JSON files; each becomes a batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.files = 0  #: that were put
        self._since = time.time() - 3600
        self.rows: list[dict[str, Any]] = []

    def put(self, *rows: Mapping[str, Any]) -> None:
        """Publish rows, in a file of their own."""
        self.files += 1
        appear(self.path / f"{self.files:06d}.json", rows, self._since + self.files)
        self.rows.extend(dict(row) for row in rows)

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the files as a stream, one a batch, in their order."""
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.path))

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return all that was put, as a batch."""
        return spark.read.schema(SCHEMA).json(str(self.path))


def row(
    row_id: int,
    minute: float,
    tenant: str = "a",
    kind: str = "x",
    amount: int = 1,
    *,
    part: int = 0,
    last: bool = False,
) -> dict[str, Any]:
    """Return one row, so many minutes after `START`."""
    return {
        "row_id": row_id,
        "ts": (START + timedelta(minutes=minute)).isoformat(sep=" "),
        "tenant": tenant,
        "kind": kind,
        "amount": amount,
        "value": amount / 7,
        "part": part,
        "is_last": last,
    }


def put_hours(feed: Feed, number: int) -> None:
    """Put a file for each of some hours; each ends its hour of two tenants."""
    for hour in range(number):
        rows = [row(100 * hour + i, 60 * hour + i, "ab"[i % 2], "xy"[i // 2 % 2], i) for i in range(8)]
        last = [row(100 * hour + 10 + i, 60 * hour + 59, tenant, last=True) for i, tenant in enumerate("ab")]
        feed.put(*rows, *last)


def rows_of(path: Path | str, spark: SparkSession, *columns: str) -> list[tuple[Any, ...]]:
    """Return the sorted rows of a table of files; none if it does not exist yet."""
    if not any(Path(path).glob("epoch=*")):
        return []
    return sorted(tuple(r) for r in spark.read.parquet(str(path)).select(*columns).collect())
