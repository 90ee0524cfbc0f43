"""``format("tracker")``: a job's events as a stream, each once across restarts; ranges and substreams as a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_client import EVENT_SCHEMA, register
from spark_client.datasource.options import ReaderOptions
from spark_client.datasource.streams import EventStream
from tests.client.processes import Server
from tracker.client import JobSpec, TrackerClient

pytestmark = pytest.mark.spark


class Pipeline:
    """A plain producer that opens and ends substreams."""

    def __init__(self, address: str, job: str) -> None:
        self.client = TrackerClient(address)
        self.job = job
        self.client.define_job(
            JobSpec(job=job, deployment="d1", segments={"raw": ["clean"], "clean": []}, fronts=["f"], progress=True)
        )
        self._producer = self.client.open_producer(job, "plain", run="1")
        self._epoch = 0

    def end(self, *names: str, scope: str = "s") -> None:
        """Send and receive one element of each, and end each."""
        report = self._producer.epoch(self._epoch)
        for name in names:
            report.add("raw", scope, name, 0, sent=1, received=1)
            report.close(scope, name, front="f")
        report.report(units=["all"], commit=True)
        self._epoch += 1


@pytest.fixture
def pipeline(tracker: Server, job: str) -> Iterator[Pipeline]:
    pipeline = Pipeline(tracker.address, job)
    yield pipeline
    pipeline.client.close()


def options(tracker: Server, job: str, **more: str) -> dict[str, str]:
    return {"job": job, "server": tracker.address, **more}


@pytest.mark.thorough
def test_a_stream_of_events_goes_on_where_it_was_and_repeats_nothing(
    spark: SparkSession, tracker: Server, job: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    register(spark)

    def run() -> None:
        events = spark.readStream.format("tracker").options(**options(tracker, job, kinds="Ended", segments="clean"))
        writer = events.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        query.awaitTermination()

    pipeline.end("a", "b")
    run()
    pipeline.end("c")
    pipeline.end("d")
    run()
    (tmp_path / "cp" / "commits" / "1").unlink()  # as if it had been killed just before
    run()
    events = [
        tuple(r) for r in spark.read.parquet(str(tmp_path / "out")).orderBy("seq").select("name", "seq").collect()
    ]
    assert [name for name, _ in events] == ["a", "b", "c", "d"]
    assert len({seq for _, seq in events}) == 4


@pytest.mark.thorough
def test_a_range_of_events_and_the_substreams_as_they_stand_are_tables(
    spark: SparkSession, tracker: Server, job: str, pipeline: Pipeline
) -> None:
    register(spark)
    pipeline.end("a")
    pipeline.end("b", scope="other")
    read = spark.read.format("tracker").options(**options(tracker, job))
    events = [tuple(r) for r in read.load().select("seq", "kind", "segment", "scope", "name", "elements").collect()]
    assert events == [
        (1, "Ended", "raw", "s", "a", 1),
        (2, "Ended", "clean", "s", "a", 0),
        (3, "Ended", "raw", "other", "b", 1),
        (4, "Ended", "clean", "other", "b", 0),
    ]
    assert [r["seq"] for r in read.option("after_seq", 1).option("up_to_seq", 3).load().collect()] == [2, 3]
    at = read.load().head(1)[0]["at"]
    assert abs(datetime.now(UTC).timestamp() - at.timestamp()) < 600
    table = spark.read.format("tracker").options(**options(tracker, job, what="substreams", include_ended="true"))
    rows = table.load().where("segment = 'raw'").select("scope", "name", "sent", "ended").collect()
    assert [tuple(r) for r in rows] == [("s", "a", 1, True), ("other", "b", 1, True)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, 'needs .option\\("job"'),
        ({"job": "x", "colour": "red"}, "knows no option 'colour'"),
        ({"job": "x", "kinds": "Finished"}, "kind='Finished': give 'Ended'"),
        ({"job": "x", "starting_seq": "soon"}, "give earliest, latest or a number"),
    ],
)
def test_options_that_cannot_work_are_refused(spark: SparkSession, given: dict[str, str], message: str) -> None:
    register(spark)
    with pytest.raises(Exception, match=message):
        spark.read.format("tracker").options(**given).load()


def test_a_job_that_is_not_there_is_named(spark: SparkSession, tracker: Server, tmp_path: Path) -> None:
    register(spark)
    events = spark.readStream.format("tracker").options(**options(tracker, "nobody")).load()
    writer = events.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query: Any = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"UNKNOWN_JOB.*start a tracked query first"):
        query.awaitTermination()


def test_a_place_moves_past_others_events(tracker: Server, job: str) -> None:
    """H6: nothing that a reader asked for was dropped, and it was refused as if it had been away for too long."""
    with TrackerClient(tracker.address) as client:
        short = timedelta(seconds=1)
        client.define_job(JobSpec(job=job, deployment="d1", segments={"raw": []}, fronts=["f"], retention=short))
        producer = client.open_producer(job, "plain", run="1")
        own = options(tracker, job, scopes="mine", kinds="Ended")
        stream = EventStream(ReaderOptions({**own, "starting_seq": "latest"}))
        place = stream.initialOffset()
        first_place = place
        until, epoch, moves = time.monotonic() + 4, 0, 0
        while time.monotonic() < until:
            report = producer.epoch(epoch)
            report.add("raw", "s", str(epoch), 0, sent=1, received=1)
            report.close("s", str(epoch), front="f")
            report.report(units=["all"], commit=True)
            epoch += 1
            rows, after = stream.read(place)
            assert not list(rows)
            moves += after != place
            place = after
            time.sleep(0.05)
        assert moves > 1, "it moves with batches of its own"
        assert client.job(job).first_seq > first_place["seq"] + 1, "else nothing has expired"
        report = producer.epoch(epoch)
        report.add("raw", "mine", "m", 0, sent=1, received=1)
        report.close("mine", "m", front="f")
        report.report(units=["all"], commit=True)
        rows, after = stream.read(place)
        assert [row[EVENT_SCHEMA.fieldNames().index("name")] for row in rows] == ["m"]
