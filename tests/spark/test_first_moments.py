"""A driver that is killed in its first moments can start again, whatever kind of query it has begun."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Tracking, TrackingError, channel_tables
from spark_client.spark_internals.checkpoints import clear_unfinished
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import Feed, row, rows_of

LOG_PACKAGE = "streaming" if pyspark.__version__ < "4.1" else "streaming.checkpointing"
MANAGERS = ["FileSystemBasedCheckpointFileManager", "FileContextBasedCheckpointFileManager"]


def leave_unfinished(spark: SparkSession, manager: str, entry: Path, kept: list[Any]) -> None:
    """Leave what Spark itself has on the disk while it writes an entry of a log: made by the class that writes it."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(str(entry))
    made = getattr(jvm, f"org.apache.spark.sql.execution.{LOG_PACKAGE}.{manager}")(
        path.getParent(),
        spark._jsparkSession.sessionState().newHadoopConf(),
    )
    made.mkdirs(path.getParent())
    stream = made.createAtomic(path, False)
    stream.write(bytearray(b"v1\n{"))
    stream.hflush()
    kept.append(stream)  # Spark's own is gone without being closed, too


def unfinished_batch(spark: SparkSession, manager: str, checkpoint: Path, kept: list[Any]) -> None:
    """Leave a checkpoint as it is when a driver is killed while it writes down its first batch."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    leave_unfinished(spark, manager, checkpoint / "offsets" / "0", kept)
    assert not (checkpoint / "offsets" / "0").exists()
    assert list((checkpoint / "offsets").iterdir())


class Job:
    """Queries of one kind, each with its checkpoint, and what they have to give in the end."""

    def __init__(
        self,
        spark: SparkSession,
        tracking: Tracking,
        feed: Feed,
        path: Path,
        given: dict[int, list[tuple[Any, ...]]],
    ) -> None:
        self.spark, self.tracking, self.feed, self.path = spark, tracking, feed, path
        self.given = given  # by a function, in each batch

    def source(self, front: Any = None) -> Any:
        return self.tracking.source(
            self.feed.stream(self.spark),
            "in",
            scope="tenant" if front is None else None,
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last") if front is None else front,
        )

    def release(self, stream: Any, checkpoint: str) -> None:
        released = self.tracking.release(stream, aggs={"rows": F.count("*")})
        writer = released.writeStream.receipts(self.path / "receipts")
        writer.option("checkpointLocation", self.path / checkpoint).start(self.path / "out")

    def through(self, channel: Any) -> None:
        sending = self.source().writeStream.channel(channel).option("checkpointLocation", self.path / "cp1")
        received = self.tracking.receive(channel)
        sending.start()
        self.release(received, "cp2")

    def finish(self) -> None:
        """Finish the front: its source has sent everything."""
        front = next(live.front for query in self.tracking._running.queries for live in query.fronts)
        self.tracking._running.finish(front)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(chain(*self.given.values())) or rows_of(self.path / "out", self.spark, "rows")


def a_release(job: Job) -> None:
    job.release(job.source(), "cp1")


def a_channel_of_files(job: Job) -> None:
    job.through(job.tracking.channel("clean", str(job.path / "clean")))


def a_table(job: Job) -> None:
    database = str(job.path / "channel.db")
    with sqlite3.connect(database) as connection:
        for statement in channel_tables("clean"):
            connection.execute(statement)
    job.through(
        job.tracking.table_channel(
            "clean", lambda: sqlite3.connect(database, timeout=60), "clean", str(job.path / "clean"), placeholder="?"
        )
    )


def routes(job: Job) -> None:
    clean = job.tracking.channel("clean", str(job.path / "clean"))
    other = job.tracking.channel("other", str(job.path / "other"))
    routed = job.source().writeStream.route([(clean, "amount > 0"), (other, None)])
    routed = routed.option("checkpointLocation", job.path / "cp1")
    received = job.tracking.receive(clean)
    job.tracking.receive(other).writeStream.foreachBatch(lambda *_: None).option(
        "checkpointLocation", job.path / "cp3"
    ).start()
    routed.start()
    job.release(received, "cp2")


def a_watermark(job: Job) -> None:
    source = job.source(Frontier("0 seconds"))
    counted = job.tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "1 hour"))

    def take(rows: Any, epoch: int) -> None:
        job.given[epoch] = [(r.rows,) for r in rows.collect()]

    writer = job.tracking.write_stream(counted.agg(F.count("*").alias("rows")), source).foreachBatch(take)
    writer.option("checkpointLocation", job.path / "cp1").start()


KINDS: dict[Callable[[Job], None], list[str]] = {
    a_release: ["cp1"],
    a_channel_of_files: ["cp1", "cp2"],
    a_table: ["cp1", "cp2"],
    routes: ["cp1", "cp2", "cp3"],
    a_watermark: ["cp1"],
}


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "manager"),
    [
        *((a_release, manager) for manager in MANAGERS),
        *(pytest.param(kind, MANAGERS[0], marks=pytest.mark.slow) for kind in KINDS if kind is not a_release),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_driver_killed_while_it_wrote_down_its_first_batch_starts_again(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, kind: Any, manager: str
) -> None:
    kept: list[Any] = []
    for checkpoint in KINDS[kind]:
        unfinished_batch(spark, manager, tmp_path / checkpoint, kept)
    ids = {checkpoint: json.loads((tmp_path / checkpoint / "metadata").read_text())["id"] for checkpoint in KINDS[kind]}
    feed.put(row(1, 1), row(2, 2))
    with Tracking(spark, job, tracker.address) as tracking:
        queries = Job(spark, tracking, feed, tmp_path, {})
        kind(queries)
        tracking.process_all_available()
        feed.put(row(3, 3, last=True), row(4, 61, tenant="b", last=True))
        tracking.process_all_available()
        queries.finish()
        tracking.process_all_available()
        assert queries.rows() == [(1,), (3,)]
        assert tracking.client.job(job).in_flight == 0
    for checkpoint, query in ids.items():
        assert json.loads((tmp_path / checkpoint / "metadata").read_text())["id"] == query
    for stream in kept:
        stream.cancel()


BEING_WRITTEN = [".0.1b0e8c62-5a1c-4a53-9d0c-6f0f3a1d2c11.tmp", "..0.1b0e8c62-5a1c-4a53-9d0c-6f0f3a1d2c11.tmp.crc"]


def made(checkpoint: Path, *names: str) -> dict[str, bytes]:
    for name in names:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(name)
    return there(checkpoint)


def there(checkpoint: Path) -> dict[str, bytes]:
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}


OTHERS = ["metadata", "sources/0/0", "sources/0/.1.x.tmp", "tracker/log.json", "tracker/state/_part.0123abcd/content"]


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_only_what_was_being_written_goes(tmp_path: Path, log: str) -> None:
    before = made(tmp_path, *OTHERS)
    made(tmp_path, *(f"{log}/{name}" for name in BEING_WRITTEN))
    clear_unfinished(Folder(tmp_path))
    assert there(tmp_path) == before


@pytest.mark.parametrize("log", ["offsets", "commits"])
@pytest.mark.parametrize("entry", ["0", "7", ".0.crc", "notes.txt", "0.tmp", "7.compact"])
def test_nothing_goes_where_there_is_any_entry(tmp_path: Path, log: str, entry: str) -> None:
    before = made(
        tmp_path, *OTHERS, f"{log}/{entry}", "state/0/0/1.delta", *(f"offsets/{name}" for name in BEING_WRITTEN)
    )
    clear_unfinished(Folder(tmp_path))
    assert there(tmp_path) == before


def test_where_no_query_was_nothing_is_made(tmp_path: Path) -> None:
    clear_unfinished(Folder(tmp_path / "cp"))
    assert not (tmp_path / "cp").exists()


#: Of how many steps one is tried; all of them take minutes.
SOME, ALL = 41, 1


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "stride"),
    [
        (a_release, SOME),
        *(
            pytest.param(kind, ALL, marks=pytest.mark.slow)
            for kind in (a_release, a_channel_of_files, routes, a_watermark)
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_driver_that_dies_at_a_step_of_its_own_starts_again(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, kind: Any, stride: int
) -> None:
    """Each step of a life, from its first to its last, is once the one before which it ends."""
    for at in count(0, stride):
        path = tmp_path / str(at)
        feed = Feed(path / "raw")
        feed.put(row(1, 1), row(2, 2))
        feed.put(row(3, 3, last=True), row(4, 61, tenant="b", last=True))
        driver = Driver(path)
        given: dict[int, list[tuple[Any, ...]]] = {}
        for dies_at in (at, None):
            failing = (KilledError, TrackingError, StreamingQueryException)
            dying: Any = nullcontext() if dies_at is None else suppress(*failing)
            with driver.living(dies_at), dying, Tracking(spark, f"{job}-{at}", tracker.address) as tracking:
                queries = Job(spark, tracking, feed, path, given)
                kind(queries)
                tracking.process_all_available()
                queries.finish()
                tracking.process_all_available()
            if not driver.dead:
                break
        assert queries.rows() == [(1,), (3,)], f"it died before step {at}"
        if dies_at is not None:
            return  # it has lived to its end
    raise AssertionError("not reached")
