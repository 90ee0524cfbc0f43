"""A run with `availableNow` takes its backlog in batches, and releases all that they have ended before it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from spark_client.spark_internals.checkpoints import last_commit
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4.2", reason="sources in Python cannot say where such a run ends"),
]

COLUMNS = ("tenant", "window.start", "rows")


def night(spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path, through: bool) -> None:
    """One run: all that is there, and then the program ends."""
    with Tracking(spark, job, tracker.address) as tracking:
        rows = tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        writers: list[tuple[Any, str, tuple[Path, ...]]] = []
        if through:
            channel = tracking.channel("clean", str(path / "clean"))
            writers.append((rows.writeStream.channel(channel), "cp1", ()))
            rows = tracking.receive(channel, max_epochs_per_trigger=1)
        results = tracking.release(rows, aggs={"rows": F.count("*")})
        writers.append((results.writeStream, "cp2", (path / "out",)))
        for writer, checkpoint, to in writers:
            query = writer.option("checkpointLocation", path / checkpoint).trigger(availableNow=True).start(*to)
            assert query.awaitTermination(900)
            assert query.exception() is None


@pytest.mark.parametrize(
    "through", [pytest.param(False, marks=pytest.mark.slow), True], ids=["alone", "through a channel"]
)
@pytest.mark.slow
def test_a_nightly_run_releases_what_it_has_ended(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, through: bool
) -> None:
    due: list[tuple[str, int, int]] = []
    last = -1
    for day in range(2):
        for number in range(3):
            hour = 3 * day + number
            feed.put(row(10 * hour, 60 * hour), row(10 * hour + 1, 60 * hour + 1), row(10 * hour + 2, 60 * hour, "b"))
            feed.put(
                *[row(10 * hour + 3 + place, 60 * hour + 9, tenant, last=True) for place, tenant in enumerate("ab")]
            )
            due += [("a", hour, 3), ("b", hour, 2)]
        night(spark, tracker, job, feed, tmp_path, through)
        out = [(tenant, when.hour, rows) for tenant, when, rows in rows_of(tmp_path / "out", spark, *COLUMNS)]
        assert out == sorted(due)
        batches = last_commit(tmp_path / "cp2")
        assert batches is not None
        assert batches - last >= 6, "a file, or one of the sender's epochs, is a batch"
        last = batches
    night(spark, tracker, job, feed, tmp_path, through)  # nothing is there: it ends
