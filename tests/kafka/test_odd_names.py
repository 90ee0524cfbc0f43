"""Names with anything in them, through real topics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.kafka import Kafka
from spark_client import Topic
from tests.client.processes import Server
from tests.kafka.test_channel import records
from tests.spark.feed import Feed
from tests.spark.odd_names import ODD, Names, live

pytestmark = pytest.mark.spark

COLUMNS = [*ODD, "epoch", "query", "window", "_tracker_", "headers", "topic", "partition"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(31, 41))
def test_drawn_names_live_through_a_topic(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, feed: Feed, tmp_path: Path, job: str, seed: int
) -> None:
    names = Names(seed)
    path = str(tmp_path / "channel")

    live(
        names,
        spark,
        tracker.address,
        job,
        feed,
        tmp_path,
        lambda tracking: tracking.kafka_channel(names.channel, topic, broker.servers, path),
    )


@pytest.mark.thorough
def test_results_have_any_names_and_texts_in_a_topic(spark: SparkSession, broker: Kafka, topic: str) -> None:
    values = [*ODD, ""]
    rows = spark.createDataFrame([(value,) for value in values], "v string").select(
        *[F.concat(F.lit(f"{place}"), F.col("v")).alias(name) for place, name in enumerate(COLUMNS)]
    )
    sink = Topic(topic, broker.servers, COLUMNS[3:9])
    sink.check(rows.limit(0))
    sink.write(rows, "q", 7)
    written = records(spark, broker.servers, topic).select(F.col("key").cast("string"), F.col("value").cast("string"))
    got = [(json.loads(r.key), json.loads(r.value)) for r in written.collect()]
    wanted = [{name: f"{place}{value}" for place, name in enumerate(COLUMNS)} for value in values]
    assert sorted((value for _, value in got), key=str) == sorted(wanted, key=str)
    assert all(key == {name: value[name] for name in COLUMNS[3:9]} for key, value in got)


@pytest.mark.thorough
def test_a_text_that_json_would_alter_fails_and_rows_repairs_it(spark: SparkSession, broker: Kafka, topic: str) -> None:
    rows = spark.range(2).select("id", F.expr("cast(if(id = 1, X'61ff', X'61') as string)").alias("o.dd"))
    with pytest.raises(Exception, match=r"the column 'o\.dd' has a text that is not UTF-8.*rows=…"):
        Topic(topic, broker.servers, ["o.dd"]).write(rows, "q", 7)
    repaired = Topic(topic, broker.servers, ["o.dd"], rows=lambda r: r.withColumn("o.dd", F.hex("`o.dd`")))
    repaired.write(rows, "q", 7)
    keys = records(spark, broker.servers, topic).select(F.col("key").cast("string")).distinct()
    assert {'{"o.dd":"61"}', '{"o.dd":"61FF"}'} <= {r.key for r in keys.collect()}
