"""A service before a Spark query, and one after it: a substream ends where all of it has arrived, and not before."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.kafka import Kafka
from spark_client import Tracking, UsageError
from tests.client.processes import Server
from tests.services.shop import create, receive
from tracker.client import Ended, Late, TrackerClient
from tracker.kafka import Consumer, Producer

pytestmark = pytest.mark.spark

_HOUR = 3_600_000_000


def ends(client: TrackerClient, job: str) -> dict[tuple[str, str, str], int]:
    events = [each.kind for each in client.list_events(job).events]
    assert not [each for each in events if isinstance(each, Late)]
    return {(each.segment, each.scope, each.name): each.elements for each in events if isinstance(each, Ended)}


@pytest.mark.parametrize("way", ["transactions", pytest.param("outbox", marks=pytest.mark.thorough)])
def test_hours_end_in_the_query_and_behind_it_when_all_has_arrived(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, tmp_path: Path, way: str
) -> None:
    job, behind = f"between-{way}", f"{topic}-behind"
    client, servers = TrackerClient(tracker.address), {"bootstrap.servers": broker.servers}
    create(broker, behind)
    tracking = Tracking(spark, job, tracker.address)
    orders = tracking.kafka_channel("orders", topic, broker.servers, str(tmp_path / "orders"))
    orders.of_service(spark, "at timestamp, shop string, items int", scope="shop", window=("at", "1 hour"))
    done = tracking.kafka_channel("done", behind, broker.servers, str(tmp_path / "done"))
    received = tracking.receive(orders)
    query = received.where("items < 9").withColumn("doubled", F.col("items") * 2).writeStream.channel(done)
    query.option("checkpointLocation", tmp_path / "cp").start()
    tracking.process_all_available()

    name, end = "1970-01-01T00:00:00Z/1970-01-01T01:00:00Z", _HOUR
    outbox = tmp_path / "outbox" if way == "outbox" else None
    with Producer(client, job, "till", servers, {topic: "orders"}, outbox=outbox) as till:
        for number in range(10):
            value = json.dumps({"at": "1970-01-01T00:30:00.000000Z", "shop": "berlin", "items": number})
            till.send(topic, f"order {number}", value, scope="berlin", name=name, end_time=end, identity=[number])
            if number == 4:
                till.commit()
        till.commit()
        tracking.process_all_available()
        config = {**servers, "group.id": f"{job}-mailer"}
        with Consumer(client, job, config, {behind: "done"}, window=timedelta(hours=1)) as mailer:
            mails = receive(mailer, 9)
            mailer.commit()
            assert not ends(client, job), "the service may send more"
            till.close_substream("berlin", name, end)
            till.commit()
            assert ends(client, job) == {("orders", "berlin", name): 10, ("done", "berlin", name): 9}
    assert sorted(json.loads(each.message.value() or b"")["doubled"] for each in mails) == [*range(0, 18, 2)]
    assert {(each.element.scope, each.element.name) for each in mails if each.element} == {("berlin", name)}
    tracking.stop()


def test_a_channel_of_a_service_has_columns_and_substreams(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    tracking = Tracking(spark, "columns", tracker.address)
    orders = tracking.kafka_channel("orders", topic, broker.servers, str(tmp_path / "orders"))
    with pytest.raises(UsageError, match="give either window="):
        orders.of_service(spark, "day string")
    with pytest.raises(UsageError, match="substream='day' is not a column"):
        orders.of_service(spark, "item string", substream="day")
    assert tracking.receive(orders.of_service(spark, "day string, item string", substream="day")).columns == [
        "day",
        "item",
        "_tracker",
    ]
    with pytest.raises(UsageError, match="was written as"):
        orders.of_service(spark, "day string", substream="day")
