"""Reports of tasks: each substream of a batch is counted once, whatever Spark runs twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client import Marks, Tracking, UsageError
from spark_client.counting.probes import REPORTED, Reporting, TaskReport
from spark_client.trackers import Trackers
from spark_client.windows.named import Named
from tests.client.processes import Server
from tests.spark.conftest import CLOSURE
from tests.spark.feed import Feed, row, rows_of
from tracker.client import Credentials
from tracker.client.report import Largest

pytestmark = pytest.mark.spark


def fails_at_first(row_id: int) -> bool:
    """Fail the first attempt of the task that meets row 3."""
    task = TaskContext.get()
    assert task is not None
    if row_id == 3 and task.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")
    return True


def counts(tracking: Tracking) -> dict[str, tuple[int, int, int]]:
    """Return by segment: sent, received, XOR, over all substreams."""
    total: dict[str, tuple[int, int, int]] = {}
    for status in tracking.client.substreams(tracking.job, include_ended=True):
        for account in status.segments:
            sent, received, xor = total.get(account.segment, (0, 0, 0))
            total[account.segment] = (sent + account.sent, received + account.received, xor ^ account.xor)
    return total


@pytest.mark.thorough
def test_retried_tasks_and_dropped_rows_are_counted_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address, probe="executors")
    source = tracking.source(
        feed.stream(spark),
        "in",
        scope="tenant",
        window=("ts", "1 hour"),
        identity=["row_id"],
        front=Marks("is_last"),
        counted=True,
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    kept = source.where("amount > 0").where(F.udf(fails_at_first, T.BooleanType())("row_id"))
    sending = kept.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
    received = tracking.receive(channel).where("kind <> 'z'")
    released = tracking.release(received, ["kind"], aggs={"rows": F.count("*")})
    sending.start()
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 2, kind="z"), row(3, 3), row(4, 4, amount=-1))
    tracking.process_all_available()
    assert counts(tracking) == {"in": (4, 4, 0), "clean": (3, 3, 0)}
    feed.put(row(5, 5, last=True))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "kind", "rows") == [("x", 3)]
    tracking.stop()


@CLOSURE
def test_a_batch_that_runs_its_plan_twice_is_counted_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    def twice(rows: DataFrame, epoch: int) -> None:
        seen.append((rows.count(), rows.where("amount > 1").count()))

    tracking = Tracking(spark, job, tracker.address, probe="executors")
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"), counted=True
    )
    source.writeStream.foreachBatch(twice).option("checkpointLocation", tmp_path / "cp").start()
    feed.put(row(1, 1), row(2, 2, "b"), row(3, 3, amount=2))
    tracking.process_all_available()
    assert seen == [(3, 1)]
    assert counts(tracking) == {"in": (3, 3, 0)}
    tracking.stop()


@pytest.mark.thorough
def test_rows_of_no_substream_fail_the_batch_and_say_why(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    for number, probe in enumerate(("driver", "executors")):
        tracking = Tracking(spark, f"{job}-{probe}", tracker.address, probe=probe)  # type: ignore[arg-type]
        source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"))
        released = tracking.release(source, aggs={"rows": F.count("*")})
        query: Any = released.writeStream.option("checkpointLocation", tmp_path / f"cp{number}").start(tmp_path / "out")
        feed.put({**row(1, 1), "ts": None})
        with pytest.raises(Exception, match=r"belong to no substream: .*drop these rows before they are tracked"):
            query.processAllAvailable()
        tracking.stop()


class Told(Reporting):
    """Reporting that gives back what it was to tell, in place of the names of units."""

    def send(self, batch: Any, unit: str, fill: Any, away: bool = False) -> list[tuple[str, bytes | None]]:
        told: list[Any] = []
        fill(SimpleNamespace(add=lambda *given, **more: told.append((given, more))))
        return [(repr(told), None)]


def test_each_attempt_of_a_task_tells_the_same_in_one_order(spark: SparkSession) -> None:
    """A report that is too large is cut in order, and the pieces that an earlier attempt has sent count."""
    reporting = Told(Trackers("", None, 1, Credentials()), "job", Largest())
    report = TaskReport(reporting, ("query", "run", 0), "clean", "sent", Named(name="kind"), away=False)

    def told(names: str) -> list[Any]:
        groups = [("", name, 1, 7) for name in names]
        counted = spark.createDataFrame(groups, "_scope string, _key string, _rows long, _xor long").coalesce(1)
        return counted.mapInArrow(report, REPORTED).collect()

    assert told("abc") == told("cab")


def test_a_way_that_does_not_exist_is_refused(spark: SparkSession, tracker: Server, job: str) -> None:
    with pytest.raises(UsageError, match="give 'driver' or 'executors'"):
        Tracking(spark, job, tracker.address, probe="somewhere")  # type: ignore[arg-type]
