"""The files of a checkpoint, and when Spark writes them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryListener

from examples.services import jars
from spark_client.errors import TrackingError
from spark_client.spark_internals.checkpoints import (
    Batch,
    batches_of,
    clear_unfinished,
    files_after,
    is_of_files,
    last_begun,
    last_commit,
    last_of_files,
    lines_of,
    planned,
    positions,
    query_id,
    started_query,
)
from spark_client.storage.folder import Folder
from tests.spark.feed import Feed, row
from tests.spark.test_first_moments import LOG_PACKAGE, MANAGERS, unfinished_batch
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def entry(log: str, number: int, manager: str) -> set[str]:
    """Return the files of an entry of a log. One of the managers leaves checksums on this file system."""
    checksum = {f"{log}/.{number}.crc"} if manager == "FileContextBasedCheckpointFileManager" else set[str]()
    return {f"{log}/{number}"} | checksum


def copy(checkpoint: Path, epoch: int, to: Path) -> list[str]:
    """Copy what Spark needs to go on after a batch. Return the names of the files."""
    names = list(files_after(Folder(checkpoint), epoch))
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkpoint / name, to / name)
    return names


def numbers(rows: DataFrame) -> list[int]:
    return sorted(each.row_id for each in rows.select("row_id").collect())


def test_a_batch_is_noted_before_it_begins_and_after_the_last_commit(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    for number in range(3):
        feed.put(row(number, number))
    seen: list[tuple[int, int | None, int | None, str | None]] = []
    checkpoint = Folder(tmp_path / "cp")

    def look(rows: DataFrame, epoch: int) -> None:
        seen.append((epoch, last_begun(checkpoint), last_commit(checkpoint), query_id(checkpoint)))

    query = run(feed.stream(spark), tmp_path / "cp", look)
    own = str(query.id)
    assert seen == [(0, 0, None, own), (1, 1, 0, own), (2, 2, 1, own)]
    assert (last_begun(checkpoint), last_commit(checkpoint)) == (2, 2)
    assert [positions(checkpoint, epoch) for epoch in (0, 2, 3)] == [
        [{"logOffset": 0}],
        [{"logOffset": 2}],
        [],
    ]


def test_a_checkpoint_has_its_querys_id_when_the_start_is_announced(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    seen: list[tuple[str, str | None]] = []

    class Started(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            seen.append((str(event.id), query_id(Folder(tmp_path / "cp"))))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    begun: list[int] = []
    feed.put(row(1, 1))
    listener = Started()
    spark.streams.addListener(listener)
    try:
        query = run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: begun.append(len(seen)))
    finally:
        spark.streams.removeListener(listener)
    assert seen == [(str(query.id), str(query.id))]
    assert begun == [1], "the announcement comes before the first batch"


def test_a_checkpoint_in_which_nothing_was_started_has_no_query(tmp_path: Path) -> None:
    assert (query_id(Folder(tmp_path)), last_begun(Folder(tmp_path)), last_commit(Folder(tmp_path))) == (
        None,
        None,
        None,
    )
    assert planned(Folder(tmp_path), 0) == Batch()
    with pytest.raises(TrackingError, match="no query was started with the checkpoint"):
        started_query(Folder(tmp_path))


def test_a_position_is_known_of_sources_whose_offsets_have_fields(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 1))
    silent = Feed(tmp_path / "silent").stream(spark).select("row_id")
    counting = spark.readStream.format("rate").load().select(F.col("value").alias("row_id"))
    both = feed.stream(spark).select("row_id").unionByName(silent).unionByName(counting)
    run(both, tmp_path / "cp", lambda rows, epoch: None)
    written = lines_of(Folder(tmp_path / "cp"), "offsets/0")[2:]
    assert (written[:2], written[2].isdigit()) == (['{"logOffset":0}', "-"], True)
    assert positions(Folder(tmp_path / "cp"), 0) == [{"logOffset": 0}]
    (batch,) = batches_of(Folder(tmp_path / "cp"))
    assert [last_of_files(batch, source) for source in range(4)] == [0, -1, None, None]


def test_where_kafka_began_is_read_as_its_connector_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    if pyspark.__version__ < "4.2":
        pytest.skip("the connector that is fetched is made for later releases of Spark")
    try:
        jars.connector()
    except jars.MissingError as error:
        pytest.skip(str(error))
    connector: Any = spark._jvm.org.apache.spark.sql.kafka010  # type: ignore[union-attr]
    log = connector.KafkaSourceInitialOffsetWriter(spark._jsparkSession, str(tmp_path / "sources" / "0"))
    began = {"flights": {"0": 23, "1": 0}}
    log.add(0, connector.KafkaSourceOffset(connector.JsonUtils.partitionOffsets(json.dumps(began))))
    assert positions(Folder(tmp_path), None) == [began]
    assert positions(Folder(tmp_path), 0) == []


@pytest.mark.parametrize("version", ["v2", "v10"])
def test_what_another_version_has_written_down_is_not_known(
    spark: SparkSession, feed: Feed, tmp_path: Path, version: str
) -> None:
    feed.put(row(1, 1))
    run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: None)
    entry = tmp_path / "cp" / "offsets" / "0"
    first, *lines = lines_of(Folder(entry.parent), entry.name)
    assert first == "v1"
    entry.write_text("\n".join([version, *lines]))
    assert (planned(Folder(tmp_path / "cp"), 0), positions(Folder(tmp_path / "cp"), 0)) == (Batch(), [])
    assert batches_of(Folder(tmp_path / "cp")) == []


def test_a_plan_has_a_line_for_each_source_in_the_plans_order(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    other = Feed(tmp_path / "other")
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    other.put(row(9, 9))
    before = time.time_ns() // 1_000_000 * 1000
    both = feed.stream(spark).unionByName(other.stream(spark))
    run(both, tmp_path / "cp", lambda rows, epoch: None)
    first, second = planned(Folder(tmp_path / "cp"), 0), planned(Folder(tmp_path / "cp"), 1)
    assert first.at is not None
    assert second.at is not None
    assert before <= first.at <= second.at <= time.time_ns() // 1000
    assert first.since is None
    places = [
        [json.loads(line) for line in str(each).splitlines()] for each in (first.until, second.since, second.until)
    ]
    assert places == [
        [{"logOffset": 0}, {"logOffset": 0}],
        [{"logOffset": 0}, {"logOffset": 0}],
        [{"logOffset": 1}, {"logOffset": 0}],
    ]
    assert is_of_files(places[0][0])
    # Places of sources of this package, in which a sender may have any name.
    assert not any(map(is_of_files, ({}, {"5f0c": 3}, {"logOffset": 3, "5f0c": 3})))


def test_a_batch_that_failed_is_run_again_as_it_was_written_down(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    stream = spark.readStream.schema(feed.stream(spark).schema).json(str(feed.path))
    tried: list[tuple[int, list[int], Batch]] = []

    def fail(rows: DataFrame, epoch: int) -> None:
        tried.append((epoch, numbers(rows), planned(Folder(tmp_path / "cp"), epoch)))
        if len(tried) == 1:
            raise RuntimeError("once")

    with pytest.raises(StreamingQueryException, match="once"):
        run(stream, tmp_path / "cp", fail)
    assert (last_begun(Folder(tmp_path / "cp")), last_commit(Folder(tmp_path / "cp"))) == (0, None)
    feed.put(row(3, 3))
    run(stream, tmp_path / "cp", fail)
    assert [(epoch, taken) for epoch, taken, _ in tried] == [(0, [1, 2]), (0, [1, 2]), (1, [3])]
    assert tried[0][2] == tried[1][2] != Batch()


@pytest.mark.thorough
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_copied_checkpoint_continues_from_its_batch(
    spark: SparkSession, feed: Feed, conf: Any, tmp_path: Path, manager: str
) -> None:
    conf(MANAGER, f"org.apache.spark.sql.execution.{LOG_PACKAGE}.{manager}")
    seen: list[tuple[int, list[int]]] = []

    def note(rows: DataFrame, epoch: int) -> None:
        seen.append((epoch, numbers(rows)))

    def fail(rows: DataFrame, epoch: int) -> None:
        if epoch == 12:  # more entries than Spark's own log of files has in one
            raise RuntimeError("planned, and not committed")

    for number in range(13):
        feed.put(row(number, number))
    with pytest.raises(StreamingQueryException):
        run(feed.stream(spark), tmp_path / "cp", fail)
    assert (last_begun(Folder(tmp_path / "cp")), last_commit(Folder(tmp_path / "cp"))) == (12, 11)
    (tmp_path / "cp" / "tracker").mkdir()
    (tmp_path / "cp" / "tracker" / "mine").touch()
    copied = copy(tmp_path / "cp", 11, tmp_path / "copy")
    numbered = {name for number in range(12) for log in ("offsets", "commits") for name in entry(log, number, manager)}
    assert {name for name in copied if name.startswith(("offsets", "commits"))} == numbered
    assert not any(name.startswith("tracker") for name in copied)
    feed.put(row(13, 13))
    query = run(feed.stream(spark), tmp_path / "copy", note)
    # The source's own log has the files that were planned: they may come with the next ones.
    assert (seen[0][0], [number for _, taken in seen for number in taken]) == (12, [12, 13])
    assert str(query.id) == query_id(Folder(tmp_path / "cp"))


def test_a_copy_has_the_state_without_which_spark_does_not_go_on(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    seen: list[list[int]] = []
    once = feed.stream(spark).dropDuplicates(["row_id"])
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    run(once, tmp_path / "cp", lambda rows, epoch: numbers(rows))
    for name in ("whole", "stateless"):
        copy(tmp_path / "cp", 1, tmp_path / name)
    feed.put(row(1, 1), row(2, 2), row(3, 3))
    run(once, tmp_path / "whole", lambda rows, epoch: seen.append(numbers(rows)))
    assert seen == [[3]]
    shutil.rmtree(tmp_path / "stateless" / "state")
    with pytest.raises(StreamingQueryException):
        run(once, tmp_path / "stateless", lambda rows, epoch: seen.append(numbers(rows)))
    assert seen == [[3]]


@pytest.mark.parametrize("manager", MANAGERS)
def test_an_entry_that_is_being_written_is_known_by_its_name(
    spark: SparkSession, feed: Feed, tmp_path: Path, manager: str
) -> None:
    kept: list[Any] = []
    unfinished_batch(spark, manager, tmp_path / "cp", kept)
    feed.put(row(1, 1))
    assert last_begun(Folder(tmp_path / "cp")) is None
    if pyspark.__version__ >= "4.1":
        with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
            run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: None)
    clear_unfinished(Folder(tmp_path / "cp"))
    assert list((tmp_path / "cp" / "offsets").iterdir()) == []
    run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: None)
    assert last_commit(Folder(tmp_path / "cp")) == 0


@pytest.mark.parametrize("besides", ["offsets/0", "commits/0", "offsets/.another"])
def test_where_there_is_anything_else_no_entry_counts_as_unfinished(
    spark: SparkSession, tmp_path: Path, besides: str
) -> None:
    unfinished_batch(spark, MANAGERS[0], tmp_path / "cp", [])
    (tmp_path / "cp" / besides).parent.mkdir(exist_ok=True)
    (tmp_path / "cp" / besides).touch()
    before = sorted((tmp_path / "cp").rglob("*"))
    clear_unfinished(Folder(tmp_path / "cp"))
    assert sorted((tmp_path / "cp").rglob("*")) == before
