"""Traces of an error in Spark's own, by which it is known again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import TrackingError, UsageError
from spark_client.runtime.queries import sentence_of
from spark_client.spark_internals.errors import has_text, sentence_in
from spark_client.spark_internals.kafka import needing_a_connector
from spark_client.windows.belonging import MARK, tells_of_bad_rows
from spark_client.windows.lengths import microseconds
from tests.spark.feed import Feed, row
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark


def test_what_an_expression_raises_is_in_the_error(spark: SparkSession) -> None:
    fails = spark.range(1).where(F.raise_error(F.lit(MARK)).cast("boolean"))
    with pytest.raises((PySparkException, Py4JJavaError)) as raised:  # the latter before Spark 4.0
        fails.write.format("noop").mode("overwrite").save()
    assert tells_of_bad_rows(raised.value)
    assert has_text(raised.value, MARK)
    with pytest.raises((PySparkException, Py4JJavaError)) as raised:
        spark.range(1).select(F.raise_error(F.lit("another"))).collect()
    assert not tells_of_bad_rows(raised.value)


def in_the_driver(rows: DataFrame) -> None:
    raise TrackingError("3 rows belong to no substream: drop them")


def in_a_task(rows: DataFrame) -> None:
    def fail(batches: Iterable[Any]) -> Iterator[Any]:
        yield from batches
        raise TrackingError("3 rows belong to no substream: drop them")

    rows.mapInArrow(fail, rows.schema).write.format("noop").mode("overwrite").save()


def for_another_error(rows: DataFrame) -> None:
    """Raise the last error of a chain."""
    try:
        raise TrackingError("what it comes from")
    except TrackingError as error:
        raise UsageError("3 rows belong to no substream: drop them") from error


@pytest.mark.parametrize("fail", [in_the_driver, in_a_task, for_another_error])
def test_a_query_that_failed_tells_our_sentence(
    spark: SparkSession, feed: Feed, tmp_path: Path, fail: Callable[[DataFrame], None]
) -> None:
    feed.put(row(1, 1))
    with pytest.raises(StreamingQueryException) as raised:
        run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: fail(rows))
    assert sentence_in(raised.value) == sentence_of(raised.value) == "3 rows belong to no substream: drop them"


def test_a_users_error_that_resembles_ours_is_not_taken_for_it(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def fail(rows: DataFrame, epoch: int) -> None:
        raise ValueError("I have seen TrackingError: it was another")

    feed.put(row(1, 1))
    with pytest.raises(StreamingQueryException, match="I have seen TrackingError") as raised:
        run(feed.stream(spark), tmp_path / "cp", fail)
    assert sentence_in(raised.value) is None


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("1 month", "months and years have no fixed length"),
        ("INTERVAL '1' YEAR", "months and years have no fixed length"),
        pytest.param(
            *("300000000 days", "it is too long"),
            marks=pytest.mark.skipif(pyspark.__version__ < "4", reason="before Spark 4.0 no error shows that"),
        ),
        ("soon", "Spark does not parse it"),
    ],
)
def test_why_spark_refuses_a_length_of_time(spark: SparkSession, text: str, refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        microseconds(spark, text, "window")


def test_lengths_of_time_are_read_from_a_windows_start(spark: SparkSession) -> None:
    lengths = {"1 day": 86_400_000_000, "-5 minutes": -300_000_000, "INTERVAL '0.5' SECOND": 500_000, "0 seconds": 0}
    assert {text: microseconds(spark, text, "window") for text in lengths} == lengths


def test_a_source_that_is_not_there_is_known_by_the_error(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="Spark has no Kafka connector"), needing_a_connector():
        spark.read.format("tests-nowhere").load()
