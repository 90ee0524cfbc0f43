"""The program that is killed: a driver with two or three queries, on executors that are processes of their own.

Run with the round's directory. It goes on until the file ``order`` says ``stop`` or ``drain``, or a query fails.
"""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.lake.services import settings as lake
from examples.services import jars
from examples.services.connect import ConnectServer
from spark_client import Channel, Marks, Tracking
from spark_client.counting.probes import Reporting
from spark_client.counting.runs import Run
from spark_client.runtime import assembly
from spark_client.storage.directories import publish
from tests.chaos.plan import CATALOG, PLACE, TOPIC, Shape
from tests.chaos.spark_home import java_options
from tests.spark.feed import SCHEMA
from tracker.client import DrainState, Outcome, Report, TrackerClient

FAILED = 3  #: exit code: a query has failed
_FAILS_AT_ONCE, _FAILS_AT_THE_END = 0.06, 0.2  #: of all first attempts: fail before the first row; after the last
_FAILURES = 3  #: attempts of a task that may fail; Spark's own limit is far above
_DRAIN = 600.0


@dataclass(frozen=True)
class Flaky:
    """A step that fails some attempts, before their first row or after their last, and takes its time.

    Attributes:
        shape: of the round.
        place: where it stands.
        failures: a file that grows by a byte with each failure.
    """

    shape: Shape
    place: str
    failures: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rng = dice(self.shape, self.place)
        roll = rng.random()
        task = TaskContext.get()
        if task is not None and task.attemptNumber() >= _FAILURES:
            roll = 1.0
        if roll < _FAILS_AT_ONCE:
            fail(self.failures, self.place)
        yield from batches
        time.sleep(rng.uniform(0, 0.2))
        if roll < _FAILS_AT_THE_END:
            fail(self.failures, self.place)


@dataclass(frozen=True)
class FlakyReporting(Reporting):
    """Reporting by tasks of which some fail after they have reported.

    Attributes:
        shape: of the round.
        failures: a file that grows by a byte with each failure.
    """

    _: KW_ONLY
    shape: Shape
    failures: str

    def send(
        self, batch: tuple[str, str, int], unit: str, fill: Callable[[Report], object], away: bool = False
    ) -> list[tuple[str, bytes | None]]:
        task = TaskContext.get()
        assert task is not None
        if self.shape.without == "units":  # a repetition is not known for what it is
            unit = f"{unit}#{task.taskAttemptId()}"
        units = super().send(batch, unit, fill, away)
        if task.attemptNumber() < _FAILURES and dice(self.shape, unit.partition("#")[0]).random() < _FAILS_AT_THE_END:
            fail(self.failures, unit)
        return units


def fail(failures: str, place: str) -> NoReturn:
    """Fail an attempt, and count that in a file."""
    with open(failures, "ab") as file:
        file.write(b".")
    raise RuntimeError(f"chaos: an attempt fails at {place}")


@dataclass(frozen=True)
class Splits:
    """Work that is not deterministic: cuts some rows in two, and others in each attempt. Sums stay what they are."""

    shape: Shape

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rng = dice(self.shape, "splits")
        for batch in batches:
            made = []
            for one in batch.to_pylist():
                if one["kind"] != "z" and rng.random() < 0.3:
                    part = rng.randrange(1, one["amount"])
                    made.append({**one, "piece": 1, "whole": 0, "amount": part})
                    one["amount"] -= part
                made.append(one)
            yield pa.RecordBatch.from_pylist(made, schema=batch.schema)


def dice(shape: Shape, place: str) -> random.Random:
    """Return the chances of one attempt of one task: the same in each play of the round, others in another attempt."""
    task = TaskContext.get()
    assert task is not None
    batch = task.getLocalProperty("streaming.sql.batchId")
    return random.Random(f"{shape.seed} {place} {batch} {task.partitionId()} {task.attemptNumber()}")


def session(shape: Shape, path: Path) -> SparkSession:
    """Start two executors of one core each. One that is silent for some seconds is given up: so zombies come to be."""
    checkpoints = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    options: dict[str, Any] = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "512m",
        "spark.deploy.maxExecutorRetries": -1,
        "spark.task.maxFailures": 100,
        "spark.stage.maxConsecutiveAttempts": 100,
        "spark.excludeOnFailure.enabled": False,
        "spark.network.timeout": "12s",
        "spark.network.timeoutInterval": "2s",
        "spark.executor.heartbeatInterval": "1s",
        "spark.rpc.askTimeout": "30s",
        "spark.python.authenticate.socketTimeout": "60s",  # a machine that is busy takes long to start a worker
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.checkpointFileManagerClass": checkpoints,
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.executor.extraJavaOptions": java_options(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    if shape.brokers:
        options["spark.jars"] = jars.connector()
    if shape.store:
        options |= {"spark.jars": ",".join([jars.lake(), jars.s3a()]), **lake(shape.store, path / CATALOG)}
        options["spark.hadoop.fs.s3a.fast.upload.buffer"] = "bytebuffer"  # not the disk, whose files have no sums here
    if shape.connect:
        server = ConnectServer(path, {key: str(value) for key, value in options.items()})
        server.start()
        return SparkSession.builder.remote(server.url).getOrCreate()
    return SparkSession.builder.config(map=options).appName("chaos").getOrCreate()


def pipeline(spark: SparkSession, shape: Shape, path: Path) -> Tracking:
    """Start the job."""
    failures = str(path / "task-failures")

    def flaky(place: str) -> Flaky:
        return Flaky(shape, place, failures)

    def fed() -> DataFrame:
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).json(str(path / "raw"))
        return files.withColumns({"piece": F.lit(0), "whole": F.lit(1)})

    assembly.Reporting = partial(FlakyReporting, shape=shape, failures=failures)  # type: ignore[assignment, attr-defined]
    tracking = Tracking(spark, shape.job, shape.server, probe="executors", retry_for=120)
    raw = fed()

    def step(place: str) -> Callable[[DataFrame], DataFrame]:
        def taken(rows: DataFrame) -> DataFrame:
            import_module("tests.chaos.job").dawdle(shape)  # over Spark Connect, where the batches are
            return rows.mapInArrow(flaky(place), rows.schema)

        return taken

    source = tracking.source(
        raw.mapInArrow(Splits(shape), raw.schema) if shape.splits else raw,
        "in",
        scope="tenant",
        window=("ts", "1 hour"),
        identity=["row_id", "piece"],
        front=Marks("is_last"),
        counted=True,
    )
    place = f"s3a://{PLACE}" if shape.store else str(path)
    channel = _channel(tracking, shape, place)
    sending = source.transform(step("send")).where("kind <> 'z'")
    queries = [sending.writeStream.channel(channel)]
    received = tracking.receive(channel).transform(step("receive"))
    released = tracking.release(received, ["kind"], aggs={"rows": F.sum("whole"), "amount": F.sum("amount")})
    results = released.writeStream.receipts(f"{place}/receipts")
    if shape.table == "iceberg":
        spark.sql("create namespace if not exists lake.chaos")
        queries.append(results.format("iceberg").option("path", "lake.chaos.out"))
    else:
        queries.append(results.format(shape.table or "parquet").option("path", f"{place}/out"))
    if shape.audit:

        def twice(rows: DataFrame, epoch: int) -> None:
            rows.count()
            publish(path / "audit" / f"epoch={epoch}", rows.write.parquet)

        audited = tracking.source(
            fed(),
            "audit",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
            counted=True,
        )
        flaked = audited.transform(step("audit"))
        queries.append(flaked.writeStream.foreachBatch(twice))
    for number, query in enumerate(queries, 1):
        query.option("checkpointLocation", f"{place}/cp{number}").option("seal", shape.seal).start()
    return tracking


def _channel(tracking: Tracking, shape: Shape, place: str) -> Channel:
    if not shape.brokers:
        return tracking.channel(TOPIC, f"{place}/{TOPIC}", keep=True)  # the judgement counts what was sent
    at_least_once = {"kafka.enable.idempotence": "false", "kafka.request.timeout.ms": "3000"}
    protected = shape.without != "labels"
    return tracking.kafka_channel(
        TOPIC, TOPIC, shape.brokers, f"{place}/{TOPIC}", deduplicate=protected, options=at_least_once
    )


@cache
def dawdle(shape: Shape) -> None:
    """Have Spark take longer from a batch's report to its commit, so that drivers are often killed between the two."""
    send = Run.send

    def send_and_dawdle(self: Run, report: Report, epoch: int) -> list[Outcome]:
        outcomes = send(self, report, epoch)
        time.sleep(random.Random(f"{shape.seed} {epoch}").uniform(0, 1))
        return outcomes

    Run.send = send_and_dawdle  # type: ignore[method-assign]


def commit_at_once() -> None:
    """Have an epoch take effect when it is reported, not when Spark has committed its batch."""
    send = Run.send

    def send_and_commit(self: Run, report: Report, epoch: int) -> list[Outcome]:
        outcomes = send(self, report, epoch)
        self._producer.commit(epoch)
        return outcomes

    Run.send = send_and_commit  # type: ignore[method-assign]


def drained(shape: Shape) -> bool:
    """Return whether the job has been drained."""
    with TrackerClient(shape.server, retry_for=120) as client:
        return client.get_drain(shape.job).state is DrainState.DRAINED


def main(path: Path) -> None:
    """Run the job until it is asked to stop, or fails."""
    shape = Shape.read(path / "shape.json")
    if shape.without == "commit":
        commit_at_once()
    if (path / "order").exists() and drained(shape):
        return  # by the driver before this one, which was killed before it could end
    tracking = pipeline(session(shape, path), shape, path)
    (path / "started").touch()
    while not (path / "order").exists():
        time.sleep(0.2)
        tracking.check()
    if (path / "order").read_text() == "drain":
        tracking.drain(_DRAIN)
    tracking.stop()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception:
        traceback.print_exc()
        os._exit(FAILED)  # as a program that crashes: nothing is closed
    os._exit(0)  # Spark's own end takes long, and no round learns anything from it
