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
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_client.errors import TrackingError
from spark_client.spark_internals.checkpoints import (
    Batch,
    clear_unfinished,
    files_after,
    last_begun,
    last_commit,
    planned,
    positions,
    query_id,
    started_query,
)
from spark_client.spark_internals.file_offsets import is_of_files
from tests.spark.feed import Feed, row
from tests.spark.test_first_moments import MANAGERS, unfinished_batch
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark


def numbers(rows: DataFrame) -> list[int]:
    return sorted(each.row_id for each in rows.select("row_id").collect())


def test_a_batch_is_written_down_before_it_begins_and_begins_after_the_commit_of_the_one_before(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    for number in range(3):
        feed.put(row(number, number))
    seen: list[tuple[int, int | None, int | None, str | None]] = []

    def look(rows: DataFrame, epoch: int) -> None:
        seen.append((epoch, last_begun(tmp_path / "cp"), last_commit(tmp_path / "cp"), query_id(tmp_path / "cp")))

    query = run(feed.stream(spark), tmp_path / "cp", look)
    own = str(query.id)
    assert seen == [(0, 0, None, own), (1, 1, 0, own), (2, 2, 1, own)]
    assert (last_begun(tmp_path / "cp"), last_commit(tmp_path / "cp")) == (2, 2)
    assert [positions(tmp_path / "cp", epoch) for epoch in (0, 2, 3)] == [[{"logOffset": 0}], [{"logOffset": 2}], []]


def test_a_checkpoint_has_its_querys_id_when_the_start_is_announced(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    seen: list[tuple[str, str | None]] = []

    class Started(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            seen.append((str(event.id), query_id(tmp_path / "cp")))

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
    assert (query_id(tmp_path), last_begun(tmp_path), last_commit(tmp_path)) == (None, None, None)
    assert planned(tmp_path, 0) == Batch()
    with pytest.raises(TrackingError, match="no query was started with the checkpoint"):
        started_query(tmp_path)


def test_a_plan_has_a_line_for_each_source_in_the_plans_order(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    other = Feed(tmp_path / "other")
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    other.put(row(9, 9))
    before = time.time_ns() // 1_000_000 * 1000
    both = feed.stream(spark).unionByName(other.stream(spark))
    run(both, tmp_path / "cp", lambda rows, epoch: None)
    first, second = planned(tmp_path / "cp", 0), planned(tmp_path / "cp", 1)
    assert first.at is not None
    assert second.at is not None
    assert before <= first.at <= second.at <= time.time_ns() // 1000
    assert first.since is None
    # The second source, which has only one file, is left out: that is the one that wakes a release.
    assert [json.loads(str(offset)) for offset in (first.until, second.since, second.until)] == [
        {"logOffset": 0},
        {"logOffset": 0},
        {"logOffset": 1},
    ]
    assert is_of_files(json.loads(str(second.until)))


def test_a_batch_that_failed_is_run_again_as_it_was_written_down(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    stream = spark.readStream.schema(feed.stream(spark).schema).json(str(feed.path))
    tried: list[tuple[int, list[int], Batch]] = []

    def fail(rows: DataFrame, epoch: int) -> None:
        tried.append((epoch, numbers(rows), planned(tmp_path / "cp", epoch)))
        if len(tried) == 1:
            raise RuntimeError("once")

    with pytest.raises(StreamingQueryException, match="once"):
        run(stream, tmp_path / "cp", fail)
    assert (last_begun(tmp_path / "cp"), last_commit(tmp_path / "cp")) == (0, None)
    feed.put(row(3, 3))
    run(stream, tmp_path / "cp", fail)
    assert [(epoch, taken) for epoch, taken, _ in tried] == [(0, [1, 2]), (0, [1, 2]), (1, [3])]
    assert tried[0][2] == tried[1][2] != Batch()


def test_a_copy_of_a_checkpoint_after_a_batch_is_gone_on_with_from_there(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
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
    (tmp_path / "cp" / "tracker").mkdir()
    (tmp_path / "cp" / "tracker" / "mine").touch()
    files = list(files_after(tmp_path / "cp", 11))
    assert not {"offsets/12", "tracker/mine"} & {file.relative_to(tmp_path / "cp").as_posix() for file in files}
    for file in files:
        copy = tmp_path / "copy" / file.relative_to(tmp_path / "cp")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    feed.put(row(13, 13))
    query = run(feed.stream(spark), tmp_path / "copy", note)
    # The source's own log has the files that were planned: they may come with the next ones.
    assert (seen[0][0], [number for _, taken in seen for number in taken]) == (12, [12, 13])
    assert str(query.id) == query_id(tmp_path / "cp")


@pytest.mark.parametrize("manager", MANAGERS)
def test_an_entry_that_is_being_written_is_known_by_its_name(
    spark: SparkSession, feed: Feed, tmp_path: Path, manager: str
) -> None:
    kept: list[Any] = []
    unfinished_batch(spark, manager, tmp_path / "cp", kept)
    feed.put(row(1, 1))
    assert last_begun(tmp_path / "cp") is None
    if not pyspark.__version__.startswith("4.0."):
        with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
            run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: None)
    clear_unfinished(tmp_path / "cp")
    assert list((tmp_path / "cp" / "offsets").iterdir()) == []
    run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: None)
    assert last_commit(tmp_path / "cp") == 0
