"""Sealed batches: what counts is what Spark has kept, also where a task's attempts differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.client.processes import Server
from tests.spark.conftest import CLOSURE
from tests.spark.feed import Feed, row, rows_of
from tests.spark.test_probes import counts

pytestmark = pytest.mark.spark


def attempt() -> int:
    task = TaskContext.get()
    assert task is not None
    return task.attemptNumber()


def differs_by_attempt(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do work that is not deterministic: only the first attempt finds row 2."""
    for batch in batches:
        yield batch if attempt() == 0 else batch.filter(pc.not_equal(batch.column("row_id"), 2))


def fails_at_the_end(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail the first attempt when all of its rows have passed, and have been reported."""
    yield from batches
    if attempt() == 0:
        raise RuntimeError("the first attempt fails")


@pytest.mark.thorough
@pytest.mark.parametrize("seal", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_was_written_counts_whichever_attempt_wrote_it(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, seal: bool
) -> None:
    tracking = Tracking(spark, job, tracker.address, probe="executors")
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    kept = source.transform(lambda df: df.mapInArrow(differs_by_attempt, df.schema))
    kept = kept.transform(lambda df: df.mapInArrow(fails_at_the_end, df.schema))
    kept.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1").option("seal", seal).start()
    released = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 2), row(3, 3))
    tracking.process_all_available()
    assert counts(tracking)["clean"] == (2, 2, 0)
    feed.put(row(4, 4, last=True))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "rows") == [(3,)]
    tracking.stop()


@CLOSURE
def test_what_a_failed_batch_staged_is_revoked_and_counts_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    calls: list[int] = []

    def fails_once(rows: DataFrame, epoch: int) -> None:
        calls.append(rows.count())
        if len(calls) == 1:
            raise RuntimeError("the sink is away")

    for _ in range(2):
        tracking = Tracking(spark, job, tracker.address, probe="executors")
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"), counted=True
        )
        writer = source.writeStream.foreachBatch(fails_once).option("checkpointLocation", tmp_path / "cp")
        query = writer.option("seal", True).start()
        if not calls:
            feed.put(row(1, 1), row(2, 2), row(3, 3))
            with pytest.raises(Exception, match="the sink is away"):
                query.awaitTermination()
        else:
            tracking.process_all_available()
            assert counts(tracking) == {"in": (3, 3, 0)}
        tracking.stop()
    assert calls == [3, 3]


@pytest.mark.thorough
def test_a_sealed_release_is_exact(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> None:
    tracking = Tracking(spark, job, tracker.address, probe="executors")
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    released = tracking.release(source, ["kind"], aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp").option("seal", True).start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 2, kind="y"), row(3, 3))
    feed.put(row(4, 5, last=True))
    tracking.process_all_available()
    assert sorted(rows_of(tmp_path / "out", spark, "kind", "rows")) == [("x", 3), ("y", 1)]
    tracking.stop()
