"""A batch that is replayed after the sink's commit: the driver dies between the sink's write and Spark's commit.

The driver is a process of its own, killed with SIGKILL at that very place, and started again. Each way of writing is
one that documentation describes. A reader of the table decides whether a way is right.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.exactness.report import Fault
from benchmarks.exactness.stepwise import BIDS, TUMBLING, Feed, figures
from benchmarks.exactness.tracked import Windows
from benchmarks.exactness.workload import Plan, Site, Workload, make
from examples.flights.agent import TrackerProcess
from examples.flights.progress import Progress
from examples.flights.spark import local_session
from spark_client import Schedule, Tracking

FAULT = "a batch that is replayed after the sink's commit"
_PLAN = Plan("replay", 30, (Site("north", (0,)), Site("south", (1,))), slow=0, step=10)
#: The ways by the names of the command line.
WAYS = {
    "spark": {
        "append": "Spark, `foreachBatch` that appends to a Parquet table",
        "files": "Spark, its file sink, read through its own log",
        "listed": "Spark, its file sink, read by another reader, which lists the files",
    },
    "ours": {"release": "Spark with the tracker, `start(path)`, read by a reader that lists the files"},
}


def run(engines: Sequence[str], progress: Progress) -> list[Fault]:
    """Kill and start again, for each way of writing."""
    return [_met(way, name, progress) for engine in engines for way, name in WAYS.get(engine, {}).items()]


def _met(way: str, name: str, progress: Progress) -> Fault:
    progress.say(f"{FAULT}: {name}")
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        with TrackerProcess(directory / "tracker") as tracker:
            first = _driver(way, directory, tracker.address, dies=True)
            written = _written_and_not_committed(directory, way)
            second = _driver(way, directory, tracker.address, dies=False)
        if (first, written, second) != (-signal.SIGKILL, True, 0):
            log = (directory / "driver.log").read_text()[-3000:]
            raise RuntimeError(f"{name}: ended with {first} and {second}, in between: {written}: {log}")
        came = Counter(tuple(line.split()) for line in (directory / "read.txt").read_text().splitlines())
    doubled = sum(count > 1 for count in came.values())
    right = not doubled
    return Fault(FAULT, name, right, f"{len(came)} windows in the table, {doubled} of them twice")


def _driver(way: str, directory: Path, tracker: str, dies: bool) -> int:
    command = [
        sys.executable,
        "-m",
        "benchmarks.exactness.replays",
        way,
        str(directory),
        tracker,
        *(["dies"] if dies else []),
    ]
    with (directory / "driver.log").open("a") as log:
        return subprocess.run(command, stdout=log, stderr=log, start_new_session=True).returncode


def _written_and_not_committed(directory: Path, way: str) -> bool:
    """Return whether the batch that has written results is not in Spark's commit log."""
    committed = max((int(entry.name) for entry in (directory / "cp" / "commits").glob("[0-9]*")), default=-1)
    planned = max(int(entry.name) for entry in (directory / "cp" / "offsets").glob("[0-9]*"))
    if way == "release":
        written = max((int(entry.name.split("=")[1]) for entry in (directory / "out").glob("epoch=*")), default=-1)
        return written == planned > committed
    return planned > committed and any((directory / "out").glob("*.parquet"))


def _die() -> None:
    """Kill this driver, its JVM and all workers by SIGKILL."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def drive(way: str, directory: Path, tracker: str, dies: bool) -> None:
    """Drive the workload; die when the first results are written, or go on to the end.

    Args:
        way: of writing.
        directory: of everything.
        tracker: its address.
        dies: whether it does.
    """
    workload = make(_PLAN)
    out = str(directory / "out")
    session = directory / ("first" if dies else "second")
    session.mkdir()
    with local_session(session) as spark:
        feed = Feed(directory, exist=not dies)
        if way == "release":
            _tracked(spark, feed, workload, directory, tracker, dies)
        else:
            _plain(spark, feed, workload, directory, way, dies)
        # Another reader knows nothing of Spark's log: it reads all files that are there.
        rows = spark.read.parquet(*sorted(map(str, Path(out).glob("**/*.parquet")))) if way != "files" else None
        rows = spark.read.parquet(out) if rows is None else rows
        lines = [
            f"{tenant} {begin}" for tenant, begin in rows.select("tenant", F.unix_millis("window.start")).collect()
        ]
        (directory / "read.txt").write_text("".join(f"{line}\n" for line in lines))


def _plain(spark: SparkSession, feed: Feed, workload: Workload, directory: Path, way: str, dies: bool) -> None:
    counted = (
        feed.stream(spark)
        .withWatermark("at", "0 seconds")
        .where(BIDS)
        .groupBy("tenant", F.window("at", TUMBLING))
        .agg(*(each.alias(name) for name, each in figures().items()))
    )
    out = str(directory / "out")

    def append(rows: DataFrame, _: int) -> None:
        written = rows.count()
        rows.write.mode("append").parquet(out)
        if dies and written:
            _die()

    writer = counted.writeStream.outputMode("append").option("checkpointLocation", str(directory / "cp"))
    query = (writer.foreachBatch(append) if way == "append" else writer.format("parquet").option("path", out)).start()
    for step in workload.steps:
        feed.publish(step)
        query.processAllAvailable()
    query.stop()
    if dies:  # Spark's own sink has written; its batch's entry in the commit log has not been: as if killed before it
        newest = max((directory / "cp" / "commits").glob("[0-9]*"), key=lambda entry: int(entry.name))
        newest.unlink()
        _die()


def _tracked(spark: SparkSession, feed: Feed, workload: Workload, directory: Path, tracker: str, dies: bool) -> None:
    tracking = Tracking(spark, "replay", tracker)
    rows = feed.stream(spark)
    source = tracking.source(rows, "events", scope="tenant", window=("at", TUMBLING), front=Schedule())
    counts = Windows(partial(tracking.expect, source))
    out = directory / "out"
    if dies:
        sys.addaudithook(_death_after_results(out))
    release = tracking.release(source.where(BIDS), aggs=figures()).writeStream
    release.option("checkpointLocation", str(directory / "cp")).start(str(out))
    for step in workload.steps:
        feed.publish(step)
        counts.take(step)
        tracking.process_all_available()
    tracking.stop()


def _death_after_results(out: Path):  # type: ignore[no-untyped-def]
    """Kill this driver, as an audit hook, with its first step on the disk after the first results have appeared."""

    def hook(event: str, _: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.mkdir", "socket.connect") and any(out.glob("epoch=*/*.parquet")):
            _die()

    return hook


if __name__ == "__main__":
    drive(sys.argv[1], Path(sys.argv[2]), sys.argv[3], "dies" in sys.argv[4:])
