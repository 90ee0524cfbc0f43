"""Each row is taken once, in whatever order, number of copies and batches it comes, and however often a batch is
replayed; no label is kept once its epoch is complete."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client import TrackingError
from spark_client.columns import TRACKER
from spark_client.destinations.deduplication import SENDING, ReceivedOnce, Sending
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import TRACKER_TYPE

pytestmark = pytest.mark.spark

SCHEMA = T.StructType(
    [
        T.StructField("n", T.LongType()),
        T.StructField(TRACKER, TRACKER_TYPE),
        T.StructField(SENDING, T.StringType()),
    ]
)


class Record(NamedTuple):
    label: int
    sending: str | None


def epoch(sender: str, number: int, after: int | None, labels: list[int]) -> list[Record]:
    """Return the records of one epoch of a sender."""
    xor = 0
    for label in labels:
        xor ^= label
    sending = Sending(sender, number, after, len(labels), xor).to_json()
    return [Record(label, sending) for label in labels]


def frame(spark: SparkSession, records: list[Record]) -> DataFrame:
    rows: list[Any] = [(record.label, ("", "s", None, record.label), record.sending) for record in records]
    return spark.createDataFrame(rows, SCHEMA)


def taken(rows: DataFrame | None) -> list[int]:
    return [] if rows is None else sorted(row["n"] for row in rows.collect())


def newest(path: Path) -> Any:
    return json.loads(max(path.glob("version-*.json")).read_text())


@pytest.mark.thorough
def test_each_row_is_taken_once(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(1)
    sent: list[tuple[float, Record]] = []
    labels: set[int] = set()
    for sender in ("one", "two"):
        after: int | None = None
        for number in (0, 1, 4, 5, 6):  # 2 and 3 had no rows
            own = [rng.randrange(-(2**63), 2**63) for _ in range(rng.randint(1, 9))]
            labels.update(own)
            for record in epoch(sender, number, after, own):
                copies = range(rng.choice([1, 1, 1, 2, 3]))
                sent.extend((number + rng.uniform(0, 2) + rng.choice([0, 0, 5]) * copy, record) for copy in copies)
            after = number
    sent.sort(key=lambda timed: timed[0])
    once = ReceivedOnce(Folder(tmp_path))
    got: list[int] = []
    batch = 0
    while sent:
        size = rng.randint(1, 25)
        records, sent = [record for _, record in sent[:size]], sent[size:]
        found = taken(once.rows(frame(spark, records), batch))
        if rng.random() < 0.3:  # the driver died before Spark's commit
            once = ReceivedOnce(Folder(tmp_path))
            assert taken(once.rows(frame(spark, records), batch)) == found
        got.extend(found)
        batch += 1
    assert sorted(got) == sorted(labels)
    assert newest(tmp_path)["incomplete"] == []
    assert newest(tmp_path)["complete"] == {"one": [[0, 6]], "two": [[0, 6]]}
    once.rows(frame(spark, epoch("one", 7, 6, [1])), batch)
    assert taken(once.rows(frame(spark, epoch("one", 7, 6, [1])), batch + 1)) == []
    assert list(tmp_path.glob("labels-*")) == []


def test_records_of_others_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="1 records were not sent by a query of this job"):
        ReceivedOnce(Folder(tmp_path)).rows(frame(spark, [Record(1, None), *epoch("one", 0, None, [2])]), 0)


def test_an_epoch_that_is_sent_again_with_other_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    once = ReceivedOnce(Folder(tmp_path))
    first = epoch("one", 0, None, [1, 2, 3])
    assert taken(once.rows(frame(spark, first[:2]), 0)) == [1, 2]
    with pytest.raises(TrackingError, match="was not announced to consist of"):
        once.rows(frame(spark, epoch("one", 0, None, [4, 5, 3])), 1)


def test_what_was_received_is_of_the_batch_before_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "received"
    once = ReceivedOnce(Folder(path))
    once.rows(frame(spark, epoch("one", 0, None, [1])), 0)
    shutil.copytree(path, tmp_path / "older")
    assert once.rows(frame(spark, []), 1) is None  # only a wake-up
    for copy, found in ((tmp_path / "older", "that of batch 0"), (tmp_path / "none", "missing")):
        shutil.move(path, tmp_path / "newest")
        if copy.exists():
            shutil.copytree(copy, path)
        with pytest.raises(TrackingError, match=f"are {found}, and Spark goes on with batch 2"):
            ReceivedOnce(Folder(path)).rows(frame(spark, epoch("one", 0, None, [1])), 2)
        shutil.rmtree(path, ignore_errors=True)
        shutil.move(tmp_path / "newest", path)
    assert taken(ReceivedOnce(Folder(path)).rows(frame(spark, epoch("one", 0, None, [1])), 2)) == []
