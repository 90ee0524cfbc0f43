"""A query's plan is data: another process makes the same query of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, TrackedWriter, Tracking, UsageError, aggregates
from spark_client.spark_internals.columns import dumps, loads
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.feed import START, Feed, row, rows_of

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

WINDOW: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour")}


def plan_of(tracking: Tracking, writer: TrackedWriter) -> Any:
    """Return the plan that a start of this writer would run."""
    return tracking._assembly.plan(writer, Folder(writer.options_given["checkpointLocation"]))


def run_elsewhere(how: str, feed: Feed, directory: Path, *plans: Any) -> None:
    """Process all that there is for plans in another process, one after the other; see `planned`."""
    paths = [directory / f"{number}.plan" for number in range(len(plans))]
    for path, plan in zip(paths, plans, strict=True):
        path.write_bytes(dumps(plan))
    with open(directory / "plans.log", "wb") as log:
        command = [sys.executable, "-m", "tests.spark.planned", how, str(feed.path), *map(str, paths)]
        done = subprocess.run(command, stdout=log, stderr=log, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, (directory / "plans.log").read_text()[-3000:]


@pytest.mark.thorough
@pytest.mark.parametrize("probe", ["driver", pytest.param("executors", marks=pytest.mark.slow)])
def test_queries_are_made_of_their_plans_in_another_process(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: Any
) -> None:
    """One query sends rows on, after steps; another releases them. Neither has run where it was declared."""
    tracking = Tracking(spark, job, tracker.address, probe=probe)
    source = tracking.source(feed.stream(spark), "in", **WINDOW, identity=["row_id"], front=Marks("is_last"))
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    most = 5  # a step may have what it closes over

    def few(rows: DataFrame, name: str) -> DataFrame:
        return rows.where(F.col(name) <= most)

    kept = source.withColumn("twice", F.col("amount") * 2).where("amount <> 3").transform(few, name="amount")
    sending = kept.writeStream.channel(channel).option("checkpointLocation", str(tmp_path / "cp1"))
    released = tracking.release(
        tracking.receive(channel),
        ["kind"],
        aggs={"sum": F.sum("twice"), "rows": F.count("*"), "big": aggregates.count_if(F.col("twice") > 4)},
        completeness=True,
    )
    results = released.writeStream.option("checkpointLocation", str(tmp_path / "cp2")).receipts(tmp_path / "receipts")
    results.format("parquet").option("path", str(tmp_path / "out"))
    feed.put(*[row(n, n % 50, "ab"[n % 2], "xy"[n % 3 == 0], n % 7) for n in range(60)])
    feed.put(row(60, 51, "a", last=True), row(61, 51, "b", last=True))
    tracking.define()
    run_elsewhere("streamed", feed, tmp_path, plan_of(tracking, sending), plan_of(tracking, results))
    wanted = (
        feed.batch(spark)
        .where("amount <> 3 and amount <= 5")
        .groupBy("tenant", "kind")
        .agg(F.sum(F.col("amount") * 2), F.count("*"), F.count_if(F.col("amount") > 2))
    )
    found = rows_of(tmp_path / "out", spark, "tenant", "kind", "sum", "rows", "big")
    assert found == sorted(tuple(each) for each in wanted.collect())
    assert spark.read.parquet(str(tmp_path / "receipts")).count() == 2
    assert tracking.client.job(job).open_substreams == 0


@pytest.mark.thorough
def test_batches_driven_elsewhere_release_what_the_drivers_query_releases(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """The other process has a plan and no query of Spark's: the runtime opens its run, and reports commits."""

    def declared(name: str) -> tuple[Tracking, TrackedWriter]:
        tracking = Tracking(spark, f"{job}-{name}", tracker.address)
        source = tracking.source(feed.stream(spark), "in", **WINDOW, identity=["row_id"], front=Marks("is_last"))
        released = tracking.release(source, ["kind"], aggs={"sum": F.sum("amount"), "rows": F.count("*")})
        writer = released.writeStream.option("checkpointLocation", tmp_path / f"{name}-cp")
        return tracking, writer.option("path", str(tmp_path / name))

    for hour in range(3):
        rows = [row(n, 60 * hour + n, "ab"[n % 2], "xy"[n % 3 == 0], n, last=n >= 8) for n in range(10)]
        feed.put(*[{**each, "row_id": 10 * hour + n} for n, each in enumerate(rows)])
    elsewhere, writer = declared("driven")
    elsewhere.define()
    run_elsewhere("driven", feed, tmp_path, plan_of(elsewhere, writer))
    here, writer = declared("here")
    writer.start()
    here.process_all_available()
    here.stop()
    columns = ("tenant", "window.start", "kind", "sum", "rows")
    found = rows_of(tmp_path / "driven", spark, *columns)
    assert found == rows_of(tmp_path / "here", spark, *columns)
    assert sum(each[-1] for each in found) == len(feed.rows)


@pytest.mark.parametrize(
    "front",
    [
        None,
        Marks("is_last"),
        Frontier("10 minutes", partition="part", partitions=3),
        Schedule([("a", START, 3)]),
        Schedule(lambda: [("a", START, 3)]),
    ],
    ids=repr,
)
def test_every_front_and_destination_can_be_pickled(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, front: Any
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", **WINDOW, identity=["row_id"], front=front)
    (one, other) = (tracking.channel(name, str(tmp_path / name)) for name in ("one", "other"))
    writer = source.writeStream.route([(one, "amount > 3"), (other, None)], ordinal="kind")
    plan = plan_of(tracking, writer.option("checkpointLocation", str(tmp_path / "cp")))
    again = loads(dumps(plan))
    assert again.stream.input.front.names == plan.stream.input.front.names
    assert [str(condition) for _, condition in again.destination.routes] == ["Column<'amount > 3'>", "Column<'true'>"]
    assert again.settings.mode == "driver"


def test_a_plan_has_nothing_of_its_session(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", **WINDOW, front=Marks("is_last"))
    table = spark.createDataFrame([("a", "Alpha")], "tenant string, name string")
    named = source.join(table, "tenant", "left")
    writer = named.writeStream.foreachBatch(lambda rows, epoch: None).option("checkpointLocation", str(tmp_path))
    with pytest.raises(UsageError, match=r"has a DataFrame, which is of one session. Give functions that make"):
        dumps(plan_of(tracking, writer))
