"""Counts of a driver, against what its queries did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Tracking, UsageError
from tests.client.processes import Server
from tests.metrics.scraping import scraped, values
from tests.metrics.test_docs import exposed, table
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row
from tests.web.fetching import get, until

pytestmark = pytest.mark.spark


@pytest.fixture
def tracking(spark: SparkSession, tracker: Server, job: str) -> Iterator[Tracking]:
    """Yield a job whose driver serves its metrics."""
    with Tracking(spark, job, tracker.address, metrics="127.0.0.1:0") as tracking:
        yield tracking


def release(tracking: Tracking, feed: Feed, path: Path, name: str = "hourly", **given: Any) -> None:
    given = given or {"substream": "tenant", "front": Marks("is_last")}
    source = tracking.source(feed.stream(tracking.spark), "in", on_bad_rows="quarantine", **given)
    released = tracking.release(source, aggs={"rows": F.count("*")})
    released.writeStream.queryName(name).option("checkpointLocation", path / "cp").start(path / "out")


def counted(tracking: Tracking, name: str, by: str, query: str = "hourly") -> dict[str, float]:
    assert tracking.metrics_url is not None
    return values(tracking.metrics_url, name, by, job_name=tracking.job, query=query)


def test_a_release_counts_its_rows_by_fate_and_its_ends(tracking: Tracking, feed: Feed, tmp_path: Path) -> None:
    release(tracking, feed, tmp_path)
    feed.put(row(1, 1), row(2, 2), row(3, 1, "b"), row(4, 1, None))  # type: ignore[arg-type]
    tracking.process_all_available()
    assert counted(tracking, "tracker_spark_rows_total", "fate") == {
        "received": 3,
        "released": 0,
        "late": 0,
        "quarantined": 1,
    }
    numbers = scraped(str(tracking.metrics_url))
    of = (("job_name", tracking.job), ("query", "hourly"))
    assert numbers["tracker_spark_state_substreams", of] == 2
    assert numbers["tracker_spark_state_rows", of] == 3
    feed.put(row(5, 3, last=True))
    tracking.process_all_available()
    feed.put(row(6, 4), row(7, 5))
    tracking.process_all_available()
    assert counted(tracking, "tracker_spark_rows_total", "fate") == {
        "received": 6,
        "released": 3,
        "late": 2,
        "quarantined": 1,
    }
    assert counted(tracking, "tracker_spark_ends_total", "reason") == {"complete": 1}
    numbers = scraped(str(tracking.metrics_url))
    assert numbers["tracker_spark_end_delay_seconds_count", of] == 1
    assert numbers["tracker_spark_state_substreams", of] == 1
    assert numbers["tracker_spark_state_rows", of] == 1
    batches = counted(tracking, "tracker_spark_batches_total", "outcome")
    assert batches.keys() == {"processed"}
    assert numbers["tracker_spark_batch_seconds_count", of] == batches["processed"] >= 3
    assert counted(tracking, "tracker_spark_reports_total", "outcome") == {"applied": batches["processed"]}
    assert numbers["tracker_spark_queries", (("job_name", tracking.job),)] == 1
    assert numbers["tracker_spark_waiting_drains", (("job_name", tracking.job),)] == 0


@pytest.mark.thorough
def test_what_a_drain_releases_is_counted(tracking: Tracking, feed: Feed, tmp_path: Path) -> None:
    release(tracking, feed, tmp_path)
    feed.put(row(1, 1), row(2, 2, "b"))
    tracking.process_all_available()
    tracking.drain(timeout=300)
    assert counted(tracking, "tracker_spark_rows_total", "fate")["released"] == 2
    assert counted(tracking, "tracker_spark_ends_total", "reason") == {"complete": 2}
    numbers = scraped(str(tracking.metrics_url))
    assert numbers["tracker_spark_state_substreams", (("job_name", tracking.job), ("query", "hourly"))] == 0
    assert numbers["tracker_spark_waiting_drains", (("job_name", tracking.job),)] == 0


def test_rows_that_are_sent_are_counted(tracking: Tracking, feed: Feed, tmp_path: Path) -> None:
    source = tracking.source(feed.stream(tracking.spark), "in", substream="tenant", front=Marks("is_last"))
    channel = tracking.channel("clean", tmp_path / "clean")
    writing = source.writeStream.queryName("send").option("checkpointLocation", tmp_path / "cp")
    writing.channel(channel).start()
    feed.put(row(1, 1), row(2, 2))
    tracking.process_all_available()
    assert counted(tracking, "tracker_spark_rows_total", "fate", "send")["sent"] == 2


def test_a_batch_that_fails_is_counted(tracking: Tracking, feed: Feed, tmp_path: Path) -> None:
    def fail(rows: DataFrame, epoch: int) -> None:
        raise ValueError("no more")

    source = tracking.source(feed.stream(tracking.spark), "in", substream="tenant", front=Marks("is_last"))
    writing = source.writeStream.queryName("fails").option("checkpointLocation", tmp_path / "cp")
    writing.foreachBatch(fail).start()
    feed.put(row(1, 1))
    with pytest.raises(StreamingQueryException, match="no more"):
        tracking.process_all_available()
    assert counted(tracking, "tracker_spark_batches_total", "outcome", "fails") == {"failed": 1}
    of = (("job_name", tracking.job),)
    until(lambda: scraped(str(tracking.metrics_url))["tracker_spark_queries", of] == 0)


def test_metrics_are_served_from_the_first_start_to_the_stop(
    tracking: Tracking, spark: SparkSession, tracker: Server, feed: Feed, tmp_path: Path
) -> None:
    assert tracking.metrics_url is None
    release(tracking, feed, tmp_path)
    url = str(tracking.metrics_url)
    taken = url.removeprefix("http://")
    with pytest.raises(UsageError, match=r"cannot listen there: .*Address already in use"):
        release(Tracking(spark, "another", tracker.address, metrics=taken), feed, tmp_path / "another", "another")
    tracking.stop()
    assert tracking.metrics_url is None
    with pytest.raises(OSError, match="refused"):
        get(f"{url}/metrics")


@pytest.mark.thorough
def test_two_jobs_count_in_one_registry(spark: SparkSession, tracker: Server, feed: Feed, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    for job in ("one", "two"):
        with BatchTracking(feed, spark, job, tracker.address, metrics=registry) as tracking:
            release(tracking, feed, tmp_path / job)
            feed.put(row(1, 1))
            tracking.process_all_available()
            assert tracking.metrics_url is None
    for job in ("one", "two"):
        labels = {"job_name": job, "query": "hourly", "outcome": "processed"}
        assert registry.get_sample_value("tracker_spark_batches_total", labels)


@pytest.mark.parametrize("where", ["7662", ":7662", "localhost:http", "localhost:70000"])
def test_a_wrong_address_is_a_clear_error(spark: SparkSession, where: str) -> None:
    with pytest.raises(UsageError, match="give 'HOST:PORT'"):
        Tracking(spark, "job", metrics=where)


def test_every_metric_of_a_driver_is_listed(tracking: Tracking, feed: Feed, tmp_path: Path) -> None:
    release(tracking, feed, tmp_path, window=("ts", "1 hour"), front=Frontier.measured("99%", ceiling="0 seconds"))
    feed.put(row(1, 1), row(2, 70))
    tracking.process_all_available()
    listed = {**table("All metrics of a Spark driver"), **table("All metrics of a client")}
    assert listed == exposed(get(f"{tracking.metrics_url}/metrics").text)
