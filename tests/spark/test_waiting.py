"""Waiting for a substream in a batch job and in foreachBatch: complete or not, and never for one's own batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, ResultsOf, Tracking, TrackingError, UsageError, wait_for_end, wait_for_results
from tests.client.processes import Server
from tests.spark.feed import Feed, row
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_who_waits_gets_complete_results_or_the_reason(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Another job's, in a batch job and in a batch; of its own job what is behind its segment, or before it, never."""
    refused: dict[str, str] = {}
    waited: list[int] = []
    results = ResultsOf(tmp_path / "receipts", job, "in")

    with Tracking(spark, job, tracker.address) as tracking:
        source = tracking.source(feed.stream(spark), "in", scope="tenant", substream="kind", front=Marks("is_last"))
        released = tracking.release(source, aggs={"n": F.count("*")}).writeStream
        released.option("checkpointLocation", tmp_path / "cp").receipts(tmp_path / "receipts").start(tmp_path / "out")
        feed.put(row(1, 1), row(2, 2, last=True), row(3, 3, "b"))
        tracking.process_all_available()
        assert wait_for_results(results, "a", "x", timeout=60) == 1
        assert wait_for_end(job, "in", "a", "x", timeout=60, server=tracker.address).elements == 2
        with pytest.raises(TimeoutError, match=r"'x' of scope 'b' has no results by ResultsOf.* within 0 s$"):
            wait_for_results(results, "b", "x", timeout=0)
        tracking.drain(timeout=120)
    with pytest.raises(TrackingError, match=r"not completely: drained.*accept=\['drained'\]"):
        wait_for_end(job, "in", "b", "x", timeout=60, server=tracker.address)
    assert wait_for_end(job, "in", "b", "x", timeout=60, server=tracker.address, accept=["drained"]).by_drain
    with pytest.raises(TimeoutError, match=r"it has ended there, but drained; give accept=\['drained'\]"):
        wait_for_results(results, "b", "x", timeout=0)
    with pytest.raises(TrackingError, match="UNKNOWN_SEGMENT"):
        wait_for_end(job, "nowhere", "b", "x", timeout=60, server=tracker.address)

    def wait(rows: DataFrame, epoch: int) -> None:
        for segment in ("first", "clean", "behind", "apart"):
            try:
                wait_for_end(f"{job}-own", segment, "a", "x", timeout=0, server=tracker.address)
            except UsageError as error:
                refused[segment] = str(error)
            except TimeoutError:
                pass  # nothing has ended
        with pytest.raises(UsageError, match="is connected with it"):
            wait_for_results(ResultsOf(tmp_path, f"{job}-own", "clean"), "a", "x", timeout=0)
        waited.append(wait_for_results(results, "a", "x", timeout=60))

    segments: dict[str, Any] = {"first": ["clean"], "clean": ["behind"], "behind": [], "apart": []}
    with Tracking(spark, f"{job}-own", tracker.address, segments=segments, fronts=["first"]) as own:
        clean = own.channel("clean", str(tmp_path / "clean"))
        stream = own.source(feed.stream(spark), "first", scope="tenant", substream="kind", front=Marks("is_last"))
        stream.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
        writer = own.receive(clean).writeStream.foreachBatch(wait)
        writer.option("checkpointLocation", tmp_path / "cp2").start()
        soon(lambda: waited or own.check())
    assert (list(refused), waited[0]) == (["first", "clean", "behind"], 1)
    assert all("may wait for this batch" in text for text in refused.values())
