"""The programs of `docs/howto/observe.md`, as they stand there but for their paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.docs.test_programs import FENCE, ROOT
from tracker.client import Ended

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def test_the_pages_programs_follow_a_query_and_release_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "observe.md").read_text()
    query, observer, release = (block for language, block in FENCE.findall(page) if language == "python")
    scope: dict[str, Any] = {"spark": spark, "F": F}

    def run(program: str) -> None:
        for place in ("/data/", "/cp/"):
            program = program.replace(f'"{place}', f'"{tmp_path}{place}')
        exec(program, scope)

    sold = [("berlin", "2026-03-01 09:00", 3, False), ("berlin", "2026-03-01 20:00", 1, True)]
    rows = spark.createDataFrame(
        [*sold, ("lima", "2026-03-01 21:00", 1, False)], "shop string, at string, items int, last boolean"
    )
    rows.withColumn("at", F.col("at").cast("timestamp")).write.parquet(str(tmp_path / "data" / "orders"))
    run(query)
    for each in spark.streams.active:
        each.processAllAvailable()
        each.stop()
    run(observer.replace("awaitTermination", "processAllAvailable"))
    tracking = scope["tracking"]
    tracking.process_all_available()
    ends = [event.kind for event in tracking.client.list_events(tracking.job).events]
    assert [(kind.scope, kind.elements) for kind in ends if isinstance(kind, Ended)] == [("berlin", 2)]
    tracking.stop()
    run(release)
    with scope["tracking"] as tracking:
        tracking.process_all_available()
        daily = spark.read.parquet(str(tmp_path / "data" / "daily"))
        assert [(each.shop, each.rows) for each in daily.collect()] == [("berlin", 2)]
