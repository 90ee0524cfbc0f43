"""A user's keyed state: it stands until the tracker has announced the end, makes the final rows then, and is gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import (
    Frontier,
    Marks,
    Schedule,
    SubstreamEnd,
    SubstreamKey,
    SubstreamProcessor,
    Tracking,
    TrackingError,
    UsageError,
    calendar,
    nested,
)
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import Feed, row, rows_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="keyed state for rows in Python came with Spark 4.1"),
]

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MADE = "what string, n long, total long, newest long, drained boolean"


class Kinds(SubstreamProcessor):
    """Counts and sums by kind in a map, and keeps the greatest number in a value and all numbers in a list."""

    def init(self, handle: Any) -> None:
        self.kinds = handle.getMapState("kinds", "kind string", "n long, total long")
        self.newest = handle.getValueState("newest", "row_id long")
        self.all = handle.getListState("all", "row_id long")

    def handleInputRows(self, key: SubstreamKey, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for each in rows:
            n, total = self.kinds.getValue((each.kind,)) or (0, 0)
            self.kinds.updateValue((each.kind,), (n + 1, total + each.amount))
            self.newest.update((max(each.row_id, (self.newest.get() or (0,))[0]),))
            self.all.appendValue((each.row_id,))
        return iter([])

    def handleEnd(self, key: SubstreamKey, end: SubstreamEnd) -> Iterator[Row]:  # noqa: N802
        (newest,) = self.newest.get()
        assert newest == max(number for (number,) in self.all.get())
        for (kind,), (n, total) in self.kinds.iterator():
            yield Row(what=kind, n=n, total=total, newest=newest, drained=end.by_drain)


SETTINGS = {
    PROVIDER: ROCKSDB,
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",  # RocksDB's files need it
    "fs.file.impl.disable.cache": "true",
}


@pytest.fixture
def rocksdb(conf: Any) -> None:
    for key, value in SETTINGS.items():
        conf(key, value)


def start(tracking: Tracking, stream: Any, path: Path) -> Any:
    results = tracking.transform_with_state(stream, Kinds(), MADE)
    return results.writeStream.option("checkpointLocation", path / "cp").start(path / "out")


def state_rows(query: Any) -> int:
    """Return the number of rows in Spark's state store."""
    return int(query.lastProgress["stateOperators"][0]["numRowsTotal"])


def released(spark: SparkSession, path: Path, *columns: str) -> list[tuple[Any, ...]]:
    return rows_of(path / "out", spark, *columns)


def by_batch(feed: Feed, spark: SparkSession, condition: str = "true") -> list[tuple[Any, ...]]:
    """Return Spark's own answer over all rows: by tenant, hour and kind."""
    rows = feed.batch(spark).where(condition)
    grouped = rows.groupBy("tenant", F.window("ts", "1 hour").alias("w"), "kind")
    counted = grouped.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    newest = rows.groupBy("tenant", F.window("ts", "1 hour").alias("w")).agg(F.max("row_id").alias("newest"))
    columns = counted.join(newest, ["tenant", "w"]).select("tenant", "w.start", "kind", "n", "total", "newest")
    return sorted(map(tuple, columns.collect()))


SHOWN = ("tenant", "window.start", "what", "n", "total", "newest")


@pytest.mark.thorough
@pytest.mark.usefixtures("rocksdb")
def test_state_stands_until_the_end_and_no_late_row_revives_it(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    query = start(tracking, source, tmp_path)
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
    writer.option("checkpointLocation", tmp_path / "other")
    with pytest.raises(UsageError, match="segment 'in' has a consumer already"):
        writer.start(tmp_path / "other out")
    feed.put(row(1, 1), row(2, 2, kind="y"), row(3, 3, "b"))
    feed.put(row(4, 4, amount=7), row(5, 5, "c"))
    tracking.process_all_available()
    assert released(spark, tmp_path, *SHOWN) == []
    both = state_rows(query)
    feed.put(row(6, 6, last=True), row(7, 7, "c"))
    tracking.process_all_available()
    assert released(spark, tmp_path, *SHOWN) == by_batch(feed, spark, "tenant = 'a'")
    assert 0 < state_rows(query) < both
    open_ones = state_rows(query)
    feed.put(row(8, 8, amount=1000))  # late: tenant a's hour is over
    tracking.process_all_available()
    assert state_rows(query) == open_ones
    late = tracking.late(str(tmp_path / "cp")).select("kind", "scope", F.get_json_object("data", "$.row_id"))
    assert [tuple(r) for r in late.collect()] == [("row", "a", "8")]
    feed.put(row(9, 9, "b", last=True), row(10, 10, "c", last=True))
    tracking.process_all_available()
    assert released(spark, tmp_path, *SHOWN) == by_batch(feed, spark, "row_id != 8")
    assert state_rows(query) == 0
    assert tracking.client.job(job).in_flight == 0
    tracking.stop()


@pytest.mark.thorough
@pytest.mark.usefixtures("rocksdb")
def test_ends_beyond_a_page_are_all_in_the_next_batch(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Else late rows of the others were taken in: into results, or into state that nothing removes."""
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", "memory", "--limit", "max_page=3")
    tenants = "abcde"

    def put(batch: int, last: bool = False, amount: int = 1) -> None:
        rows = enumerate(tenants, 10 * batch)
        feed.put(*(row(number, batch, tenant, amount=amount, last=last) for number, tenant in rows))

    try:
        with Tracking(spark, "pages", server.address) as tracking:
            source = tracking.source(
                feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
            )
            query = start(tracking, source, tmp_path)
            put(1)
            put(2, last=True)  # all five end in one batch, and late rows of each are in the next batches
            for batch in (3, 4, 5):
                put(batch, amount=1000)
            tracking.process_all_available()
            assert released(spark, tmp_path, *SHOWN) == by_batch(feed, spark, "amount < 1000")
            assert tracking.late(str(tmp_path / "cp")).count() == 3 * len(tenants)
            assert state_rows(query) == 0
    finally:
        server.stop()


def drawn(rng: random.Random, feed: Feed) -> None:
    """Put rows of three tenants, each in the order of its own clock, in batches that cut through them anyhow."""
    behind = {"a": 0, "b": 30, "c": 90}
    times = [(minute, tenant) for tenant in behind for minute in rng.sample(range(240), rng.randint(8, 20))]
    times.sort(key=lambda each: each[0] + behind[each[1]])
    rows = [
        row(number, minute, tenant, rng.choice("xyz"), rng.randint(1, 9))
        for number, (minute, tenant) in enumerate(times)
    ]
    while rows:
        size = rng.randint(3, 15)
        feed.put(*rows[:size])
        rows = rows[size:]


@pytest.mark.thorough
@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_final_rows_are_those_of_a_batch_wherever_the_driver_dies(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, seed: int
) -> None:
    """Each tenant promises by its own clock; nothing is late, so what comes out is Spark's answer over all rows."""
    rng = random.Random(seed)
    feed = Feed(tmp_path / "raw")
    drawn(rng, feed)
    driver = Driver(tmp_path)
    for dies_at in (rng.randint(8, 14), rng.randint(8, 20), None):
        failing = (KilledError, TrackingError, StreamingQueryException)
        dying: Any = nullcontext() if dies_at is None else suppress(*failing)
        with driver.living(dies_at), dying, Tracking(spark, job, tracker.address) as tracking:
            source = tracking.source(
                feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"),
                front=Frontier("0 seconds", per_scope=True),
            )  # fmt: skip
            query = start(tracking, source, tmp_path)
            tracking.process_all_available()
            assert dies_at is None
            ended = released(spark, tmp_path, *SHOWN)
            assert ended
            assert set(ended) < set(by_batch(feed, spark))
            tracking.finish(source)
            tracking.process_all_available()
            assert state_rows(query) == 0
    assert released(spark, tmp_path, *SHOWN) == by_batch(feed, spark)
    assert tracking.late(str(tmp_path / "cp")).count() == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("rocksdb")
def test_a_drain_makes_final_rows_and_the_next_deployment_starts_anew(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    rows: list[tuple[Any, ...]] = []
    for deployment, numbers in (("1", (1, 2)), ("2", (3,))):
        with Tracking(spark, job, tracker.address, deployment) as tracking:
            counts = tracking.source(feed.stream(spark), "in", substream="kind", front=Schedule())
            start(tracking, counts.where("amount > 0"), tmp_path)
            feed.put(*[row(number, number, kind="load") for number in numbers], row(9, 9, kind="load", amount=-1))
            tracking.process_all_available()
            assert released(spark, tmp_path, "kind", "n", "drained") == rows
            tracking.drain(timeout=600)
        rows.append(("load", len(numbers), True))
        rows.sort()
        assert released(spark, tmp_path, "kind", "n", "drained") == rows


class _Broken(Kinds):
    """A processor with a mistake."""

    def handleEnd(self, key: SubstreamKey, end: SubstreamEnd) -> Iterator[Row]:  # noqa: N802
        yield Row(what="x", n=1 // 0)


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.slow
def test_a_hand_over_leaves_state_to_the_next_deployment(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Days of a zone, whose windows are told apart by both their bounds."""

    def begin(deployment: str, processor: SubstreamProcessor) -> tuple[Tracking, Any]:
        tracking = Tracking(spark, job, tracker.address, deployment)
        length = calendar("1 day", "Asia/Kathmandu")
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", length), front=Marks("is_last")
        )
        results = tracking.transform_with_state(source.withColumn("late", F.lit(1)), processor, MADE)
        writer = results.writeStream.option("checkpointLocation", tmp_path / "cp").trigger(processingTime="0 seconds")
        return tracking, writer.start(tmp_path / "out")

    tracking, _ = begin("1", Kinds())
    feed.put(row(1, 1), row(2, 2, "b"))
    feed.put(row(3, 3, amount=4))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking.stop()
    tracking, _ = begin("2", _Broken())
    feed.put(row(4, 4, last=True))
    failing = (TrackingError, StreamingQueryException)
    with pytest.raises(failing, match=r"handleEnd failed for the substream '2023-12-31T18:15.*ZeroDivisionError"):
        tracking.process_all_available()
    tracking.stop()
    assert released(spark, tmp_path, "what", "n", "total") == []
    tracking, query = begin("2", Kinds())
    feed.put(row(5, 5, amount=99), row(6, 6, "b", last=True))
    tracking.process_all_available()
    assert released(spark, tmp_path, "tenant", "what", "n", "total") == [("a", "x", 3, 6), ("b", "x", 2, 2)]
    assert state_rows(query) == 0
    late = tracking.late(str(tmp_path / "cp"))
    assert [(r.scope, r.name[:16]) for r in late.collect()] == [("a", "2023-12-31T18:15")]
    tracking.stop()


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.slow
def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    """Through a channel, so that there are a sender and a receiver; each is killed in the middle of something."""
    feed = Feed(tmp_path / "raw")
    rng = random.Random(7)
    drawn(rng, feed)
    program = [sys.executable, "-m", "tests.spark.test_keyed_state", tracker.address, str(tmp_path), job]
    kills = 0
    for stop_after in (2, 3, 3, None):
        log = (tmp_path / "driver.log").open("a")
        driver = subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True)
        planned = tmp_path / "cp" / "offsets"
        begun = len(list(planned.glob("[0-9]*")))
        while driver.poll() is None:
            if stop_after is not None and len(list(planned.glob("[0-9]*"))) - begun >= stop_after:
                time.sleep(rng.uniform(0, 2))
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
                kills += 1
            time.sleep(0.02)
    assert kills
    assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert released(spark, tmp_path, *SHOWN) == by_batch(feed, spark)


def drive() -> None:
    """Run the program that is killed."""
    from tests.spark.conftest import session

    address, path, job = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    spark = session("driver")
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    with Tracking(spark, job, address) as tracking:
        source = tracking.source(
            Feed(path / "raw").stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"],
            front=Frontier("0 seconds", per_scope=True),
        )  # fmt: skip
        channel = tracking.channel("clean", str(path / "clean"))
        sending = source.writeStream.channel(channel).option("checkpointLocation", path / "cp1")
        received = tracking.receive(channel, max_epochs_per_trigger=1)
        sending.start()
        start(tracking, received, path)
        tracking.process_all_available()
        tracking.finish(source)
        tracking.process_all_available()


def test_what_cannot_work_is_refused_where_it_is_declared(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any, monkeypatch: Any
) -> None:
    tracking = Tracking(spark, job, tracker.address)

    def source(name: str, **options: Any) -> Any:
        return tracking.source(
            feed.stream(spark), name, scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"), **options
        )

    stream = source("in")
    conf(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    with pytest.raises(UsageError, match=rf"spark.conf.set\('{PROVIDER}', '{ROCKSDB}'\)"):
        tracking.transform_with_state(stream, Kinds(), MADE)
    conf(PROVIDER, ROCKSDB)
    for processor, schema, expected in [
        (object(), MADE, "a class of yours that extends spark_client.SubstreamProcessor"),
        (Kinds(), "no schema at all!", "is no schema"),
        (Kinds(), "tenant string", "cannot tell the columns .*tenant"),
        (_With(lambda handle: handle.getValueState("v", "n long", 1000)), MADE, "ttlDurationMs=1000"),
        (_With(lambda handle: handle.getListState("tracker_x", "n long")), MADE, "which is reserved"),
        (_With(lambda handle: handle.registerTimer(1)), MADE, "give the final rows in handleEnd"),
    ]:
        with pytest.raises(UsageError, match=expected):
            tracking.transform_with_state(stream, processor, schema)  # type: ignore[arg-type]
    lengths = tracking.source(feed.stream(spark), "nested", scope="tenant", window=("ts", nested("1 hour", "1 day")))
    with pytest.raises(UsageError, match="are made by release"):
        tracking.transform_with_state(lengths, Kinds(), MADE)
    with pytest.raises(UsageError, match="on_bad_rows='quarantine' works with channels and releases"):
        tracking.transform_with_state(source("bad", on_bad_rows="quarantine"), Kinds(), MADE)
    hourly: dict[str, Any] = {"window": ("ts", "1 hour"), "front": Frontier.measured("99%", ceiling="1 day")}
    with pytest.raises(UsageError, match=r"measured.*: keyed state ends with promises that its tasks make"):
        tracking.transform_with_state(tracking.source(feed.stream(spark), "learnt", **hourly), Kinds(), MADE)
    with pytest.raises(UsageError, match="the stream has no columns left"):
        tracking.transform_with_state(stream.select("_tracker"), Kinds(), MADE)
    writer = tracking.transform_with_state(stream, Kinds(), MADE).writeStream
    with pytest.raises(UsageError, match="outputMode='update': give 'append'"):
        writer.outputMode("update")
    with pytest.raises(UsageError, match="in a channel those of one substream could not be told apart"):
        writer.channel(tracking.channel("on", str(tmp_path / "on")))
    with pytest.raises(UsageError, match=r"option\('seal'\) has no effect on keyed state"):
        writer.option("seal", True)
    with pytest.raises(UsageError, match="receipts are for results of"):
        writer.receipts("/receipts")
    kafka = tracking.kafka_channel("kafka", "t", "127.0.0.1:1", str(tmp_path / "k"))
    source("sent", identity=["row_id"]).writeStream.channel(kafka)
    with pytest.raises(UsageError, match="come at least once"):
        tracking.transform_with_state(tracking.receive(kafka), Kinds(), MADE)
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    with pytest.raises(UsageError, match=r"needs Spark 4\.1, .*applyInPandas"):
        tracking.transform_with_state(stream, Kinds(), MADE)


class _With(Kinds):
    """A processor with another `init`."""

    def __init__(self, init: Any) -> None:
        self._init = init

    def init(self, handle: Any) -> None:
        self._init(handle)


if __name__ == "__main__":
    drive()
