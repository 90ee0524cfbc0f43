"""The dbt package in a real dbt, over results and receipts that a real query has written.

`make integrations` installs dbt and runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks
from tests.client.processes import Server
from tests.integrations.conftest import INTEGRATIONS
from tests.spark.batches import BatchTracking
from tests.spark.conftest import feed, job, spark, tracker
from tests.spark.feed import START, Feed, row
from tests.spark.waiting import soon

__all__ = ["feed", "job", "spark", "tracker"]

PROGRAM = INTEGRATIONS.parent / ".cache" / "dbt" / "bin" / "dbt"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}: `make integrations` installs dbt"),
]

FILES = {
    "packages.yml": "packages: [{local: %(package)s}]",
    "profiles.yml": "shop: {target: dev, outputs: {dev: {type: duckdb, path: shop.duckdb}}}",
    "dbt_project.yml": "{name: shop, profile: shop, version: '1.0', flags: {send_anonymous_usage_stats: false}}",
    "models/lake.yml": """
        sources:
          - name: lake
            tables:
              - name: hourly
                meta: {external_location: "read_parquet('%(data)s/out/epoch=*/*.parquet')"}
              - name: receipts
                meta: {external_location: "read_parquet('%(data)s/receipts/query=*/epoch=*/*.parquet')"}
    """,
    "models/complete_hours.sql": """
        {{ config(materialized='incremental') }}
        select tenant, "window".start as hour, n from {{ source('lake', 'hourly') }}
        where {{ substream_tracker.complete(
            source('lake', 'receipts'), job=var('job'), segment='in', scope='tenant', end_time='"window"."end"'
        ) }}
        {% if is_incremental() %} and (tenant, "window".start) not in (select tenant, hour from {{ this }}) {% endif %}
    """,
    "models/enough_hours.sql": """
        select tenant, "window".start as hour, n from {{ source('lake', 'hourly') }}
        where {{ substream_tracker.complete(
            source('lake', 'receipts'), var('job'), 'in', 'tenant', '"window"."end"', reasons=['COMPLETE', 'DEADLINE']
        ) }}
    """,
}
ROWS = """
import json, sys
import duckdb

rows = duckdb.connect("shop.duckdb", read_only=True).sql(f"select tenant, hour::timestamp, n from {sys.argv[1]}")
print(json.dumps(rows.fetchall(), default=str))
"""


class Project:
    """A project of dbt with a database of its own."""

    def __init__(self, directory: Path, data: Path, job: str) -> None:
        self._directory, self._job = directory, job
        for name, text in FILES.items():
            file = directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text % {"package": INTEGRATIONS / "dbt", "data": data} if name.endswith("yml") else text)
        self.run("deps")

    def run(self, *command: str) -> str:
        """Run dbt, and return what it prints."""
        environment = os.environ | {"DBT_PROFILES_DIR": str(self._directory), "DO_NOT_TRACK": "1", "TZ": "UTC"}
        done = subprocess.run(
            [PROGRAM, "--no-use-colors", *command], cwd=self._directory, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def build(self) -> None:
        """Build all models."""
        self.run("build", "--vars", f"{{job: {self._job}}}")

    def rows(self, model: str) -> list[tuple[str, datetime, int]]:
        """Return the rows of a model: tenant, hour, rows."""
        out = subprocess.run(
            [PROGRAM.with_name("python"), "-c", ROWS, model],
            cwd=self._directory,
            check=True,
            capture_output=True,
            text=True,
        )
        return sorted((tenant, datetime.fromisoformat(hour), n) for tenant, hour, n in json.loads(out.stdout))


def test_models_have_the_rows_of_complete_hours_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Each tenant's hour that its marks have completed is in the model, equal to a batch; a deadline's is not."""
    tracking = BatchTracking(feed, spark, job, tracker.address, deadline="6 hours", deadline_by_event_time=True)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream.option(
        "checkpointLocation", tmp_path / "cp"
    )
    writer.receipts(tmp_path / "receipts").start(tmp_path / "out")
    project = Project(tmp_path / "project", tmp_path, job)

    def batch(*hours: tuple[str, int]) -> list[Any]:
        """Return the rows of these hours, counted from all that was put."""
        counts = feed.batch(spark).groupBy("tenant", F.date_trunc("hour", "ts").alias("hour")).count().collect()
        return sorted((r[0], r[1], r[2]) for r in counts if (r[0], (r[1] - START).seconds // 3600) in hours)

    def has_receipts(number: int) -> bool:
        tracking.process_all_available()
        return spark.read.parquet(str(tmp_path / "receipts")).count() == number

    feed.put(row(1, 5, "a"), row(2, 50, "a", last=True), row(3, 10, "b"), row(4, 20, "b"))
    tracking.process_all_available()
    project.build()
    assert project.rows("complete_hours") == project.rows("enough_hours") == batch(("a", 0))
    feed.put(row(5, 7 * 60, "c"), row(6, 65, "a"), row(7, 70, "a"), row(8, 75, "a", last=True))
    soon(lambda: has_receipts(3))
    project.build()
    assert project.rows("complete_hours") == batch(("a", 0), ("a", 1))
    assert project.rows("enough_hours") == batch(("a", 0), ("a", 1), ("b", 0))
    tracking.stop()
