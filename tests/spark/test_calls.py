"""Cost of a batch beyond its rows: calls into the JVM, each some 0.1 ms, which small batches notice."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking
from tests.client.processes import Server
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

_OURS = "/spark_client/"
BATCHES = 4


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count calls by the module of ours that made them."""
    made: Counter[str] = Counter()
    send = JavaClient.send_command

    def counted(self: JavaClient, *args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        while frame is not None and _OURS not in frame.f_code.co_filename:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None:
            made[frame.f_code.co_filename.partition(_OURS)[2]] += 1
        return send(self, *args, **options)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    return made


@pytest.mark.thorough
def test_a_batch_makes_no_column_that_the_one_before_has_made(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, calls: Counter[str]
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark),
        "in",
        scope="tenant",
        window=("ts", "1 hour"),
        identity=["row_id"],
        front=Frontier("1 hour"),
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    sent = source.where("amount >= 0").writeStream.channel(channel).option("checkpointLocation", tmp_path / "sent")
    received = tracking.receive(channel)
    released = tracking.release(received, ["kind"], aggs={"rows": F.count("*"), "amount": F.sum("amount")})
    sent.start()
    released.writeStream.option("checkpointLocation", tmp_path / "released").start(tmp_path / "out")
    for number in range(3):
        feed.put(row(number, number))
        tracking.process_all_available()
    calls.clear()
    for number in range(3, 3 + BATCHES):
        feed.put(row(number, number))
        tracking.process_all_available()
    tracking.stop()
    of_plans = {module: number for module, number in calls.items() if module.startswith("plan/")}
    # The other calls put present columns into the plans of the two queries' batches: a call or two for each step.
    assert sum(of_plans.values()) / BATCHES <= 20, of_plans
