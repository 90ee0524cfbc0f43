"""One Spark session and one tracker for all tests of this directory; what a test kills is its own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from examples.services import jars
from tests.client.processes import Server
from tests.spark.feed import Feed

_numbers = count()
_EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


Threads = Callable[[], list[str]]

#: Marks of tests that have no form over Spark Connect.
CLOSURE = pytest.mark.classic("its functions and this process share objects")
AT_THE_START = pytest.mark.classic("the first batch refuses what the start refuses in a classic session")
IN_THE_JVM = pytest.mark.classic("it asks the JVM")

#: Mark of tests with a channel of files or tables.
CHANNELS = pytest.mark.skipif(pyspark.__version__ < "4", reason="channels are sources in Python, since Spark 4.0")


def settings() -> dict[str, Any]:
    """Return what tests want of Spark: four attempts a task, two cores, quick commits of small batches.

    Spark interprets expressions: to compile them for a few rows takes a fifth of all time. Tests that compare values
    with Spark's own use the fixture `compiled`. The demonstrations, chaos and the docs' programs compile as well.
    """
    package = "streaming" if pyspark.__version__ < "4.1" else "streaming.checkpointing"
    found, tables = [], {}
    with suppress(jars.MissingError):  # then the tests that need Kafka are skipped
        found.append(jars.connector())
    with suppress(jars.MissingError):  # then those that need Delta or Iceberg are
        found.append(jars.lake())
        tables = {
            "spark.sql.extensions": ",".join(_EXTENSIONS),
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    with suppress(jars.MissingError):  # then those that need a store of objects are
        found.append(jars.s3a())
    return {
        **({"spark.jars": ",".join(found)} if found else {}),
        **tables,
        "spark.master": "local[2,4]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        # With one tier, a JVM has 48 MiB for compiled code; once they are full, it throws out and compiles again.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }


def session(name: str = "tests") -> SparkSession:
    """Return a session with the tests' settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.appName(name).config(map=settings())
    for attempts_left in (2, 1, 0):
        try:
            spark = builder.getOrCreate()
            break
        except PySparkRuntimeError as error:
            # PySpark forks to start the JVM. Where gRPC was used in this process, its threads may be in the middle of
            # something, and the child can end before it becomes a JVM.
            if "JAVA_GATEWAY_EXITED" not in str(error) or not attempts_left:
                raise
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Yield the session of all tests: classic, or of a server of Spark Connect that the option names."""
    url = request.config.getoption("--connect")
    spark = SparkSession.builder.remote(url).getOrCreate() if url else session()
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a tracker that no test disturbs."""
    server = Server(tmp_path_factory.mktemp("tracker"), "memory")
    yield server
    server.stop()


@pytest.fixture
def mortal_tracker(tmp_path: Path) -> Iterator[Server]:
    """Yield a tracker of the test's own, to be killed: its journal is a file."""
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def mortal_trackers(tmp_path: Path) -> Iterator[list[Server]]:
    """Yield three trackers of the test's own that share its job, to be killed."""
    servers = []
    for number in range(3):
        directory = tmp_path / f"tracker {number}"
        directory.mkdir()
        servers.append(Server(directory))
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def job() -> str:
    """Return the name of a job of the test's own."""
    return f"job-{next(_numbers)}"


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "raw")


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """Set what a test needs of the session, and put it back."""
    before: dict[str, str | None] = {}

    def set_conf(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)

    yield set_conf
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.fixture
def compiled(conf: Any) -> None:
    """Let Spark compile expressions, as it does for users."""
    conf("spark.sql.codegen.wholeStage", "true")
    conf("spark.sql.codegen.factoryMode", "FALLBACK")


@pytest.fixture
def threads() -> Threads:
    """Return a function that names the threads of this package which the test has started and which go on."""
    before = set(threading.enumerate())
    return lambda: [t.name for t in threading.enumerate() if t not in before and t.name.startswith("tracking-")]
