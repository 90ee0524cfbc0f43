"""The Spark session of all Spark tests, for a job that runs no service."""

from tests.spark.conftest import feed, job, spark

__all__ = ["feed", "job", "spark"]
