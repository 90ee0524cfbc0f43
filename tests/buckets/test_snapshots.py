"""Snapshots of checkpoints in a store of objects: taken, and made into checkpoints there, in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Snapshots, Tracking, TrackingError, UsageError
from spark_client.api.released import Released
from tests.buckets.line import Line, Request
from tests.client.processes import Server
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

#: Variables of the environment, by which obstore finds the store, and the settings that have the same.
KEYS = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_REGION": "endpoint.region",
    "AWS_ENDPOINT_URL": "endpoint",
}


class Job:
    """A release whose deployments hand over; the second one keeps another sum."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed) -> None:
        self.spark, self.address, self.job, self.feed = spark, tracker.address, job, feed

    def declared(self, deployment: str, *keys: str) -> tuple[Tracking, Released]:
        tracking = Tracking(self.spark, self.job, self.address, deployment)
        rows = self.feed.stream(self.spark)
        source = tracking.source(
            rows,
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            deduplicate=True,
            front=Marks("is_last"),
        )
        return tracking, tracking.release(source, list(keys), aggs={"n": F.count("*"), "amount": F.sum("amount")})

    def first_half(self, place: str) -> Tracking:
        """Run a deployment that releases an hour, keeps two, and hands over."""
        tracking, released = self.declared("1", "kind")
        self.feed.put(row(1, 1), row(2, 2, kind="y"), row(3, 70, amount=3), row(4, 3, "b"), row(5, 4, "b", last=True))
        start(released, f"{place}/cp1", f"{place}/out1")
        tracking.process_all_available()
        tracking.hand_over(timeout=600)
        return tracking

    def second_half(self, tracking: Tracking, released: Released, checkpoint: str, out: str) -> None:
        again = row(3, 70, amount=3)  # is delivered once more: the first deployment has counted it
        self.feed.put(again, row(6, 5, kind="y", last=True), row(7, 75, amount=9, last=True))
        start(released, checkpoint, out)
        tracking.process_all_available()
        tracking.stop()

    def results(self, out: str) -> list[tuple[Any, ...]]:
        return sorted(
            map(tuple, self.spark.read.parquet(out).select("tenant", "window.start", "n", "amount").collect())
        )

    def batch(self) -> list[tuple[Any, ...]]:
        """Return what a batch makes of the hours that were open."""
        rows = (
            self.feed.batch(self.spark)
            .dropDuplicates(["row_id"])
            .where("tenant = 'a'")
            .groupBy("tenant", F.window("ts", "1 hour"))
        )
        made = rows.agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
        return sorted(map(tuple, made.select("tenant", "window.start", "n", "amount").collect()))


def start(released: Released, checkpoint: str, out: str) -> None:
    released.writeStream.option("checkpointLocation", checkpoint).start(out)


def without_kind(state: Any) -> Any:
    return state.drop("kind")


@pytest.fixture
def it(spark: SparkSession, tracker: Server, job: str, feed: Feed) -> Job:
    return Job(spark, tracker, job, feed)


@pytest.mark.thorough
@pytest.mark.parametrize("to_store", [True, False], ids=["to another place there", "to a disk"])
def test_an_export_of_a_bucket_goes_on_in_another_shape(it: Job, bucket: str, tmp_path: Path, to_store: bool) -> None:
    tracking = it.first_half(bucket)
    snapshots = Snapshots(tmp_path / "snapshots")
    snapshot = snapshots.export(tracking)
    tracking.stop()
    assert snapshot.state(it.spark).count() == 3
    assert snapshot.substreams(it.spark).where("scope = 'a'").count() == 2
    again, released = it.declared("2")
    place = bucket if to_store else str(tmp_path)
    assert snapshot.restore(released, f"{place}/cp2", mapping=without_kind)
    assert not snapshot.restore(released, f"{place}/cp2", mapping=without_kind), "it was made before"
    with pytest.raises(UsageError, match="was not made of this snapshot"):
        snapshot.restore(released, f"{bucket}/cp1", mapping=without_kind)
    it.second_half(again, released, f"{place}/cp2", f"{place}/out2")
    assert it.results(f"{place}/out2") == it.batch()


@pytest.mark.thorough
def test_a_job_moves_from_a_disk_into_a_bucket(
    it: Job, store: Line, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = it.first_half(str(tmp_path))
    with monkeypatch.context() as environment:  # which Spark's processes, that run already, lack
        for name, key in KEYS.items():
            environment.setenv(name, store.settings[key])
        environment.setenv("AWS_ALLOW_HTTP", "true")
        snapshots = Snapshots(f"{bucket}/snapshots", keep=1)
    snapshot = snapshots.export(tracking)
    tracking.stop()
    again, released = it.declared("2", "kind")
    assert snapshot.restore(released, f"{bucket}/cp2")
    it.second_half(again, released, f"{bucket}/cp2", f"{bucket}/out2")
    whole = it.spark.read.parquet(f"{bucket}/out2").groupBy("tenant", "window.start")
    found = whole.agg(F.sum("n").alias("n"), F.sum("amount").alias("amount"))
    assert sorted(map(tuple, found.collect())) == it.batch()


@pytest.mark.thorough
def test_a_restore_killed_in_any_step_starts_nothing_and_is_repeated(
    it: Job, store: Line, bucket: str, tmp_path: Path
) -> None:
    tracking = it.first_half(bucket)
    snapshot = Snapshots(tmp_path / "snapshots").export(tracking)
    tracking.stop()
    again, released = it.declared("2")
    since = len(store.asked)
    snapshot.restore(released, f"{bucket}/whole", mapping=without_kind)
    writes = sum(request.kind in ("PUT", "COPY", "CREATE") for request in store.asked[since:])
    for step in sorted(
        {1, writes // 2, writes - 8, writes - 2, writes - 1}
    ):  # before the choice, and while it is copied
        left = [step]

        def dies(request: Request, left: list[int] = left) -> str | None:
            left[0] -= request.kind in ("PUT", "COPY", "CREATE")
            return "before" if left[0] < 0 else None

        store.fault = dies
        place = f"{bucket}/cp-{step}"
        try:
            with pytest.raises(TrackingError):
                snapshot.restore(released, place, mapping=without_kind)
        finally:
            store.fault = lambda request: None
        if step == writes - 2:  # some files are in their place
            with pytest.raises((TrackingError, UsageError)):
                start(released, place, f"{bucket}/early")
        assert snapshot.restore(released, place, mapping=without_kind) or step == writes - 1
    it.second_half(again, released, place, f"{bucket}/out2")
    assert it.results(f"{bucket}/out2") == it.batch()
