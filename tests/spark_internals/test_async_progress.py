"""Asynchronous progress tracking: what Spark calls it, so that it is refused under that name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_client.api.refusals import check_option
from spark_client.errors import UsageError

pytestmark = pytest.mark.spark

OPTION = "asyncProgressTrackingEnabled"
#: Settings that are about it: this one holds for queries in real time, which are refused by their trigger.
KNOWN = {"spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled"}


def execution(spark: SparkSession, checkpoint: Path, **options: str) -> str:
    """Return the class that runs a query with some options."""
    rows = spark.readStream.format("rate").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query: Any = writer.options(**options).start()
    try:
        return str(query._jsq.streamingQuery().getClass().getSimpleName())
    finally:
        query.stop()


def test_the_option_that_is_refused_is_the_one_that_spark_has(spark: SparkSession, tmp_path: Path) -> None:
    assert execution(spark, tmp_path / "with", **{OPTION: "true"}).startswith("AsyncProgressTracking")
    assert execution(spark, tmp_path / "without") == "MicroBatchExecution"
    with pytest.raises(UsageError, match=OPTION):
        check_option(OPTION, "true")


def test_no_other_setting_of_a_session_switches_it_on(spark: SparkSession) -> None:
    defined: Any = spark._jsparkSession.sessionState().conf().getAllDefinedConfs()
    keys = {str(defined.apply(place)._1()) for place in range(defined.size())}
    assert "spark.sql.streaming.noDataMicroBatches.enabled" in keys
    assert {key for key in keys if "asyncprogress" in key.lower()} <= KNOWN
