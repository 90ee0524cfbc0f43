"""Its tests: `pytest examples/testing/test_job.py`. Nobody starts a tracker, and no test waits for a while."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.testing.job import start
from tracker.client import Ended
from tracker.testing import LocalTracker, like

SUNDAY = "2026-03-01T00:00:00Z/2026-03-02T00:00:00Z"  # how the client names a window


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", False).getOrCreate()
    yield spark
    spark.stop()


class Shop:
    """The job under test: its inbox, and what it has booked."""

    def __init__(self, spark: SparkSession, tracker: LocalTracker, path: Path) -> None:
        self.inbox, self.booked = path / "orders", list[tuple[str, str, int]]()
        self.inbox.mkdir()
        self.tracking = start(spark, tracker.address, self.inbox, path / "checkpoint", self._book)

    def _book(self, *day: Any) -> None:
        self.booked.append(day)

    def receive(self, *orders: tuple[str, str, int, bool]) -> None:
        """Let a file of orders arrive, and the job read it."""
        lines = [json.dumps(dict(zip(("shop", "at", "price", "last"), order, strict=True))) for order in orders]
        file = self.inbox / f"{len(list(self.inbox.iterdir()))}.json"
        file.with_name(f".{file.name}").write_text("\n".join(lines))
        file.with_name(f".{file.name}").rename(file)
        self.tracking.process_all_available()


@pytest.fixture
def shop(spark: SparkSession, local_tracker: LocalTracker, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(spark, local_tracker, tmp_path)
    yield shop
    shop.tracking.stop()


def test_a_day_is_booked_once_and_does_not_wait_for_other_shops(shop: Shop, local_tracker: LocalTracker) -> None:
    shop.receive(("berlin", "2026-03-01 09:00", 3, False), ("lima", "2026-03-01 23:10", 2, False))
    local_tracker.assert_open("shop", "orders", "lima", SUNDAY, waiting_for=["orders"])
    shop.receive(("berlin", "2026-03-02 08:00", 1, False), ("berlin", "2026-03-01 21:30", 4, True))
    local_tracker.assert_ended("shop", "orders", "berlin", SUNDAY, elements=2)
    shop.tracking.process_all_available()
    assert shop.booked == [("berlin", "2026-03-01", 7)]


def test_orders_that_the_job_drops_delay_no_day(shop: Shop, local_tracker: LocalTracker) -> None:
    shop.receive(("lima", "2026-03-01 10:00", 5, False), ("lima", "2026-03-01 11:00", 0, True))
    local_tracker.assert_events("shop", [like(Ended, scope="lima", elements=1)], only=Ended)
    shop.tracking.process_all_available()
    assert shop.booked == [("lima", "2026-03-01", 5)]
