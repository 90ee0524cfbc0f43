"""Early results: what open substreams would be, never after a later one, and replaced by the final one for good."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Table, Tables, Topic, Tracking, UsageError, epochs_table
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Written
from spark_client.destinations.files import FileDestination
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.conftest import AT_THE_START, CLOSURE
from tests.spark.dying import Driver
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.test_one_result import END, WINDOW, Play
from tracker.client import TrackerClient

pytestmark = pytest.mark.spark


class Recording:
    """A sink that keeps all that is written, in its order."""

    def __init__(self) -> None:
        self.final: list[tuple[Any, ...]] = []
        self.early: list[tuple[Any, ...]] = []
        self.calls = 0

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        assert rows.where("not final").isEmpty()
        self.final += [tuple(each) for each in rows.select("tenant", "kind", "n", "amount", "as_of").collect()]

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        assert rows.where("final").isEmpty()
        self.calls += 1
        found = [tuple(each) for each in rows.select("tenant", "kind", "n", "amount", "as_of").collect()]
        assert {each[-1] for each in found} <= {as_of}
        self.early += found


def source(tracking: Tracking, feed: Feed, spark: SparkSession) -> Any:
    return tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))


def released(tracking: Tracking, feed: Feed, spark: SparkSession, early: str = "0 seconds", **options: Any) -> Any:
    aggs = {"n": F.count("*"), "amount": F.sum("amount")}
    return tracking.release(source(tracking, feed, spark), ["kind"], aggs=aggs, early=early, **options)


def by_key(rows: DataFrame) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return the results of a batch."""
    grouped = rows.groupBy("tenant", "kind").agg(F.count("*"), F.sum("amount")).collect()
    return {(tenant, kind): (n, amount) for tenant, kind, n, amount in grouped}


def some(rng: random.Random, number: int, tenants: str, lasts: str = "") -> list[dict[str, Any]]:
    rows = [
        row(number + place, rng.randrange(59), rng.choice(tenants), rng.choice("xy"), rng.randrange(-9, 9))
        for place in range(6)
    ]
    return [*rows, *(row(number + 10 + place, 59, tenant, "x", last=True) for place, tenant in enumerate(lasts))]


@CLOSURE
@pytest.mark.thorough
def test_an_early_row_is_a_batch_of_all_rows_so_far(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    rng, sink = random.Random(11), Recording()
    tracking = BatchTracking(feed, spark, job, tracker.address)
    released(tracking, feed, spark).writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()
    begins, wanted = list[int](), list[dict[tuple[Any, ...], tuple[Any, ...]]]()
    files = [("abc", ""), ("abc", ""), ("abc", "a"), ("bc", ""), ("bc", "b"), ("c", "")]
    for number, (tenants, lasts) in enumerate(files):
        last = tracking._running.queries[0].run.last_epoch if number else -1
        assert last is not None
        begins.append(last + 1)  # the batch that takes this file
        feed.put(*some(rng, 100 * number, tenants, lasts))
        tracking.process_all_available()
        wanted.append(by_key(feed.batch(spark)))
    assert sink.early
    for tenant, kind, n, amount, as_of in sink.early:
        taken = sum(begin <= as_of for begin in begins)
        assert wanted[taken - 1][tenant, kind] == (n, amount), (tenant, kind, as_of)
    moments = [each[-1] for each in sink.early]
    assert moments == sorted(moments)
    for tenant, kind, _, _, as_of in sink.final:
        assert all(each[-1] < as_of for each in sink.early if each[:2] == (tenant, kind)), "nothing comes after it"
    tracking.drain(timeout=600)
    everything = by_key(feed.batch(spark))
    assert {each[:2]: each[2:4] for each in sink.final} == everything
    assert len(sink.final) == len(everything)


def table_of(path: Path) -> Callable[[], sqlite3.Connection]:
    """Make a table that takes no early row in the place of a final or a later one, and fails where one would be put."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(epochs_table())
        connection.execute(
            "create table daily (tenant text, window_start text, window_end text, kind text, n integer, "
            "amount integer, final boolean, as_of integer, primary key (tenant, window_end, kind))"
        )
        connection.execute(
            "create trigger t before update on daily when old.final and not new.final or "
            "(not new.final and new.as_of < old.as_of) begin select raise(abort, 'it went back'); end"
        )
    return lambda: sqlite3.connect(path, timeout=60)


def as_texts(results: DataFrame) -> DataFrame:
    return results.withColumn("window", F.col("window").cast("struct<start:string,end:string>"))


def tables(connect: Any) -> Tables:
    return Tables(connect, Table("daily", key=["tenant", "window_end", "kind"], rows=as_texts), placeholder="?")


def shown(path: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return the table's rows: n, amount and whether it is final, by tenant and kind."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("select tenant, kind, n, amount, final from daily").fetchall()
    return {(tenant, kind): (n, amount, bool(final)) for tenant, kind, n, amount, final in found}


@pytest.mark.thorough
def test_a_table_shows_open_windows_until_the_final_row_takes_their_place(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    path = tmp_path / "daily.db"
    connect = table_of(path)

    def start() -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        writer = released(tracking, feed, spark).writeStream.sink(tables(connect))
        writer.option("checkpointLocation", tmp_path / "cp").start()
        return tracking

    tracking = start()
    feed.put(row(1, 1, amount=5), row(2, 2, "b", amount=3))
    feed.put(row(3, 3, amount=2), row(4, 4, "b", kind="y"))
    tracking.process_all_available()
    assert shown(path) == {("a", "x"): (1, 5, False), ("b", "x"): (1, 3, False)}  # of the batch before the last
    feed.put(row(5, 5, amount=4, last=True))
    tracking.process_all_available()
    assert shown(path) == {("a", "x"): (3, 11, True), ("b", "x"): (1, 3, False), ("b", "y"): (1, 1, False)}
    tracking.stop()
    tracking = start()
    feed.put(row(6, 6, "b", amount=10))
    feed.put(row(7, 7, "c"))
    tracking.process_all_available()
    assert shown(path)["b", "x"] == (2, 13, False)
    tracking.drain(timeout=600)
    assert shown(path) == {key: (*value, True) for key, value in by_key(feed.batch(spark)).items()}


@pytest.mark.thorough
def test_the_table_refuses_older_rows_and_early_ones_after_the_final(spark: SparkSession, tmp_path: Path) -> None:
    """A driver that was superseded and does not know it: what it writes changes nothing, whenever it comes."""
    path = tmp_path / "daily.db"
    sink = tables(table_of(path))

    def rows(n: int, final: bool, as_of: int) -> DataFrame:
        schema = "tenant string, window struct<start:string,end:string>, kind string, n long, amount long, "
        made = [("a", ("0", "1"), "x", n, 0, final, as_of)]
        return spark.createDataFrame(made, schema + "final boolean, as_of long")

    def there() -> tuple[Any, ...]:
        return shown(path)["a", "x"]

    sink.write_early(rows(1, False, 5), "q", 5)
    sink.write_early(rows(2, False, 3), "q", 3)
    assert there() == (1, 0, False)
    sink.write_early(rows(3, False, 6), "q", 6)
    assert there() == (3, 0, False)
    for _ in range(2):  # the second time it is there
        sink.write(rows(4, True, 8), "q", 8)
    sink.write_early(rows(5, False, 9), "q", 9)
    assert there() == (4, 0, True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update daily set final = null")  # written before there were early results
    sink.write_early(rows(6, False, 10), "q", 10)
    assert shown(path)["a", "x"][0] == 4


@pytest.mark.thorough
@AT_THE_START
def test_files_have_early_rows_beside_the_table_and_the_newest_count(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    writer = released(tracking, feed, spark, completeness=True).writeStream
    writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    with pytest.raises(UsageError, match="has no early results"):
        tracking.early(str(tmp_path / "cp"))
    feed.put(row(1, 1, amount=5), row(2, 2, "b", amount=3))
    feed.put(row(3, 3, amount=2), row(4, 4, "c", last=True))
    tracking.process_all_available()

    def early() -> list[tuple[Any, ...]]:
        found = tracking.early(str(tmp_path / "cp"))
        assert found.columns == ["tenant", "window", "kind", "n", "amount", "completeness", "final", "as_of"]
        rows = found.select("tenant", "window.start", "kind", "n", "amount", "completeness", "final").collect()
        return sorted(map(tuple, rows))

    final = ("tenant", "n", "amount", "completeness", "final")
    # The batch that released c has shown what was there before it.
    assert early() == [("a", START, "x", 2, 7, "open", False), ("b", START, "x", 1, 3, "open", False)]
    assert rows_of(tmp_path / "out", spark, *final) == [("c", 1, 1, "whole", True)]
    feed.put(row(5, 5, last=True))
    tracking.process_all_available()
    assert early() == [("b", START, "x", 1, 3, "open", False)]
    assert len(list((tmp_path / "cp" / "tracker" / "early").glob("moment-*"))) == 2
    tracking.drain(timeout=600)
    assert early() == []
    assert rows_of(tmp_path / "out", spark, *final) == [
        ("a", 3, 8, "whole", True),
        ("b", 1, 3, "drained", True),
        ("c", 1, 1, "whole", True),
    ]


def test_an_older_snapshot_does_not_replace_a_newer_one(spark: SparkSession, tmp_path: Path) -> None:
    output = FileDestination(Written(str(tmp_path), "parquet", {}, (), Folder(tmp_path), Folder(tmp_path)))
    for number in (7, 9, 8, 9):
        output.write_early(spark.range(number), "q", number)
    newest = max(tmp_path.glob("moment-*"))
    assert spark.read.parquet(str(newest)).count() == 9


@pytest.mark.thorough
def test_no_early_row_has_late_rows_so_each_has_a_final_one(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Substreams end while a batch with more of their rows is in hand: those are late, and their keys may be new."""
    play, sink = Play(1), Recording()
    tracking = BatchTracking(feed, spark, job, tracker.address, segments={"in": []}, fronts=["in", "other"])
    released(tracking, feed, spark).writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()
    other = TrackerClient(tracker.address).open_producer(job, "other", "1")
    send, closed = Run.send, set[int]()

    def close_and_send(self: Run, report: Any, epoch: int) -> Any:
        number = feed.files - 1
        if number not in closed:
            closed.add(number)
            promises = other.epoch(number)
            for tenant in play.closes[number]:
                promises.close(tenant, WINDOW, END, "other")
            promises.report(commit=True)
        return send(self, report, epoch)

    monkeypatch.setattr(Run, "send", close_and_send)
    for batch in play.batches:
        feed.put(*batch)
        tracking.process_all_available()
    assert not tracking.late(str(tmp_path / "cp")).isEmpty()
    totals: dict[str, int] = {}
    for tenant, _, n, *_ in sink.final:
        totals[tenant] = totals.get(tenant, 0) + n
    assert totals == play.expected(filtered=False)[0]
    assert {each[:2] for each in sink.early} <= {each[:2] for each in sink.final}
    assert sink.early
    tracking.stop()


@pytest.mark.thorough
@CLOSURE
def test_early_rows_come_as_often_as_asked_to_functions_and_sinks(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    calls: list[tuple[int, list[tuple[Any, ...]]]] = []

    def note(rows: DataFrame, epoch: int) -> None:
        calls.append((epoch, sorted(map(tuple, rows.select("tenant", "n", "final", "as_of").collect()))))

    tracking = BatchTracking(feed, spark, job, tracker.address)
    writer = released(tracking, feed, spark, early="1 hour").writeStream.foreachBatch(note)
    writer.option("checkpointLocation", tmp_path / "cp").start()
    for number in range(4):
        feed.put(row(number, number, "ab"[number % 2]))
    tracking.process_all_available()
    feed.put(row(9, 9, last=True))
    tracking.process_all_available()
    early = [call for call in calls if not call[1][0][2]]
    assert early == [(0, [("a", 1, False, 0)])]
    [(epoch, rows)] = [call for call in calls if call[1][0][2]]
    assert (epoch, rows) == (-6, [("a", 3, True, 5)])  # between the batches 4 and 5
    tracking.stop()


@pytest.mark.thorough
@CLOSURE
def test_several_outputs_of_one_release_show_early_rows_each_in_its_way(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    connect, sink = table_of(tmp_path / "daily.db"), Recording()
    tracking = BatchTracking(feed, spark, job, tracker.address)
    daily = released(tracking, feed, spark)
    outputs = {
        "daily": {
            "files": daily.writeStream.option("path", tmp_path / "out"),
            "table": daily.writeStream.sink(tables(connect)),
            "own": daily.writeStream.sink(sink),
        }
    }
    tracking.write_together(outputs).option("checkpointLocation", tmp_path / "cp").start()
    feed.put(row(1, 1, amount=5), row(2, 2, "b", amount=3))
    feed.put(row(3, 3, last=True))
    tracking.process_all_available()
    assert shown(tmp_path / "daily.db") == {("a", "x"): (2, 6, True), ("b", "x"): (1, 3, False)}
    early = tracking.early(str(tmp_path / "cp"), release="daily").select("tenant", "n", "final")
    assert [tuple(each) for each in early.collect()] == [("b", 1, False)]
    assert rows_of(tmp_path / "out", spark, "tenant", "n", "final") == [("a", 2, True)]
    assert {each[0] for each in sink.early} == {"a", "b"}
    assert [each[:3] for each in sink.final] == [("a", "x", 2)]
    tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_wherever_the_driver_dies_final_rows_stand(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, parts: int
) -> None:
    def run(number: int, dies_at: int | None) -> int:
        path = tmp_path / str(number)
        feed = Feed(path / "raw")
        connect = table_of(path / "daily.db")
        for file, lasts in enumerate(["", "a", "", "b"]):
            feed.put(*some(random.Random(file), 100 * file, "abc" if file < 2 else "bc" if file < 4 else "c", lasts))
        driver = Driver(path)

        def life() -> None:
            tracking = Tracking(spark, f"{job}-{number}", tracker.address)
            try:
                daily = released(tracking, feed, spark)
                outputs = {
                    "files": daily.writeStream.option("path", path / "out"),
                    "table": daily.writeStream.sink(tables(connect)),
                }
                tracking.write_together({"daily": outputs}).option("checkpointLocation", path / "cp").start()
                tracking.process_all_available()
            finally:
                tracking.stop()

        with driver.living(dies_at), suppress(Exception) if dies_at is not None else nullcontext():
            life()
        if dies_at is not None:
            life()
        whole = {key: value for key, value in by_key(feed.batch(spark)).items() if key[0] != "c"}
        final = {key: value[:2] for key, value in shown(path / "daily.db").items() if value[2]}
        assert final == whole, f"it died before step {dies_at}"
        files = rows_of(path / "out", spark, "tenant", "kind", "n", "amount")
        assert files == sorted((*key, *value) for key, value in whole.items())
        return len(driver.steps)

    steps = run(0, None)
    for number, dies_at in enumerate(range(steps // 4, steps, max(1, steps * 3 // 4 // parts)), 1):
        run(number, dies_at)


class Plain:
    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        pass


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (Plain(), "Plain has no method write_early"),
        (Tables(lambda: None, "daily"), "table daily: early results need a key"),  # type: ignore[arg-type, return-value]
        (
            Tables(lambda: None, Table("daily", key=["tenant", "final"])),  # type: ignore[arg-type, return-value]
            "key='final' differs between an early and the final result",
        ),
        (
            Tables(
                lambda: None,  # type: ignore[arg-type, return-value]
                Table("daily", key=["tenant"], rows=lambda rows: rows.drop("as_of")),
            ),
            "early results: column='as_of' is not a column",
        ),
        (Topic("daily", "localhost:1", ["tenant", "as_of"]), "key='as_of' differs"),
    ],
    ids=["plain", "bare", "final", "dropped", "topic"],
)
def test_a_sink_that_keeps_early_rows_beside_final_ones_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, sink: Any, message: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    writer = released(tracking, feed, spark).writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp")
    with pytest.raises(UsageError, match=message):
        writer.start()


def test_early_results_of_what_has_no_key_are_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    rows = source(tracking, feed, spark)
    with pytest.raises(UsageError, match="rows that are kept have no key"):
        tracking.release(rows, columns=["amount"], early="1 minute")
    with pytest.raises(UsageError, match="would be called for what is not whole"):
        tracking.release(rows, aggs={"n": F.count("*")}, early="1 minute").apply(lambda results: results)
    with pytest.raises(UsageError, match="is below zero"):
        tracking.release(rows, aggs={"n": F.count("*")}, early="-1 minute")
    with pytest.raises(UsageError, match=r"names \['final'\] are taken"):
        tracking.release(rows, aggs={"final": F.count("*")}, early="1 minute")
    writer = tracking.release(rows, aggs={"n": F.count("*")}, early="1 minute").writeStream
    channel = tracking.channel("on", str(tmp_path / "on"))
    with pytest.raises(UsageError, match="early ones would be elements"):
        writer.channel(channel)
    with pytest.raises(UsageError, match="no checkpoint of a tracked query"):
        tracking.early(str(tmp_path))
