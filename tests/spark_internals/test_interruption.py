"""End of a batch such that its query has stopped, and not failed."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from traceback import format_exception_only

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from spark_client.spark_internals.errors import INTERRUPTED
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark


def test_the_text_is_written_as_py4j_writes_a_call_that_was_interrupted(spark: SparkSession) -> None:
    """Releases of Spark read more or less of it."""
    thread = spark._jvm.java.lang.Thread  # type: ignore[union-attr]
    thread.currentThread().interrupt()
    with pytest.raises(Py4JJavaError) as raised:
        thread.sleep(1)
    written = re.compile(r"py4j\.protocol\.Py4JJavaError: An error occurred while calling .+\n: (java\.lang\.\w+): .+")
    real, ours = (written.match(text) for text in (format_exception_only(raised.value)[0], INTERRUPTED))
    assert real is not None
    assert ours is not None
    assert real[1] == ours[1]


@pytest.mark.parametrize(("said", "failed"), [(INTERRUPTED, False), ("something else", True)])
def test_a_batch_of_a_stopping_query_ends_without_a_failure(
    spark: SparkSession, feed: Feed, tmp_path: Path, said: str, failed: bool
) -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait(rows: DataFrame, epoch: int) -> None:
        inside.set()
        leave.wait()
        raise RuntimeError(said)

    feed.put(row(1, 1))
    writer = feed.stream(spark).writeStream.foreachBatch(wait)
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    assert inside.wait(300)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    while query.isActive:  # Spark marks it as stopped before it waits for the batch
        stopping.join(0.01)
    leave.set()
    stopping.join()
    assert (query.exception() is not None) == failed
