"""The session of the Spark tests, for all tests of this directory."""

from __future__ import annotations

from tests.spark.conftest import conf, feed, job, spark, tracker

__all__ = ["conf", "feed", "job", "spark", "tracker"]
