"""One job over several trackers, from Spark: the same results as a batch, over trackers and drivers that die."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Tracking, TrackingError, UsageError, nested, session, sliding
from spark_client.counting.runs import Run
from spark_client.datasource.options import ReaderOptions
from spark_client.datasource.streams import EVENT_SCHEMA, EventStream, Offset, kept_from, place_of
from spark_client.release.state import PartialState
from spark_client.runtime.queryplan import CountingMode
from spark_client.storage.directories import read_json
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.trackers.eventlogs import EventLogs
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import DrainState, JobSpec, Ordering, ShardedClient

NAMES = EVENT_SCHEMA.fieldNames()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield three trackers for the tests that kill none."""
    trackers = [Server(tmp_path_factory.mktemp("tracker"), "memory") for _ in range(3)]
    yield ",".join(tracker.address for tracker in trackers)
    for tracker in trackers:
        tracker.stop()


@pytest.fixture
def servers(mortal_trackers: list[Server]) -> str:
    return ",".join(tracker.address for tracker in mortal_trackers)


def read_all(stream: EventStream, place: Offset) -> Iterator[tuple[Offset, list[Any], Offset]]:
    """Yield the batches that Spark would make, until nothing is new."""
    while True:
        rows, after = stream.read(place)
        if after == place:
            return
        yield place, [dict(zip(NAMES, row, strict=True)) for row in rows], after
        place = after


@pytest.mark.thorough
@pytest.mark.parametrize(
    "ordering", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("none", "scope")), "global"]
)
def test_a_stream_of_several_logs_has_each_event_once(
    mortal_trackers: list[Server], servers: str, job: str, ordering: Ordering
) -> None:
    """Over readers and trackers that begin again; progress is that of all trackers, and a drain is announced once."""
    chance = random.Random(ordering)
    client = ShardedClient(servers, ordering)
    spec = JobSpec(job=job, deployment="d1", segments={"raw": []}, fronts=["f", "g"], ordering=ordering, progress=True)
    client.define_job(spec)
    producer = client.open_producer(job, "plain", "1")
    options = ReaderOptions(
        {"job": job, "server": servers, "sharded": ordering, "max_events_per_trigger": "1", "subscription": "s"}
    )
    stream = EventStream(options)
    place = stream.initialOffset()
    rows: list[Any] = []
    sent = 0

    def read(batches: int | None = None) -> None:
        nonlocal place
        for before, batch, after in islice(read_all(stream, place), batches):
            replayed = stream.readBetweenOffsets(before, after)
            assert [dict(zip(NAMES, row, strict=True)) for row in replayed] == batch
            rows.extend(batch)
            if chance.random() < 0.5:
                stream.commit(after)
            place = after

    for epoch in range(12):
        report = producer.epoch(epoch)
        for number in range(chance.randrange(6)):
            report.add("raw", f"s{number}", f"{epoch}/{number}", 0, end_time=epoch, sent=1, received=1)
            sent += 1
        report.frontier("f", epoch)
        report.frontier("g", epoch)
        report.report(["all"], commit=True)
        read(chance.randrange(4))  # it stops in the middle, where ends of one tracker wait for another one
        if chance.random() < 0.3:
            stream = EventStream(options)
        if chance.random() < 0.2:
            chance.choice(mortal_trackers).restart()
    client.drain(job, "d1", "end")
    client.finish_front(job, "f")
    client.finish_front(job, "g")
    producer.close()
    read()
    ended = [row for row in rows if row["kind"] == "Ended"]
    assert len(ended) == len({(row["scope"], row["name"]) for row in ended}) == sent > 10
    if ordering == "global":
        assert ended == sorted(ended, key=lambda row: row["end_time"])
    advanced = [row["time"] for row in rows if row["kind"] == "Advanced"]
    assert advanced == sorted(set(advanced))
    assert advanced[-1] >= 11
    assert Counter(row["kind"] for row in rows)["Drained"] == 1
    client.drain(job, "d1", "end")
    statuses = EventLogs(client, job).statuses()
    assert [at.subscriptions(name)[0].acknowledged > 0 for at, name in client.logs(job)] == [True] * 3
    assert not place_of(place).is_beyond(Place(tuple(each.last_seq for each in statuses), place_of(place).log_ids))


def test_events_that_wait_for_another_log_are_not_acknowledged() -> None:
    waiting = {"held": [[3, 4], []], "advanced": [{}, {}], "said": {}}
    offset = {"seq": [5, 9], "log_id": ["a", "b"], "merge": waiting}
    assert kept_from(offset, ordered=True) == Place((2, 9), ("a", "b"))
    assert kept_from({"seq": 5, "log_id": "a"}, ordered=True) == Place((5,), ("a",))


def test_a_log_that_was_lost_and_another_number_of_logs_are_noticed(lasting: str, job: str) -> None:
    servers, client = lasting, ShardedClient(lasting)
    client.define_job(JobSpec(job=job, deployment="d1", segments={"raw": []}))
    stream = EventStream(ReaderOptions({"job": job, "server": servers, "sharded": "none"}))
    place = stream.initialOffset()
    with pytest.raises(TrackingError, match="position in 1 logs of events, and the job has 3"):
        stream.read({"seq": 1, "log_id": place["log_id"][0]})
    at, name = client.logs(job)[1]
    at.delete_job(name, force=True)
    client.define_job(JobSpec(job=job, deployment="d1", segments={"raw": []}))
    with pytest.raises(TrackingError, match=r"LOG_CHANGED.*start the query with a new checkpoint"):
        stream.read(place)
    with pytest.raises(UsageError, match="at each server by itself"):
        ReaderOptions({"job": job, "server": servers, "sharded": "none", "starting_seq": "7"})
    with pytest.raises(UsageError, match=r"sharded='all': give 'none' or .* the job's ordering"):
        ReaderOptions({"job": job, "sharded": "all"})


def test_a_query_whose_checkpoint_one_of_several_trackers_has_lost_is_refused(
    lasting: str, job: str, tmp_path: Path
) -> None:
    client = ShardedClient(lasting, "scope")
    spec = JobSpec(job=job, deployment="d1", segments={"raw": []}, ordering="scope")
    client.define_job(spec)
    checkpoint = Folder(tmp_path)
    first = Run(client, job, "query", "1", 0)
    first.check_log(checkpoint)
    first.send(first.report(0), 0)
    Run(client, job, "query", "2", 1).check_log(checkpoint)
    at, name = client.logs(job)[2]
    at.delete_job(name, force=True)
    client.define_job(spec)
    again = Run(client, job, "query", "3", 1)
    what_to_do = re.escape(f"`tracker delete-job {job} --force --server {lasting} --sharded scope`")
    with pytest.raises(TrackingError, match=rf"LOG_CHANGED.*{what_to_do}"):
        again.check_log(checkpoint)


def test_a_releases_state_has_a_position_for_each_log(tmp_path: Path) -> None:
    places: list[tuple[Any, Any]] = [(7, "a"), ([7, 0, 2], ["a", "b", "c"])]
    for epoch, (position, log_id) in enumerate(places):
        state = PartialState(Folder(tmp_path))
        state.load(epoch)
        state.place = Place.of(position, log_id)
        state.publish(epoch)
        version = read_json(max(tmp_path.glob("version-*.json")))
        assert (version["position"], version["log_id"]) == (position, log_id)
        read = PartialState(Folder(tmp_path))
        read.load(epoch + 1)
        assert read.place == state.place
        assert not read.is_before(state.place)
    assert read.is_before(Place.of([7, 0, 3], log_id))
    assert PartialState(Folder(tmp_path / "new")).is_before(Place.of(position, log_id))


class Pipeline:
    """A source, a channel and a release over three trackers, as one driver after the other starts them.

    Args:
        spark: the session.
        servers: the trackers.
        job: the job's name.
        feed: the source's rows.
        path: where everything is.
        probe: where rows are counted, if there is a channel; None: what is released is the source itself.
    """

    def __init__(
        self, spark: SparkSession, servers: str, job: str, feed: Feed, path: Path, probe: CountingMode | None = None
    ) -> None:
        self.spark, self.servers, self.job, self.feed, self.path = spark, servers, job, feed, path
        self.direct, self.probe = probe is None, probe or "driver"

    def start(self, deployment: str = "1", place: str = "") -> Tracking:
        place = place or deployment
        tracking = Tracking(
            self.spark, self.job, self.servers, deployment, sharded=True, ordering="scope", probe=self.probe
        )
        source = tracking.source(
            self.feed.stream(self.spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        cp = self.path / f"cp {place}"
        aggs = {"rows": F.count("*"), "amount": F.sum("amount")}
        if self.direct:
            released = tracking.release(source, ["kind"], aggs=aggs)
        else:
            channel = tracking.channel("clean", str(self.path / f"clean {place}"))
            sending = source.writeStream.channel(channel).option("checkpointLocation", f"{cp} 1")
            if self.probe == "executors":
                sending = sending.option("seal", "true")
            sending.start()
            released = tracking.release(tracking.receive(channel), ["kind"], aggs=aggs)
        released.writeStream.option("checkpointLocation", f"{cp} 2").start(self.path / f"out {place}")
        return tracking

    def results(self, deployment: str) -> list[Any]:
        return rows_of(self.path / f"out {deployment}", self.spark, *COLUMNS)

    def expected(self) -> list[Any]:
        rows = self.feed.batch(self.spark).groupBy("tenant", F.window("ts", "1 hour"), "kind")
        results = rows.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount")).select(*COLUMNS).collect()
        return sorted(tuple(result) for result in results)


COLUMNS = ("tenant", "window.end", "kind", "rows", "amount")
TENANTS = "acgbfh"  #: two at each of three trackers


@pytest.mark.thorough
@pytest.mark.spark
def test_a_job_over_several_trackers_equals_a_batch_despite_deaths(
    spark: SparkSession, mortal_trackers: list[Server], servers: str, job: str, feed: Feed, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, servers, job, feed, tmp_path)
    tracking = pipeline.start()
    feed.put(*(row(number, 5, tenant) for number, tenant in enumerate(TENANTS)))
    tracking.process_all_available()
    open_at = [at.job(name).open_substreams for at, name in tracking.client.logs(job)]
    assert min(open_at) > 0, "else there is a tracker that has nothing to do"
    assert sum(open_at) == len(TENANTS)
    mortal_trackers[1].kill()
    feed.put(*(row(10 + number, 6, tenant, last=tenant in "acg") for number, tenant in enumerate(TENANTS)))
    mortal_trackers[1].start()
    tracking.process_all_available()
    assert {result[0] for result in pipeline.results("1")} == set("acg")
    tracking.stop()
    again = pipeline.start()
    feed.put(*(row(20 + number, 7, tenant, last=True) for number, tenant in enumerate("bfh")))
    again.process_all_available()
    again.drain(600)
    assert pipeline.results("1") == pipeline.expected()
    assert again.client.get_drain(job).state is DrainState.DRAINED


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("probe", ["driver", "executors"])
def test_results_are_a_batchs_whichever_tracker_is_killed_when(
    spark: SparkSession,
    mortal_trackers: list[Server],
    servers: str,
    job: str,
    feed: Feed,
    tmp_path: Path,
    probe: CountingMode,
) -> None:
    """Trackers die while batches run, drivers stop in between, and the job is drained and goes on."""
    rng = random.Random(probe)
    pipeline = Pipeline(spark, servers, job, feed, tmp_path, probe)
    number = 0
    for deployment in ("1", "2"):
        tracking = pipeline.start(deployment)
        for step in range(8):
            last = step == 7
            tenants = [f"{deployment}{tenant}" for tenant in TENANTS]
            rows = []
            for tenant in tenants:
                number += 1
                rows.append(row(number, 60 * (step // 2) + rng.uniform(0, 59), tenant, rng.choice("xy"), last=last))
            feed.put(*rows)
            victim = rng.choice(mortal_trackers)
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 1))
                victim.kill()
                time.sleep(rng.uniform(0, 2))
                victim.start()
            if rng.random() < 0.3:
                tracking.stop()
                tracking = pipeline.start(deployment)
        tracking.process_all_available()
        tracking.drain(600)
        assert pipeline.results(deployment) == pipeline.expected()  # each reads all from the beginning


#: Windows of which a row is in several, which may be at different trackers; and how Spark computes them.
SHARED: dict[str, tuple[Any, Callable[[], list[Column]]]] = {
    "sessions": (session("30 minutes"), lambda: [F.session_window("ts", "30 minutes")]),
    "nested": (nested("1 hour", "6 hours"), lambda: [F.window("ts", "1 hour"), F.window("ts", "6 hours")]),
    "sliding": (sliding("1 hour", "20 minutes"), lambda: [F.window("ts", "1 hour", "20 minutes")]),
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("ordering", ["none", "scope"])
@pytest.mark.parametrize("windows", SHARED)
def test_windows_that_share_rows_equal_a_batch_over_several_trackers(
    spark: SparkSession,
    mortal_trackers: list[Server],
    servers: str,
    job: str,
    feed: Feed,
    tmp_path: Path,
    windows: str,
    ordering: Ordering,
) -> None:
    """Over a channel, trackers that are killed, drivers that are started anew, and a hand-over."""
    rng = random.Random(f"{windows} {ordering}")
    length, batchs = SHARED[windows]
    columns = ("tenant", "window.start", "window.end", "kind", "n", "ids")

    def start(deployment: str) -> Tracking:
        tracking = Tracking(spark, job, servers, deployment, sharded=True, ordering=ordering)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", length), identity=["row_id"],
            front=Frontier("40 minutes"),
        )  # fmt: skip
        clean = tracking.channel("clean", str(tmp_path / "clean"))
        source.where("amount > 0").writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
        released = tracking.release(tracking.receive(clean), ["kind"], aggs={"n": F.count("*"), "ids": F.sum("row_id")})
        released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
        return tracking

    def expected() -> list[Any]:
        rows = feed.batch(spark).where("amount > 0")
        made = []
        for window in batchs():
            grouped = rows.groupBy("tenant", window.alias("window"), "kind")
            results = grouped.agg(F.count("*").alias("n"), F.sum("row_id").alias("ids"))
            made += [tuple(result) for result in results.select(*columns).collect()]
        return sorted(made)

    tracking = start("1")
    number = 0
    for batch in range(7):
        rows = []
        for tenant in TENANTS:
            for _ in range(rng.randrange(1, 5)):
                number += 1
                minute = max(0, 60 * batch + rng.uniform(-39, 0))
                rows.append(row(number, minute, tenant, rng.choice("xy"), rng.randrange(4)))
        feed.put(*rows, row(1000 + batch, 60 * batch, "a", "z"))
        victim = rng.choice(mortal_trackers)
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 1))
            victim.kill()
            victim.start()
        if batch == 3:
            tracking.process_all_available()
            tracking.hand_over(600)
            tracking = start("2")
        elif rng.random() < 0.3:
            tracking.stop()
            tracking = start("1" if batch < 3 else "2")
        if rng.random() < 0.5:
            tracking.process_all_available()
            assert set(rows_of(tmp_path / "out", spark, *columns)) <= set(expected()), "what is out stays as it is"
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *columns), "some have ended by themselves"
    tracking.drain(600)
    assert rows_of(tmp_path / "out", spark, *columns) == expected()
    assert tracking.late(str(tmp_path / "cp2")).count() == 0
    tracking.stop()


@pytest.mark.spark
@pytest.mark.slow
def test_windows_that_are_open_are_handed_over_by_all_trackers(
    spark: SparkSession, mortal_trackers: list[Server], servers: str, job: str, feed: Feed, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, servers, job, feed, tmp_path, "driver")
    tracking = pipeline.start("1")
    feed.put(*(row(number, 5, tenant) for number, tenant in enumerate(TENANTS)))
    tracking.process_all_available()
    mortal_trackers[2].kill()
    restarts = threading.Timer(2, mortal_trackers[2].start)
    restarts.start()
    tracking.hand_over(600)
    restarts.join()
    assert pipeline.results("1") == []
    assert tracking.client.job(job).open_substreams == len(TENANTS)
    assert [at.get_drain(name).state for at, name in tracking.client.logs(job)] == [DrainState.DRAINED] * 3
    again = pipeline.start("2", place="1")
    feed.put(*(row(10 + number, 6, tenant, last=True) for number, tenant in enumerate(TENANTS)))
    again.process_all_available()
    again.drain(600)
    assert pipeline.results("1") == pipeline.expected()


@pytest.mark.spark
@pytest.mark.slow
def test_the_exact_watermark_waits_for_all_trackers(
    spark: SparkSession, mortal_trackers: list[Server], servers: str, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, servers, sharded=True)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 minute"), front=Frontier("0 seconds")
    )
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "10 minutes"), "kind")
    writer = tracking.write_stream(counted.agg(F.count("*").alias("n")), source)
    table = writer.queryName("over_several").format("memory").outputMode("append")
    query = table.option("checkpointLocation", str(tmp_path / "cp")).start()

    def shown() -> list[Any]:
        return sorted(tuple(each) for each in spark.table("over_several").select("window.start", "n").collect())

    feed.put(*(row(number, number % 9, tenant) for number, tenant in enumerate(TENANTS)))
    feed.put(row(10, 30, "a"))
    tracking.process_all_available()
    soon(lambda: [n for _, n in shown()] == [len(TENANTS)])
    mortal_trackers[0].restart()
    feed.put(row(11, 31, "b"), row(12, 65, "c"))
    tracking.finish(source)
    tracking.process_all_available()
    windows = feed.batch(spark).groupBy(F.window("ts", "10 minutes")).count().select("window.start", "count")
    assert shown() == sorted(tuple(each) for each in windows.collect())
    assert query.isActive
    tracking.stop()


@pytest.mark.spark
def test_what_cannot_work_over_several_trackers_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="sharded=True keeps no order over the servers"):
        Tracking(spark, "job", "a:1,b:1", sharded=True, ordering="global", progress=True)
