"""Windows of every kind over the clicks of two sites: each result comes out once, and equals a batch over all rows.

Start a tracker (`tracker serve`), then run this in the clone: `python -m examples.windows [HOST:PORT]`.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.small import Arriving, spark_session
from spark_client import Front, Frontier, Marks, Tracking, calendar, nested, session, sliding

SCHEMA = "site string, zone string, at timestamp, user string, page string, number long, ms long"
ZONES = {"berlin": "Europe/Berlin", "lima": "America/Lima"}
BEGIN = datetime(2026, 3, 28, 20)  # Berlin's next day has 23 hours
FILES, HOURS = 4, 12  #: two days


@dataclass(frozen=True)
class Kind:
    """One way to cut clicks.

    Attributes:
        source: what the source is given.
        batchs: the same windows as columns of a batch; several: a result for each.
        front: what the source promises.
    """

    source: Callable[[], dict[str, Any]]
    batchs: Callable[[], list[Column]]
    front: Callable[[], Front] = lambda: Frontier("30 minutes")


def day_of_each_row() -> Column:
    """Return the day that clocks at the site show, computed by Spark's own functions."""
    start = F.date_trunc("day", F.from_utc_timestamp("at", F.col("zone")))
    bounds = [F.to_utc_timestamp(each, F.col("zone")) for each in (start, start + F.expr("interval 1 day"))]
    return F.struct(bounds[0].alias("start"), bounds[1].alias("end"))


KINDS: dict[str, Kind] = {
    "windows that overlap": Kind(
        lambda: {"window": ("at", sliding("2 hours", "1 hour"))}, lambda: [F.window("at", "2 hours", "1 hour")]
    ),
    "sessions by gap": Kind(
        lambda: {"window": ("at", session("30 minutes"))}, lambda: [F.session_window("at", "30 minutes")]
    ),
    "days in the zone of each row": Kind(
        lambda: {"window": ("at", calendar("1 day", F.col("zone")))}, lambda: [day_of_each_row()]
    ),
    "hours and their six hours": Kind(
        lambda: {"window": ("at", nested("1 hour", "6 hours"))},
        lambda: [F.window("at", "1 hour"), F.window("at", "6 hours")],
    ),
    "twenty clicks each": Kind(
        lambda: {"substream": F.floor((F.col("number") - 1) / 20).cast("string").alias("block")},
        lambda: [F.floor((F.col("number") - 1) / 20).cast("string")],
        lambda: Marks(F.col("number") % 20 == 0),
    ),
}


def main(server: str) -> int:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, spark_session() as spark:
        wrong = 0
        for name, kind in KINDS.items():
            results, expected = run(spark, server, Path(directory) / name, kind)
            equal = results == expected
            wrong += not equal
            print(f"{name}: {len(results)} results, {'equal to' if equal else 'NOT those of'} the batch", flush=True)
    return int(bool(wrong))


def run(spark: SparkSession, server: str, path: Path, kind: Kind) -> tuple[list[Any], list[Any]]:
    """Return the rows that a job releases while clicks arrive, and those that a batch makes of all clicks."""
    clicks = Arriving(spark, path / "clicks", SCHEMA)
    tracking = Tracking(spark, job=f"windows-{os.getpid()}-{path.name.replace(' ', '-')}", server=server)
    source = tracking.source(clicks.stream, "clicks", scope="site", front=kind.front(), **kind.source())
    released = tracking.release(source, ["user"], aggs=aggregates())
    released.writeStream.option("checkpointLocation", path / "checkpoint").start(path / "results")
    for rows in made(random.Random(7)):
        clicks.put(rows)
        tracking.process_all_available()
    tracking.drain(timeout=300)
    tracking.stop()
    named = "block" in spark.read.parquet(str(path / "results")).columns
    columns = ["site", "block", "user"] if named else ["site", "window.start", "window.end", "user"]
    expected = []
    for window in kind.batchs():
        batch = clicks.batch.groupBy("site", window.alias("block" if named else "window"), "user")
        expected += rows_of(batch.agg(*[value.alias(name) for name, value in aggregates().items()]), columns)
    return rows_of(spark.read.parquet(str(path / "results")), columns), sorted(expected)


def aggregates() -> dict[str, Column]:
    return {"clicks": F.count("*"), "pages": F.count_distinct("page"), "longest": F.max("ms")}


def rows_of(table: DataFrame, columns: list[str]) -> list[Any]:
    return sorted(tuple(row) for row in table.select(*columns, "clicks", "pages", "longest").collect())


def made(rng: random.Random) -> list[list[tuple[Any, ...]]]:
    """Return clicks, out of order by up to half an hour, in the files in which they arrive."""
    files: list[list[tuple[Any, ...]]] = [[] for _ in range(FILES)]
    for site, zone in ZONES.items():
        for number in range(1, 61):
            minutes = number * FILES * HOURS * 60 / 61
            file = min(FILES - 1, int((minutes + rng.uniform(0, 25)) // (HOURS * 60)))
            at = BEGIN + timedelta(minutes=minutes)
            click = (site, zone, at, rng.choice("xyz"), f"/{rng.randrange(9)}", number, rng.randrange(5000))
            files[file].append(click)
    for rows in files:
        rng.shuffle(rows)
    return files


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7654"))
