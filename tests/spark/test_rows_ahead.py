"""Rows that are too far ahead of the clock: they count in their own window, are set aside, or fail the batch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking, TrackingError, UsageError
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

FAR = 60 * 24 * 365 * 200  #: minutes: 200 years


def start(tracking: Tracking, feed: Feed, path: Path, front: Any, bad: Literal["fail", "quarantine"]) -> Any:
    rows = feed.stream(tracking.spark)
    source = tracking.source(
        rows, "in", scope="tenant", window=("ts", "10 minutes"), front=front, on_bad_rows=bad, identity=["row_id"]
    )
    released = tracking.release(source, aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", path / "cp").start(path / "out")
    return source


def released(tracking: Tracking, path: Path) -> list[tuple[str, int]]:
    tracking.process_all_available()
    return [(tenant, number) for tenant, number in rows_of(path / "out", tracking.spark, "tenant", "rows")]


@pytest.mark.thorough
@pytest.mark.parametrize("per_scope", [False, True])
def test_rows_ahead_are_set_aside_and_hold_nothing(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, per_scope: bool
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = start(tracking, feed, tmp_path, Frontier("0 seconds", per_scope=per_scope, beyond="bad"), "quarantine")
    feed.put(row(1, 1), row(2, FAR), row(3, FAR, "never"))
    feed.put(row(4, 2))
    feed.put(row(5, 30))
    assert released(tracking, tmp_path) == [("a", 2)]
    late = tracking.late(tmp_path / "cp").collect()
    assert sorted((each.kind, json.loads(each.data)["row_id"]) for each in late) == [("bad", 2), ("bad", 3)]
    assert {each.reason for each in late} == {"the time is more than 5 minutes beyond the clock"}
    assert not any("_tracker" in each.data for each in late)
    tracking.finish(source)
    assert released(tracking, tmp_path) == [("a", 1), ("a", 2)], "the far ones are in no window"
    tracking.stop()


@pytest.mark.thorough
def test_a_row_ahead_fails_the_batch_and_its_own_clock_decides(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Spark's log has when the batch began: with that in the year 2230, the same batch takes the row in."""
    front = Frontier.measured("50%", ceiling="10 minutes", beyond="bad")
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, tmp_path, front, "fail")
    feed.put(row(1, 1), row(2, FAR))
    with pytest.raises(TrackingError, match="1 the time is more than 5 minutes beyond the clock"):
        released(tracking, tmp_path)
    tracking.stop()
    planned = tmp_path / "cp" / "offsets" / "0"
    planned.write_text(re.sub(r'(?<="batchTimestampMs":)\d+', "8204716800000", planned.read_text()))
    (planned.parent / ".0.crc").unlink(missing_ok=True)
    tracking = Tracking(spark, job, tracker.address)
    source = start(tracking, feed, tmp_path, front, "fail")
    assert released(tracking, tmp_path) == []
    tracking.finish(source)
    assert released(tracking, tmp_path) == [("a", 1), ("a", 1)]
    tracking.stop()


def test_a_channel_gets_no_column_that_is_not_the_users(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    hours: Any = {"scope": "tenant", "window": ("ts", "10 minutes"), "identity": ["row_id"]}
    front = Frontier("0 seconds", beyond="bad")
    source = tracking.source(feed.stream(spark), "in", front=front, on_bad_rows="quarantine", **hours)
    seen: list[list[str]] = []
    writer = source.writeStream.foreachBatch(lambda rows, _: seen.append(rows.columns))
    writer.option("checkpointLocation", tmp_path / "cp").start()
    feed.put(row(1, 1), row(2, FAR))
    tracking.process_all_available()
    assert seen
    assert all(not name.startswith("_tracker_") for columns in seen for name in columns)
    tracking.stop()


def test_a_choice_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="beyond"):
        Frontier("0 seconds", beyond="late")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="further ahead than ahead=: give that"):
        Frontier("0 seconds", ahead=None, beyond="bad")
