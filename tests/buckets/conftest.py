"""A store with the interface of S3, by a line that a test can look at and break; and a file system of Hadoop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from pyspark.sql import SparkSession

from examples.services.hdfs import Hdfs
from examples.services.jars import MissingError
from examples.services.s3 import S3
from tests.buckets.line import Line
from tests.spark.conftest import feed, job, spark, tracker

__all__ = ["feed", "job", "spark", "tracker"]

_numbers = count()


@pytest.fixture(scope="session")
def store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """Yield the line to the store. Its keys are Spark's settings, and no variables of the environment."""
    pytest.importorskip("obstore")
    if "hadoop-aws" not in str(spark.conf.get("spark.jars", "")):
        pytest.skip("Hadoop's client of S3 is fetched for Spark 4.1, by Maven")
    try:
        server = S3(tmp_path_factory.mktemp("s3"))
    except MissingError as missing:
        pytest.skip(str(missing))
    with server:
        line = Line(server.port)
        key, secret = server.environment["AWS_ACCESS_KEY_ID"], server.environment["AWS_SECRET_ACCESS_KEY"]
        line.settings = settings = {
            "endpoint": f"http://127.0.0.1:{line.port}",
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": key,
            "secret.key": secret,
            "attempts.maximum": "3",
            "fast.upload.buffer": "bytebuffer",  # the disk has a file system without sums here, which S3A does not take
        }
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        for name, value in settings.items():
            hadoop.set(f"fs.s3a.{name}", value)
        yield line
        line.close()


@pytest.fixture
def bucket(store: Line) -> str:
    """Return the URL of a place of the test's own."""
    return f"s3a://state/{next(_numbers)}"


@pytest.fixture(scope="session")
def hdfs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """Yield a file system of Hadoop."""
    try:
        files = Hdfs(tmp_path_factory.mktemp("hdfs"))
    except MissingError as missing:
        pytest.skip(str(missing))
    for name, value in Hdfs.quick.items():
        spark.sparkContext._jsc.hadoopConfiguration().set(name, value)
    with files:
        yield files


@pytest.fixture
def hadoop(hdfs: Hdfs) -> str:
    """Return the URL of a place of the test's own in a file system of Hadoop."""
    return f"{hdfs.url}/{next(_numbers)}"
