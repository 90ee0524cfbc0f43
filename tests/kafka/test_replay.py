"""A batch from Kafka that is read again, by the driver that comes after one that died in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.kafka import Kafka
from spark_client import Tracking
from tests.client.processes import Server
from tests.kafka.conftest import write_numbers

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_a_query_goes_on_after_the_batch_that_it_reads_again(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, job: str, tmp_path: Path
) -> None:
    written = write_numbers(spark, broker, topic, 12)
    kept: list[str] = []
    deaths = {1}

    def keep(batch: DataFrame, epoch: int) -> None:
        if epoch in deaths:
            deaths.remove(epoch)
            raise ConnectionError("the driver dies")
        kept.extend(row.value for row in batch.collect())

    def run() -> None:
        raw = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", broker.servers)
            .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="4")
            .load()
            .select("topic", "partition", "offset", F.col("value").cast("string"), F.lit("all").alias("name"))
        )
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(raw, "in", substream="name", identity=["topic", "partition", "offset"])
        query = (
            source.writeStream.foreachBatch(keep)
            .trigger(availableNow=True)
            .option("checkpointLocation", tmp_path)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            tracking.stop()

    with pytest.raises(StreamingQueryException, match="the driver dies"):
        run()
    run()
    assert sorted(kept, key=int) == written
