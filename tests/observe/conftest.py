"""The session, the tracker and the feed of all Spark tests, and a query that is observed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.observe.untouched import Untouched
from tests.spark.conftest import conf, feed, job, spark, tracker
from tests.spark.feed import Feed

__all__ = ["conf", "feed", "job", "spark", "tracker"]


@pytest.fixture
def query(spark: SparkSession, feed: Feed, tmp_path: Path) -> Untouched:
    """Return a query that knows nothing of a tracker: rows of the feed, a file a batch, into a table of files."""
    return Untouched(feed.stream(spark), tmp_path / "theirs")
