"""The same aggregation on Spark's own watermark: append mode, a delay that somebody had to guess.

It reads what the pipeline's first query has sent. It is fair to the watermark: the query runs live. Each file of the
replay is processed, and so is the empty batch that Spark adds when its watermark has moved, before the next file
appears; so a window comes out as early as it can.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.pipeline import figures
from examples.flights.replay import Replay
from examples.flights.truth import KEY, VALUES
from spark_client import Channel


class Copies:
    """A channel's content as one flat directory, which Spark's file source lists quickly."""

    def __init__(self, channel: Channel, directory: Path) -> None:
        """Begin with nothing: the first `update` reads."""
        self._channel = channel
        self._directory = directory
        self._directory.mkdir()

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the rows, as a stream."""
        schema = self._channel.shape(spark).schema
        return spark.readStream.schema(schema).parquet(str(self._directory))

    def update(self) -> None:
        """Take in what has been sent since."""
        for part in Path(str(self._channel.path)).glob("*/[0-9]*/*.parquet"):
            copy = self._directory / f"{part.parent.name}-{part.name}"
            if not copy.exists():
                os.link(part, copy)


class WatermarkBaseline:
    """One run of the aggregation with one delay."""

    def __init__(self, flights: DataFrame, delay: str, checkpoint: Path, clock: Replay) -> None:
        """Start the query on a stream of cleaned flights.

        Args:
            flights: the stream.
            delay: as in `withWatermark`, "6 hours" say.
            checkpoint: its directory.
            clock: the replay.
        """
        self.delay = delay
        self._clock = clock
        self._released: list[tuple[object, ...]] = []
        daily = (
            flights.withWatermark("sched_dep", delay)
            .groupBy("origin", F.window("sched_dep", "1 day"), "carrier")
            .agg(*(value.alias(name) for name, value in figures().items()))
        )
        self._query: StreamingQuery = (
            daily.withColumn("day", F.col("window.start"))
            .select(*KEY, *VALUES)
            .writeStream.queryName(f"watermark {delay}")
            .outputMode("append")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(self._take)
            .start()
        )

    def settle(self) -> None:
        """Do all that can be done with what has been published."""
        self._query.processAllAvailable()

    def stop(self) -> None:
        """Stop between batches. Call it when settled."""
        self._query.stop()

    @property
    def released(self) -> pd.DataFrame:
        """Windows that have come out: `KEY`, `VALUES` and `file`, the number of the replay file that released each."""
        return pd.DataFrame(self._released, columns=[*KEY, *VALUES, "file"]).assign(
            day=lambda rows: pd.to_datetime(rows["day"], utc=True)
        )

    def _take(self, batch: DataFrame, _: int) -> None:
        self._released += [(*row, self._clock.latest) for row in batch.collect()]
