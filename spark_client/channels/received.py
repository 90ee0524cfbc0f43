"""Rows that another query has sent into a channel, as the input of a stream."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession

from spark_client.channels.channel import Channel
from spark_client.plan.belonging import Belonging
from spark_client.plan.fronts import Front
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.streams import Direction


class Received:
    """Rows that another query has sent into a channel."""

    direction: Direction = "received"
    named = True
    belonging: Belonging | None = None

    def __init__(self, spark: SparkSession, channel: Channel, max_epochs_per_trigger: int | None) -> None:
        self.segment = channel.segment
        self.front: Front | None = None
        self.exact = channel.exact
        _, self.rule = channel.description()
        self.layout = channel.layout if isinstance(channel.layout, DerivedLayout) else None
        self._spark = spark
        self._channel = channel
        self._limit = max_epochs_per_trigger

    def stream(self, wake_ups: DataFrame | None, aggregates: Mapping[str, Column] | None) -> DataFrame:  # noqa: ARG002
        return self._channel.stream(self._spark, wake_ups, self._limit)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        return self._channel.rows(batch, query, epoch)

    def all_rows(self, batch: DataFrame) -> DataFrame:
        return batch

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:  # noqa: ARG002
        return rows

    def native(self) -> DataFrame:
        return self._channel.native(self._spark, self._limit)
