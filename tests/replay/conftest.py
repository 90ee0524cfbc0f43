"""The Spark session and the tracker of `tests/spark`."""

from __future__ import annotations

from tests.spark.conftest import feed, job, spark, tracker

__all__ = ["feed", "job", "spark", "tracker"]
