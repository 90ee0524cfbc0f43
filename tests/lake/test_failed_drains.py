"""Drains that fail at a table of Delta or Iceberg: the next one goes on where the last one came to."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_client import TrackingError
from tests.client.processes import Server
from tests.lake.test_tables import COLUMNS, OF_FORMAT, Dying, expected, released, schema_of, there, values
from tests.spark.feed import Feed, put_hours, row
from tracker.client import DrainState

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_a_drain_after_failed_ones_releases_each_window_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, table: tuple[str, str]
) -> None:
    file_format, place = table
    put_hours(feed, 1)
    feed.put(row(300, 65), row(301, 66, "b"), row(302, 130, kind="y"))  # of hours that the drain ends
    kind = OF_FORMAT[file_format]
    kind(place).check(schema_of(spark))
    sink, failed = Dying(kind(place)), 0
    done = {(epoch, step) for epoch in range(-9, 9) for step in ("before", "after")}
    sink.steps |= done  # nothing fails before the drain
    while failed < 5:
        tracking, hourly = released(spark, tracker, job, feed)
        hourly.writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()
        if not failed:
            tracking.process_all_available()
            sink.steps -= done
        try:
            tracking.drain(timeout=300)
            break
        except TrackingError:
            failed += 1
        finally:
            tracking.stop()
    assert failed == 2
    assert {step for epoch, step in sink.steps if epoch < 0} == {"before", "after"}
    assert tracking.client.get_drain(job).state is DrainState.DRAINED
    assert values(there(spark, table).select(*COLUMNS)) == expected(spark, feed)
