"""A task's knowledge of its batch, the attempts that count, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.tasks import batch_of
from tests.spark.feed import Feed, row
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark

Batches = Iterable[pa.RecordBatch]


def told(batches: Batches) -> Batches:
    """Yield each task's query, run and epoch, as a row."""
    for _ in batches:
        pass
    query, run, epoch = batch_of(_task()) or ("", "", -1)
    yield pa.RecordBatch.from_pydict({"query": [query], "run": [run], "epoch": pa.array([epoch], pa.int64())})


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


TOLD = "query string, run string, epoch long"


def test_a_task_of_a_streaming_query_knows_its_query_run_and_batch(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    seen: list[tuple[str, str, int]] = []
    inside: list[tuple[str, str, int]] = []

    def look(rows: DataFrame, epoch: int) -> None:
        others = rows.sparkSession.range(1).mapInArrow(told, TOLD)
        for found, where in ((rows, seen), (others, inside)):
            where.extend({tuple(each) for each in found.collect()})

    query = run(feed.stream(spark).mapInArrow(told, TOLD), tmp_path / "cp", look)
    assert seen == inside == [(str(query.id), str(query.runId), epoch) for epoch in (0, 1)]


def test_a_task_of_no_streaming_query_knows_none(spark: SparkSession) -> None:
    assert {tuple(each) for each in spark.range(1).mapInArrow(told, TOLD).collect()} == {("", "", -1)}


@pytest.mark.thorough
@pytest.mark.parametrize("untold", ["sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"])
def test_a_task_that_is_not_told_all_knows_nothing(spark: SparkSession, untold: str) -> None:
    """It would report for another batch: what is missing is never made up."""
    known = {"sql.streaming.queryId": "query", "spark.jobGroup.id": "run", "streaming.sql.batchId": "0"}
    context = spark.sparkContext

    def said() -> set[tuple[str, str, int]]:
        return {tuple(each) for each in spark.range(1).mapInArrow(told, TOLD).collect()}

    try:
        for key, value in known.items():
            context.setLocalProperty(key, value)
        assert said() == {("query", "run", 0)}
        context.setLocalProperty(untold, None)  # type: ignore[arg-type]
        assert said() == {("", "", -1)}
    finally:
        for key in known:
            context.setLocalProperty(key, None)  # type: ignore[arg-type]


def fails_at_first(batches: Batches) -> Batches:
    """Yield the partition and the number of a task's attempt, and fail the first one afterwards."""
    for _ in batches:
        pass
    task = _task()
    yield pa.RecordBatch.from_pydict({"partition": [task.partitionId()], "number": [task.taskAttemptId()]})
    if task.attemptNumber() == 0:
        raise RuntimeError("the attempt fails after it has reported")


def test_only_successful_attempts_give_rows_each_with_its_number(spark: SparkSession) -> None:
    numbers = set[int]()
    for exchanged in (False, True):
        rows = spark.range(0, 40, numPartitions=2)
        if exchanged:
            rows = rows.groupBy("id").count()
        found = rows.mapInArrow(fails_at_first, "partition long, number long").collect()
        partitions = [each.partition for each in found]
        assert sorted(partitions) == [*range(len(found))]
        assert numbers.isdisjoint(each.number for each in found), "no attempt has the number of an earlier one"
        numbers |= {each.number for each in found}


def test_a_task_over_several_partitions_tells_them_apart(spark: SparkSession) -> None:
    parts = spark.range(0, 40, numPartitions=4).withColumn("part", F.spark_partition_id())

    def places(batches: Batches) -> Batches:
        for batch in batches:
            if batch.num_rows:
                found = set(batch.column("part").to_pylist())
                part, task = pa.array(sorted(found), pa.int32()), pa.array([_task().partitionId()] * len(found))
                yield pa.RecordBatch.from_pydict({"part": part, "task": task, "of": [len(found)] * len(found)})

    found = parts.mapInArrow(places, "part int, task long, of long").coalesce(1).collect()
    # The operator is called for each of them, so a probe can look at a first row.
    assert sorted({(each.part, each.task, each.of) for each in found}) == [(part, 0, 1) for part in range(4)]


def test_writing_to_noop_reads_all_rows_once(spark: SparkSession) -> None:
    read = spark.sparkContext.accumulator(0)

    def count(batches: Batches) -> Batches:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    rows = spark.range(0, 1000, numPartitions=3)
    rows.mapInArrow(count, rows.schema).write.format("noop").mode("overwrite").save()
    assert read.value == 1000
