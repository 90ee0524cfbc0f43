"""Speculation: two attempts of one task run at once, both have reported, and Spark keeps one. Each row counts once.

Spark speculates only on another host than the first attempt's, so never in ``local-cluster``. Here is a cluster of its
own: a master and two workers, on two of the loopback's addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.processes import free_port
from spark_client import Marks, Tracking
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of
from tracker.client import Ended, TrackerClient

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a master that has two workers."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port = free_port()
    master = f"spark://{HOSTS[0]}:{port}"
    log = (tmp_path / "cluster.log").open("wb")

    def begin(host: str, *what: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        command = [str(program), *what, "--host", host, "--webui-port", "0"]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    deploy = "org.apache.spark.deploy"
    begun = [begin(HOSTS[0], f"{deploy}.master.Master", "--port", str(port))]
    for host in HOSTS:
        directory = ["--work-dir", str(tmp_path / f"work-{host}")]
        begun.append(begin(host, f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", *directory, master))
    yield master
    for process in begun:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class SlowAtFirst:
    """A step that lets all rows through, notes that, and takes long over the end of a task's first attempt."""

    said: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        attempt = (task.getLocalProperty("streaming.sql.batchId"), task.partitionId(), task.attemptNumber(), rows)
        with open(self.said, "a", encoding="utf-8") as file:
            file.write(json.dumps(attempt) + "\n")
        if rows and task.attemptNumber() == 0 and task.partitionId() == 0:
            time.sleep(60)  # Spark kills the attempt when the other one has succeeded


@pytest.mark.slow
@pytest.mark.parametrize("seal", [False, True], ids=["units", "sealed"])
def test_of_two_attempts_that_both_have_reported_one_counts(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, cluster: str, seal: bool
) -> None:
    feed.put(*[row(number, number % 120, "ab"[number % 2], "xy"[number % 3 % 2]) for number in range(200)])
    feed.put(*[row(200 + number, 60 * number + 59, tenant, last=True) for number in (0, 1) for tenant in "ab"])
    program = [sys.executable, "-m", "tests.spark.test_speculation", cluster, tracker.address, str(tmp_path), job]
    with (tmp_path / "driver.log").open("wb") as log:
        subprocess.run([*program, str(seal)], stdout=log, stderr=log, check=False, timeout=300)
    assert (tmp_path / "done").exists(), (tmp_path / "driver.log").read_text()[-4000:]

    said = [json.loads(line) for line in (tmp_path / "attempts").read_text().splitlines()]
    attempts = [attempt for _, partition, attempt, rows in said if rows and partition == 0]
    assert {0, 1} <= set(attempts), f"nothing was speculated: {said}"
    counted = feed.batch(spark).groupBy("tenant", F.window("ts", "1 hour").alias("window"), "kind").count()
    expected = sorted(tuple(r) for r in counted.select("tenant", "window.start", "kind", "count").collect())
    assert rows_of(tmp_path / "out", spark, "tenant", "window.start", "kind", "rows") == expected
    with TrackerClient(tracker.address) as client:
        ends = [e.kind for e in client.list_events(job).events if isinstance(e.kind, Ended) and e.kind.segment == "in"]
    assert sum(end.elements for end in ends) == len(feed.rows)
    assert {end.in_flight for end in ends} == {0}


def drive() -> None:
    """Run the driver: one query that counts on its executors and releases."""
    cluster, address, directory, job, seal = sys.argv[1:]
    path = Path(directory)
    builder = SparkSession.builder.master(cluster).appName("speculation")
    options = {
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.sql.files.maxPartitionBytes": "4k",  # several tasks a batch
        "spark.sql.files.openCostInBytes": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
    }
    for key, value in options.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    tracking = Tracking(spark, job, address, probe="executors")
    source = tracking.source(
        Feed(path / "raw").stream(spark),
        "in",
        scope="tenant",
        window=("ts", "1 hour"),
        identity=["row_id"],
        front=Marks("is_last"),
    )
    slow = SlowAtFirst(str(path / "attempts"))
    channel = tracking.channel("clean", str(path / "clean"))
    sending = source.transform(lambda df: df.mapInArrow(slow, df.schema)).writeStream.channel(channel)
    released = tracking.release(tracking.receive(channel), ["kind"], aggs={"rows": F.count("*")}).writeStream
    sending.option("checkpointLocation", path / "cp1").option("seal", seal == "True").start()
    released.option("checkpointLocation", path / "cp2").option("seal", seal == "True").start(path / "out")
    tracking.process_all_available()
    tracking.stop()
    (path / "done").touch()
    os._exit(0)


if __name__ == "__main__":
    drive()
