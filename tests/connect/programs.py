"""Programs of an application that has no JVM: each is run in a process of its own.

``python -m tests.connect.programs NAME URL TRACKER JOB DIRECTORY``: NAME is a function of this module.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.connect.client import SparkConnectClient
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from examples.services.connect import ConnectServer
from spark_client import Marks, TrackedWriter, Tracking, TrackingError, replay
from spark_client.spark_internals.sessions import own_session
from tests.spark.feed import Feed

ROOT = Path(__file__).parents[2]


def run(name: str, server: ConnectServer, tracker: str, job: str, path: Path) -> None:
    """Run a program to its end."""
    words = [sys.executable, "-m", "tests.connect.programs", name, server.url, tracker, job, str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


class Application:
    """A job whose source is a feed: its rows go through a channel into a release, or are released where they are read.

    Attributes:
        path: a directory of the test's own.
    """

    def __init__(self, spark: SparkSession, tracker: str, job: str, path: Path) -> None:
        self.spark, self.tracker, self.job = spark, tracker, job
        self.path = path
        self.tracking = Tracking(spark, job, tracker)
        self.source = self.tracking.source(
            Feed(path / "raw").stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )

    def released(self, stream: Any = None) -> TrackedWriter:
        """Return the writer of sums by kind of what costs less than 7."""
        most = 6  # a step may have what it closes over

        def cheap(rows: DataFrame) -> DataFrame:
            return rows.where(F.col("amount") <= most)

        rows = (self.source if stream is None else stream).transform(cheap)
        sums = self.tracking.release(rows, ["kind"], aggs={"sum": F.sum("amount"), "rows": F.count("*")})
        return sums.writeStream.option("checkpointLocation", self.path / "cp")

    def through_a_channel(self) -> list[Any]:
        channel = self.tracking.channel("clean", str(self.path / "clean"))
        sending = self.source.writeStream.channel(channel).option("checkpointLocation", self.path / "cp-in").start()
        return [sending, self.released(self.tracking.receive(channel)).start(self.path / "out")]


def night(it: Application) -> None:
    """Process everything that is there, and what it has ended."""
    query = it.released().trigger(availableNow=True).start(it.path / "out")
    query.awaitTermination()
    assert not query.isActive


def detached(it: Application) -> None:
    """End the application, while its queries go on."""
    it.through_a_channel()
    os._exit(0)  # nobody stops the session


def dry(it: Application) -> None:
    """Judge promises on the rows of the feed, which arrive three minutes after their time."""
    rows = Feed(it.path / "raw").batch(it.spark).withColumn("arrived", F.col("ts") + F.expr("INTERVAL 3 MINUTES"))
    (it.path / "dry.json").write_text(json.dumps(replay(rows, "ts", "arrived", "tenant").document()))


def alone(it: Application) -> None:
    """End the application, while its query goes on, which releases what it reads."""
    it.released().start(it.path / "out")
    os._exit(0)


def failing(it: Application) -> None:
    """Let a function that gets results fail, and start it again, while nothing comes, so that it does not."""
    full, out = it.path / "full", str(it.path / "out")

    def write(rows: DataFrame, epoch: int) -> None:
        if full.exists():
            raise RuntimeError("the disk is full")
        rows.write.mode("overwrite").parquet(f"{out}/epoch={epoch}")

    full.touch()
    query = it.released().foreachBatch(write).start()
    with pytest.raises(TrackingError, match="the disk is full"):
        it.tracking.process_all_available()
    assert not query.isActive
    it.tracking.stop()
    full.unlink()
    again = Application(it.spark, it.tracker, it.job, it.path)
    again.released().foreachBatch(write).start()
    again.tracking.process_all_available()
    again.tracking.stop()


def held(it: Application) -> None:
    """Stop a query in the middle of a batch, which goes on whatever its process gets."""
    inside, go, over = (it.path / name for name in ("inside", "go", "over"))

    def wait(rows: DataFrame) -> DataFrame:
        if rows.isStreaming:  # this is the declaration
            return rows
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        inside.touch()
        while not go.exists():
            time.sleep(0.05)
        over.touch()
        return rows

    query = it.released(it.source.transform(wait)).start(it.path / "out")
    while not inside.exists():
        time.sleep(0.05)
    query.stop()
    os._exit(0)


def collected(it: Application) -> None:
    """Have a query's session be collected in a thread that the calls of all sessions share."""
    threads = ExecutePlanResponseReattachableIterator._get_or_create_release_thread_pool()
    sessions = [own_session(it.spark)]

    def collect() -> None:
        sessions.clear()
        gc.collect()

    threads.submit(collect).result(120)
    assert not threads._shutdown
    assert it.spark.range(3).count() == 3


def left(it: Application) -> None:
    """Ask nothing of the server for a query's session when Python ends: one that is gone is asked for ten minutes."""
    asked: list[SparkConnectClient] = []
    given: Any = it.spark
    own: Any = own_session(given)
    SparkConnectClient.execute_command = lambda client, *_: asked.append(client)  # type: ignore[method-assign, assignment]
    atexit._run_exitfuncs()
    assert given.client in asked
    assert own.client not in asked
    os._exit(0)


PROGRAMS: dict[str, Callable[[Application], None]] = {
    each.__name__: each for each in (night, detached, dry, alone, failing, held, collected, left)
}


def main() -> None:
    name, url, tracker, job, path = sys.argv[1:]
    spark = SparkSession.builder.remote(url).getOrCreate()
    PROGRAMS[name](Application(spark, tracker, job, Path(path)))
    spark.stop()


if __name__ == "__main__":
    main()
