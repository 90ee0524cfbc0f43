"""Channels whose rows travel as JSON."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.channels.channel import Channel
from spark_client.plan import jsonrows
from spark_client.plan.layouts import DerivedLayout
from spark_client.windows.substreams import Substreams


class JsonChannel(Channel):
    """A channel whose rows travel as JSON: what JSON would alter is refused, or fails its batch."""

    def describe(self, rows: T.StructType, rule: Substreams, layout: DerivedLayout | None = None) -> None:
        jsonrows.check(self.segment, rows)
        super().describe(rows, rule, layout)

    def check_session(self, spark: SparkSession) -> None:
        schema, _ = self.description()
        jsonrows.check_session(spark, f"channel {self.segment!r}", schema)

    def carried(self, rows: DataFrame) -> DataFrame:
        return jsonrows.carried(rows, f"channel {self.segment!r}", "a step makes something else of it")
