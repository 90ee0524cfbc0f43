"""Several releases of one stream in one query: each equals a batch, each output has it once, and rows are read once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import (
    Marks,
    Released,
    SeveralWriter,
    Table,
    Tables,
    TrackedWriter,
    Tracking,
    TrackingError,
    UsageError,
    aggregates,
    epochs_table,
)
from spark_client.release.state import PartialState
from spark_client.spark_internals.columns import dumps, loads
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.conftest import IN_THE_JVM
from tests.spark.dying import Driver
from tests.spark.feed import Feed, row, rows_of
from tests.spark.test_plans import plan_of, run_elsewhere

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


def middle(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"middle": [float(rows["amount"].median())]})


class Shop:
    """Three releases of one stream: two aggregations, one of which goes to two places, and a function over all rows."""

    def __init__(self, spark: SparkSession, address: str, job: str, feed: Feed, path: Path) -> None:
        self.spark, self.address, self.job, self.feed, self.path = spark, address, job, feed, path
        with closing(sqlite3.connect(path / "results.db")) as connection, connection:
            connection.execute(epochs_table().replace("create table", "create table if not exists"))
            for name in ("totals", "extremes"):
                connection.execute(
                    f"create table if not exists {name} (tenant text, window_start text, window_end text, "
                    "n integer, least integer, most integer)"
                )

    def table(self, name: str, rows: Any = None) -> Tables:
        path = str(self.path / "results.db")
        return Tables(lambda: sqlite3.connect(path, timeout=60), Table(name, rows=rows), placeholder="?")

    def source(self, tracking: Tracking, rows: DataFrame | None = None) -> Any:
        rows = self.feed.stream(self.spark) if rows is None else rows
        return tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))

    def releases(self, tracking: Tracking, stream: Any) -> dict[str, Released]:
        return {
            "by_kind": tracking.release(stream, ["kind"], aggs={"n": F.count("*"), "amount": F.sum("amount")}),
            "totals": tracking.release(
                stream, aggs={"n": F.count("*"), "least": F.min("amount"), "most": aggregates.max("amount")}
            ),
            "middle": tracking.release(stream, columns=["amount"]).applyInPandas(middle, "middle double"),
        }

    def outputs(self, releases: dict[str, Released]) -> dict[str, Any]:
        def files(name: str, place: str = "") -> Any:
            return releases[name].writeStream.option("path", self.path / f"{place or name}")

        return {
            "by_kind": files("by_kind"),
            "totals": {
                "files": files("totals", "totals").receipts(self.path / "receipts"),
                "table": releases["totals"].writeStream.sink(self.table("totals", as_texts)),
                "second": releases["totals"].writeStream.sink(self.table("extremes", as_texts)),
            },
            "middle": files("middle"),
        }

    def writer(self, deployment: str = "1", change: Callable[[dict[str, Any]], Any] | None = None) -> tuple[Any, Any]:
        tracking = BatchTracking(self.feed, self.spark, self.job, self.address, deployment)
        outputs = self.outputs(self.releases(tracking, self.source(tracking)))
        if change is not None:
            change(outputs)
        return tracking, tracking.write_together(outputs).option("checkpointLocation", self.path / "cp")

    def start(self, deployment: str = "1", change: Callable[[dict[str, Any]], Any] | None = None) -> Tracking:
        tracking, writer = self.writer(deployment, change)
        writer.start()
        return tracking

    def found(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows of each output, sorted."""
        found = {
            "by_kind": rows_of(self.path / "by_kind", self.spark, "tenant", "window.start", "kind", "n", "amount"),
            "totals": rows_of(self.path / "totals", self.spark, "tenant", "window.start", "n", "least", "most"),
            "middle": rows_of(self.path / "middle", self.spark, "tenant", "window.start", "middle"),
        }
        with closing(sqlite3.connect(self.path / "results.db")) as connection:
            for name in ("totals", "extremes"):
                table = connection.execute(f"select tenant, window_start, n, least, most from {name}").fetchall()
                found[f"table {name}"] = sorted(table)
        return found

    def expected(self, ended: str = "true") -> dict[str, list[tuple[Any, ...]]]:
        """Return the results of a batch over all rows of the substreams that have ended."""
        rows = self.feed.batch(self.spark).withColumn("window", F.window("ts", "1 hour")).where(ended)
        columns: dict[str, tuple[list[str], list[Any]]] = {
            "by_kind": (["kind"], [F.count("*"), F.sum("amount")]),
            "totals": ([], [F.count("*"), F.min("amount"), F.max("amount")]),
            "middle": ([], [F.median("amount")]),
        }
        expected = {}
        for name, (keys, values) in columns.items():
            grouped = rows.groupBy("tenant", "window.start", *keys).agg(*values)
            expected[name] = sorted(tuple(each) for each in grouped.collect())
        texts = [(tenant, str(start), *rest) for tenant, start, *rest in expected["totals"]]
        return {**expected, "table totals": texts, "table extremes": texts}

    def receipts(self) -> dict[tuple[str, Any], tuple[int, int]]:
        found = self.spark.read.parquet(str(self.path / "receipts")).collect()
        assert all(r["rows"] == r["elements"] for r in found), "what the tracker has counted is what was read"
        return {(r["scope"], r["end_time"]): (r["rows"], r["results"]) for r in found}


def as_texts(results: DataFrame) -> DataFrame:
    return results.withColumn("window", F.col("window").cast("struct<start:string,end:string>"))


def hours(rng: random.Random, number: int, lasts: str, hour: int = 0, tenants: str = "abc") -> list[dict[str, Any]]:
    """Return rows of some tenants in one hour; those in `lasts` have their last one."""
    rows = []
    for place in range(9):
        tenant, kind = tenants[place % len(tenants)], rng.choice("xyz")
        rows.append(row(number + place, 60 * hour + rng.randrange(59), tenant, kind, rng.randrange(-50, 50)))
    return [*rows, *(row(number + 20 + place, 60 * hour + 59, tenant, last=True) for place, tenant in enumerate(lasts))]


@pytest.fixture
def shop(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Shop:
    return Shop(spark, tracker.address, job, feed, tmp_path)


@pytest.mark.thorough
def test_each_output_equals_a_batch_over_all_rows_whatever_the_restart(shop: Shop, feed: Feed) -> None:
    rng = random.Random(7)
    tracking = shop.start()
    feed.put(*hours(rng, 100, ""))
    feed.put(*hours(rng, 200, "a"))
    tracking.process_all_available()
    assert shop.found() == shop.expected("tenant = 'a'")
    tracking.stop()
    feed.put(*hours(rng, 300, "bc", tenants="bc"), *hours(rng, 400, "", hour=1))
    tracking = shop.start()
    tracking.process_all_available()
    assert shop.found() == shop.expected("ts < '2024-01-01 01:00:00'")
    ended = {key[0]: value for key, value in shop.receipts().items()}
    in_batch = shop.expected("ts < '2024-01-01 01:00:00'")["totals"]
    assert ended == {tenant: (n, 1) for tenant, _, n, *_ in in_batch}, "one receipt each, with the rows counted once"
    tracking.drain(timeout=600)
    assert shop.found() == shop.expected()
    status = tracking.client.job(shop.job)
    assert (status.open_substreams, status.in_flight) == (0, 0)


@IN_THE_JVM
@pytest.mark.thorough
def test_the_source_is_read_once_for_all(shop: Shop, spark: SparkSession, feed: Feed) -> None:
    read = spark.sparkContext.accumulator(0)

    def seen(value: int) -> int:
        read.add(1)
        return value

    counted = F.udf(seen, "long").asNondeterministic()  # which Spark neither drops nor moves
    tracking = Tracking(spark, shop.job, shop.address)
    rows = feed.stream(spark).withColumn("amount", counted("amount"))
    outputs = shop.outputs(shop.releases(tracking, shop.source(tracking, rows)))
    tracking.write_together(outputs).option("checkpointLocation", shop.path / "cp").start()
    feed.put(*hours(random.Random(1), 100, "a"))
    feed.put(*hours(random.Random(2), 200, "bc", tenants="bc"))
    tracking.process_all_available()
    assert shop.found() == shop.expected()
    assert read.value == len(feed.rows)
    tracking.stop()


@pytest.mark.thorough
def test_late_rows_are_set_aside_once(shop: Shop, feed: Feed) -> None:
    tracking = shop.start()
    feed.put(row(1, 1), row(2, 2, "b"), row(3, 3, last=True))
    tracking.process_all_available()
    feed.put(row(4, 4, amount=44), row(5, 5, "b", last=True))
    tracking.process_all_available()
    late = tracking.late(str(shop.path / "cp")).collect()
    assert [(each["kind"], json.loads(each["data"])["amount"]) for each in late] == [("row", 44)]
    assert shop.found() == shop.expected("row_id <> 4")
    tracking.stop()


@pytest.mark.thorough
def test_a_plan_of_several_can_be_pickled(shop: Shop) -> None:
    plan = loads(dumps(plan_of(*shop.writer())))
    assert [each.name for each in plan.releases] == ["by_kind", "totals", "middle"], "one that aggregates counts"
    places = {each.name: list(each.destination.places) for each in plan.releases}
    assert places["totals"] == ["totals.files", "totals.table", "totals.second"]
    assert plan.counting().aggregated


@pytest.mark.slow
def test_a_plan_of_several_is_run_in_another_process(shop: Shop, feed: Feed, tmp_path: Path) -> None:
    tracking, writer = shop.writer()
    for number in range(3):
        feed.put(*hours(random.Random(number), 100 * number, "abc"[number], tenants="abc"[number:]))
    tracking.define()
    run_elsewhere("streamed", feed, tmp_path, plan_of(tracking, writer))
    assert shop.found() == shop.expected()


# ---------------------------------------------------------------- outputs that change


def add_more(outputs: dict[str, Any]) -> None:
    like = outputs["by_kind"]
    outputs["more"] = TrackedWriter(like._tracking, like.rows, like.release).foreachBatch(print)


@pytest.mark.slow
def test_an_output_is_left_out_or_new_only_while_nothing_is_open(shop: Shop, feed: Feed) -> None:
    tracking = shop.start()
    feed.put(row(1, 1, amount=5), row(2, 2, "b", last=True))
    tracking.process_all_available()
    tracking.stop()
    with pytest.raises(UsageError, match=r"release 'middle' holds 1 substreams, which would be abandoned.*drain"):
        shop.start(change=lambda outputs: outputs.pop("middle"))
    with pytest.raises(UsageError, match=r"output 'more' is new, and holds no part of the 1 substreams"):
        shop.start(change=add_more)
    alone = BatchTracking(feed, shop.spark, shop.job, shop.address)
    released = shop.releases(alone, shop.source(alone))["totals"]
    totals = released.writeStream
    totals.option("checkpointLocation", shop.path / "cp").option("path", shop.path / "alone")
    with pytest.raises(UsageError, match=r"writes by_kind, middle, totals together"):
        totals.start()
    with pytest.raises(UsageError, match="state of several releases cannot be read or exported yet"):
        released.state(shop.path / "cp")
    tracking = shop.start()  # nothing was lost by these
    feed.put(row(3, 3, amount=7, last=True))
    tracking.process_all_available()
    tracking.drain(timeout=600)
    assert shop.found() == shop.expected()
    before = shop.found()["middle"]
    tracking = shop.start("2", change=lambda outputs: outputs.pop("middle"))
    feed.put(row(4, 70, amount=9, last=True))
    tracking.process_all_available()
    tracking.drain(timeout=600)
    assert {**shop.found(), "middle": 0} == {**shop.expected(), "middle": 0}
    assert shop.found()["middle"] == before
    tracking = shop.start("3")  # it is there again, and begins with what comes now
    feed.put(row(5, 130, amount=3), row(6, 131, amount=4, last=True))
    tracking.process_all_available()
    assert {**shop.found(), "middle": 0} == {**shop.expected(), "middle": 0}
    assert shop.found()["middle"] == sorted([*before, *shop.expected("ts > '2024-01-01 02:00:00'")["middle"]])
    tracking.stop()


@pytest.mark.slow
def test_a_hand_over_keeps_what_is_open_of_each(shop: Shop, feed: Feed) -> None:
    """The next deployment adds a place."""
    tracking = shop.start(change=lambda outputs: outputs["totals"].pop("second"))
    feed.put(row(1, 1, amount=5), row(2, 2, "b", amount=3))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking = shop.start("2")
    feed.put(row(3, 3, amount=-7, last=True), row(4, 4, "b", last=True))
    tracking.process_all_available()
    assert shop.found() == shop.expected()
    tracking.stop()


# ---------------------------------------------------------------- drivers that die


def life(shop: Shop, drains: bool) -> None:
    tracking = shop.start()
    try:
        tracking.process_all_available()
        if drains:
            tracking.drain(timeout=600)
    finally:
        tracking.stop()


def die_in_turn(shop_at: Callable[[int], Shop], drains: bool, parts: int, first: int = 0) -> None:
    """End lives at steps all over a whole life; the next one brings every output to what a batch gives, once."""

    def run(number: int, dies_at: int | None) -> list[str]:
        shop = shop_at(number)
        for file in range(3):
            shop.feed.put(*hours(random.Random(file), 100 * file, "" if file < 1 else "abc"[: 4 * (file - 1)]))
        driver = Driver(shop.path)
        with driver.living(dies_at), suppress(Exception) if dies_at is not None else nullcontext():
            life(shop, drains)
        if dies_at is not None:
            life(shop, drains)
        assert shop.found() == shop.expected(), f"it died before step {dies_at}"
        assert len(shop.receipts()) == 3
        return driver.steps

    steps = run(0, None)
    results = [number for number, step in enumerate(steps) if "epoch=" in step and number > 3]
    chosen = results[:: max(1, len(results) // parts)]
    for number, dies_at in enumerate(chosen[first : first + parts], 1):
        run(number, dies_at)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("drains", "parts"),
    [(False, 2), pytest.param(False, 25, marks=pytest.mark.slow), pytest.param(True, 25, marks=pytest.mark.slow)],
)
def test_a_driver_that_dies_between_outputs_leaves_each_result_once_in_each(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, drains: bool, parts: int
) -> None:
    def shop_at(number: int) -> Shop:
        path = tmp_path / str(number)
        path.mkdir()
        return Shop(spark, tracker.address, f"{job}-{number}", Feed(path / "raw"), path)

    die_in_turn(shop_at, drains, parts)


@pytest.mark.slow
def test_a_drain_that_died_half_published_is_finished_for_the_others(
    shop: Shop, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = shop.start()
    feed.put(*hours(random.Random(3), 100, ""))
    tracking.process_all_available()
    publish, published = PartialState.publish, list[Folder]()

    def dies(self: PartialState, epoch: int) -> None:
        if len(published) == 1:
            raise RuntimeError("killed")
        publish(self, epoch)
        published.append(self._folder)

    with monkeypatch.context() as patched:
        patched.setattr(PartialState, "publish", dies)
        with pytest.raises(TrackingError, match="killed"):
            tracking.drain(timeout=600)
    tracking.stop()
    tracking = shop.start()
    tracking.drain(timeout=600)
    assert published
    assert shop.found() == shop.expected()
    assert len(shop.receipts()) == 3
    tracking.stop()


class Fatal(sqlite3.Connection):
    """A connection whose process is killed as soon as the database has committed."""

    def commit(self) -> None:
        super().commit()
        os.killpg(0, signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.classic("the process has a JVM of its own")
def test_a_process_that_is_killed_between_two_outputs_writes_each_row_once(
    shop: Shop, tracker: Server, feed: Feed
) -> None:
    """Files are out and the first table has committed; the second table and the other releases have nothing yet."""
    for number in range(2):
        feed.put(*hours(random.Random(number), 100 * number, "abc" if number else ""))
    program = [sys.executable, "-m", "tests.spark.test_together", tracker.address, str(shop.path), shop.job]
    with (shop.path / "driver.log").open("w") as log:
        ended = subprocess.run(program, stdout=log, stderr=log, start_new_session=True, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL, (shop.path / "driver.log").read_text()[-3000:]
    left = shop.found()
    assert left["table totals"]
    assert not left["table extremes"]
    life(shop, drains=False)
    assert shop.found() == shop.expected()
    assert len(shop.receipts()) == 3


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda shop, tracking, orders: {}, "at least one output"),
        (lambda shop, tracking, orders: {"a": orders.writeStream.foreachBatch(print)}, "only results of"),
        (
            lambda shop, tracking, orders: {
                "a": tracking.release(orders, aggs={"n": F.count("*")}).writeStream.foreachBatch(print),
                "b": tracking.release(orders.where("amount > 1"), aggs={"n": F.count("*")}).writeStream.option(
                    "path", "b"
                ),
            },
            "output 'b' is of another stream.*put what differs into the aggregates",
        ),
        (
            lambda shop, tracking, orders: {
                "a": tracking.release(orders, aggs={"n": F.count("*")}, revisions=True).writeStream.option("path", "a")
            },
            "needs a query of its own",
        ),
        (
            lambda shop, tracking, orders: {
                "a": tracking.release(orders, aggs={"n": F.count("*")})
                .writeStream.option("path", "a")
                .trigger(availableNow=True)
            },
            "give it to write_together",
        ),
        (
            lambda shop, tracking, orders: {
                "a": tracking.release(orders, aggs={"n": F.count("*")}).writeStream.option("path", "a"),
                "b": tracking.release(orders, aggs={"m": F.count("*")}).writeStream.option("path", "a"),
            },
            "two outputs go to a",
        ),
        (
            lambda shop, tracking, orders: {
                "a": {
                    "one": tracking.release(orders, aggs={"n": F.count("*")}).writeStream.option("path", "a"),
                    "two": tracking.release(orders, aggs={"n": F.count("*")}).writeStream.option("path", "b"),
                }
            },
            "give each release a name",
        ),
        (
            lambda shop, tracking, orders: {
                name: tracking.release(orders, aggs={"n": F.count("*")})
                .writeStream.option("path", name)
                .receipts(shop.path / name)
                for name in "ab"
            },
            "one receipt",
        ),
        (
            lambda shop, tracking, orders: {
                "a/b": tracking.release(orders, aggs={"n": F.count("*")}).writeStream.option("path", "a")
            },
            "a name has letters",
        ),
        (lambda shop, tracking, orders: {"a": {}}, "at least one output"),
        (lambda shop, tracking, orders: {"a": 5}, "give released.writeStream"),
        (
            lambda shop, tracking, orders: {"a": tracking.release(orders, aggs={"n": F.count("*")}).writeStream},
            "the rows need a place",
        ),
    ],
)
def test_what_cannot_be_written_together_is_refused(shop: Shop, make: Any, message: str) -> None:
    tracking = Tracking(shop.spark, shop.job, shop.address)
    orders = shop.source(tracking)
    with pytest.raises(UsageError, match=message):
        tracking.write_together(make(shop, tracking, orders))


def test_a_query_of_several_needs_a_checkpoint_and_no_output_options(shop: Shop) -> None:
    _, writer = shop.writer()
    assert isinstance(writer, SeveralWriter)
    with pytest.raises(UsageError, match=r"option 'compression': give it to the output"):
        writer.option("compression", "gzip").start()
    tracking = Tracking(shop.spark, shop.job, shop.address)
    outputs = shop.outputs(shop.releases(tracking, shop.source(tracking)))
    with pytest.raises(UsageError, match=r"needs .option.'checkpointLocation'"):
        tracking.write_together(outputs).start()


def main() -> None:
    """Run a driver that is killed when its first database transaction has committed."""
    from tests.spark.conftest import session

    address, path, job = sys.argv[1:]
    spark = session("killed")
    shop = Shop(spark, address, job, Feed(Path(path) / "raw"), Path(path))
    shop.feed.files = sum(1 for _ in shop.feed.path.iterdir())  # that the test has put
    original = shop.table

    def fatal(name: str, rows: Any = None) -> Tables:
        if name != "totals":
            return original(name, rows)
        file = str(Path(path) / "results.db")
        return Tables(lambda: sqlite3.connect(file, factory=Fatal), Table(name, rows=rows), placeholder="?")

    shop.table = fatal  # type: ignore[method-assign]
    life(shop, drains=False)


if __name__ == "__main__":
    main()
