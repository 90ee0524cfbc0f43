"""Early results in a topic: of each key its reader has what a batch over the rows so far gives, and then the end."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.services.kafka import Kafka
from spark_client import Topic, Tracking
from tests.client.processes import Server
from tests.kafka.test_channel import records
from tests.spark.feed import Feed
from tests.spark.test_early import by_key, released, some

pytestmark = pytest.mark.spark

Counts = dict[tuple[str, str], tuple[int, int]]


def read(spark: SparkSession, broker: Kafka, topic: str) -> list[dict[str, Any]]:
    """Read the records' values, in no order."""
    found = records(spark, broker.servers, topic).collect()
    assert all(json.loads(each.key).keys() == {"tenant", "window", "kind"} for each in found)
    return [json.loads(each.value) for each in found]


def kept(values: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the record that counts of each key: the final one, else the newest."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for value in sorted(values, key=lambda value: (value["final"], value["as_of"])):
        newest[value["tenant"], value["kind"]] = value
    return newest


def counted(values: list[dict[str, Any]]) -> Counts:
    return {key: (value["n"], value["amount"]) for key, value in kept(values).items()}


@pytest.mark.thorough
def test_the_newest_record_of_a_key_equals_a_batch_until_the_end(
    spark: SparkSession, tracker: Server, job: str, broker: Kafka, topic: str, feed: Feed, tmp_path: Path
) -> None:
    sink = Topic(topic, broker.servers, ["tenant", "window", "kind"])

    def start() -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        daily = released(tracking, feed, spark)
        daily.writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()
        return tracking

    tracking = start()
    known: Counts = {}
    for number, (tenants, lasts) in enumerate([("abc", ""), ("abc", "a"), ("bc", ""), ("bc", "b")]):
        if number == 2:
            tracking.stop()
            tracking = start()
        feed.put(*some(random.Random(number), 100 * number, tenants, lasts))
        tracking.process_all_available()
        values = read(spark, broker, topic)
        before, known = known, by_key(feed.batch(spark))
        ended = {"a", "b"} if number == 3 else {"a"} if number else set()
        finals = {key for key, value in kept(values).items() if value["final"]}
        assert finals == {key for key in known if key[0] in ended}
        shown = counted(values)
        for key in known.keys() | shown.keys():
            # Open substreams are shown with the next batch, which an end may have begun.
            allowed = [known[key]] if key in finals else [known[key], before.get(key)]
            assert shown.get(key) in allowed
    assert sum(value["final"] for value in values) == len(finals), "each is final once"
    tracking.stop()

    # A driver that was superseded wakes up, and writes what it had made of the first file.
    stale = feed.batch(spark).limit(1).selectExpr(
        "'a' tenant", "named_struct('start', ts, 'end', ts) window", "'x' kind", "1L n", "1L amount",
        "false final", "0L as_of",
    )  # fmt: skip
    assert set(stale.columns) >= values[0].keys()
    sink.write_early(stale, "query", 0)
    assert len(read(spark, broker, topic)) == len(values) + 1
    assert counted(read(spark, broker, topic)) == counted(values)
