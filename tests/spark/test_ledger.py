"""The ledger of a whole job adds up to what a batch over its input finds, and names what was lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import LEDGER_SCHEMA, Marks, Tracking, UsageError, ledger
from spark_client.release.quarantine import Quarantine
from spark_client.release.receipts import Receipts
from spark_client.release.state import PartialState
from tests.cli.shell import Shell, table
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

COUNTS = ("sent", "released", "filtered", "late", "given_up", "quarantined", "missing")


class Job:
    """Three queries and two releases: in → clean, or round by retry until it is clean or given up.

    The first query drops rows of a negative amount, the release of clean rows drops kind ``z``. A row of a
    larger amount than 1 goes round so often; it is given up after its third attempt.
    """

    def __init__(self, spark: SparkSession, address: str, job: str, feed: Feed, path: Path) -> None:
        self.spark, self.address, self.job, self.feed, self.path = spark, address, job, feed, path
        self.receipts = path / "receipts"
        self.tables = [path / f"cp{number}" / "tracker" / "late" for number in (1, 2, 3, 4)]

    def start(self, deployment: str = "d1") -> Tracking:
        self.tracking = tracking = BatchTracking(self.feed, self.spark, self.job, self.address, deployment)
        source = tracking.source(
            self.feed.stream(self.spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
            on_bad_rows="quarantine",
            counted=True,
        )
        clean, retry, given_up = (
            tracking.channel(name, str(self.path / name)) for name in ("clean", "retry", "given_up")
        )
        first = source.where("amount >= 0").withColumn("attempts", F.lit(1)).writeStream
        first = first.route([(clean, "attempts >= amount"), (retry, None)])
        again = tracking.receive(retry).withColumn("attempts", F.col("attempts") + 1).writeStream
        again = again.route([(clean, "attempts >= amount"), (given_up, "attempts >= 3"), (retry, None)])
        kept = tracking.receive(clean).where("kind <> 'z'")
        done = tracking.release(kept, ["kind"], aggs={"rows": F.count("*")}, revisions=True).writeStream
        dead = tracking.release(tracking.receive(given_up), aggs={"rows": F.count("*")}).writeStream
        done, dead = done.receipts(self.receipts), dead.receipts(self.receipts, given_up=True)
        queries = [(first, ()), (again, ()), (done, (self.path / "out",)), (dead, (self.path / "dead",))]
        for number, (writer, to) in enumerate(queries, 1):
            writer.option("checkpointLocation", self.path / f"cp{number}").start(*to)
        return tracking

    def put(self, *rows: Any) -> None:
        self.feed.put(*rows)
        self.tracking.process_all_available()

    def totals(self) -> dict[tuple[str | None, int | None], tuple[int, ...]]:
        """Return the ledger: by scope and hour."""
        lines = ledger(self.spark, self.receipts, self.tables)
        assert lines.schema == LEDGER_SCHEMA
        found = lines.select("scope", F.hour("end_time").alias("hour"), *COUNTS, "wrong").collect()
        assert [line.wrong for line in found if line.wrong] == []
        return {(line.scope, line.hour): tuple(line[name] for name in COUNTS) for line in found}

    def batch(self, late: str = "false", again: str = "false") -> dict[tuple[str | None, int | None], tuple[int, ...]]:
        """Return the same by a batch over the input.

        Args:
            late: which rows came late, as a condition.
            again: which of these were reopened.
        """
        kind = (
            F.when(F.col("tenant").isNull() | F.col("ts").isNull(), "quarantined")
            .when(F.expr(f"({late}) and not ({again})"), "late")
            .when(F.expr("amount < 0 or (kind = 'z' and amount <= 3)"), "filtered")
            .when(F.col("amount") > 3, "given_up")
            .otherwise("released")
        )
        rows = self.feed.batch(self.spark).withColumn("became", kind)
        good = F.col("became") != "quarantined"
        hour = F.when(good, F.hour(F.window("ts", "1 hour").end))
        counted = [F.count_if(F.col("became") == name).alias(name) for name in COUNTS[1:]]
        grouped = rows.groupBy(F.when(good, F.col("tenant")).alias("scope"), hour.alias("hour"))
        return {
            (r.scope, r.hour): tuple(r[name] for name in COUNTS)
            for r in grouped.agg(F.count("*").alias("sent"), *counted).collect()
        }


@pytest.fixture
def running(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Any:
    running = Job(spark, tracker.address, job, feed, tmp_path)
    running.start()
    yield running
    running.tracking.stop()


def without_tenant(row_id: int) -> dict[str, Any]:
    return {**row(row_id, 5), "tenant": None}


@pytest.mark.thorough
def test_the_ledger_adds_up_and_a_planted_loss_is_named(running: Job, tracker: Server) -> None:
    running.put(
        row(1, 5),
        row(2, 6, amount=-1),
        row(3, 7, kind="z"),
        row(4, 8, amount=3),
        row(5, 9, amount=9),
        without_tenant(6),
    )
    running.put(row(7, 10, last=True), row(8, 5, "b", amount=2), row(9, 6, "b", amount=-1, last=True))
    assert running.totals() == running.batch()
    running.put(row(10, 11), row(11, 12, "b"), without_tenant(12))  # rows 10 and 11 are late
    assert running.totals() == running.batch(late="row_id in (10, 11)")
    running.tracking.reopen(str(running.path / "cp3"), scope="a")
    running.tracking.process_all_available()
    assert running.totals() == running.batch(late="row_id in (10, 11)", again="row_id = 10")
    running.tracking.stop()

    shell = Shell(tracker.address)
    late = [f"--late={table}" for table in running.tables]
    shown = shell("ledger", str(running.receipts), *late)
    counted = [line for line in table(shown) if line["SCOPE"] == "a"]
    assert [[line[name.replace("_", " ").upper()] for name in COUNTS] for line in counted] == [
        [str(number) for number in running.totals()["a", 1]]
    ]
    assert "3 substreams: the receipts add up" in shown

    # One row less than was sent on clean, in the first receipt of its release; then the receipt is gone.
    (release,) = (path for path in running.receipts.glob("*/*/*.parquet") if _is_of(path, "clean", "a"))
    written = pq.ParquetFile(release).read()
    rows = [
        {**each, "rows": each["rows"] - (each["scope"] == "a"), "kept": each["kept"] - (each["scope"] == "a")}
        for each in written.to_pylist()
    ]
    pq.write_table(type(written).from_pylist(rows, schema=written.schema), release)
    wrong = ledger(running.spark, running.receipts, running.tables).where("missing <> 0").collect()
    assert [(line.scope, line.missing, line.wrong) for line in wrong] == [
        ("a", 1, ["segment 'clean': 1 missing: 4 were sent, 3 were received"])
    ]
    shell("ledger", str(running.receipts), "--scope", "b", *late)
    shell("ledger", str(running.receipts), *late, status=1)
    shutil.rmtree(release.parent)
    gone = next(line for line in ledger(running.spark, running.receipts).collect() if line.scope == "a")
    assert gone.missing == 5
    assert "segment 'clean': it has no receipt: it has not ended there, or one is lost" in gone.wrong


def _is_of(path: Path, segment: str, scope: str) -> bool:
    rows = pq.ParquetFile(path).read(["segment", "scope", "rows", "revision"]).to_pylist()
    return any((r["segment"], r["scope"], r["revision"]) == (segment, scope, 0) and r["rows"] for r in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name"),
    [(Receipts, "write"), (PartialState, "publish"), (Quarantine, "_count"), (PartialState, "add")],
)
def test_a_driver_that_dies_counts_nothing_twice(
    running: Job, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    running.put(row(1, 5), row(2, 6, amount=2), row(3, 7, "b", last=True))
    with monkeypatch.context() as dying:
        dying.setattr(where, name, _raise)
        running.feed.put(row(4, 8, amount=9), row(5, 9, kind="z", last=True), row(6, 10, "b"), without_tenant(7))
        with pytest.raises(Exception, match="dies here"):
            running.put(row(8, 70))
    running.tracking.stop()
    running.start()
    running.tracking.process_all_available()
    running.put(row(9, 71, last=True))
    assert running.totals() == running.batch(late="row_id = 6")


def _raise(*_: Any, **__: Any) -> None:
    raise RuntimeError("dies here")


@pytest.mark.slow
@pytest.mark.parametrize("ending", [Tracking.drain, Tracking.hand_over])
def test_two_deployments_add_up_as_one(running: Job, ending: Callable[..., None]) -> None:
    running.put(row(1, 5), row(2, 6, amount=2), row(3, 7, "b", amount=-1), row(4, 8, amount=9))
    ending(running.tracking, timeout=120)
    running.start("d2")
    running.put(row(5, 9, kind="z"), row(6, 10, last=True), row(7, 11, "b", last=True))
    assert running.totals() == running.batch()


def test_a_path_that_is_not_there_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory: give the one of"):
        ledger(spark, tmp_path / "receipts")
    (tmp_path / "receipts").mkdir()
    with pytest.raises(UsageError, match="is not a directory: give the path of a table"):
        ledger(spark, tmp_path / "receipts", [tmp_path / "cp" / "late"])
