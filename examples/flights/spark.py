"""The local Spark session of the demonstration: two cores, small batches, no network.

The settings make a micro-batch of a thousand rows cheap on a laptop; none of them has to do with tracking.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # list directories without a job
    # Offset and commit logs on the local disk, without checksum files: a tenth of the time.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Short batches: interpret expressions, compile quickly rather than well.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}


class JavaMissingError(Exception):
    """Spark needs Java and found none."""


@contextmanager
def local_session(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session on two cores whose files stay below `directory`; `spark.log` has the output of Spark."""
    spark = _start(directory, settings or {})
    try:
        yield spark
    except (KeyboardInterrupt, SystemExit):
        # A signal may have cut a call to the JVM in two; whatever is said on that connection is misunderstood.
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        gateway.proc.terminate()
        gateway.proc.wait()
        raise
    except Exception:
        spark.stop()
        raise
    else:
        spark.stop()


def _start(directory: Path, settings: Mapping[str, str]) -> SparkSession:
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    if shutil.which(java) is None:
        raise JavaMissingError("Spark needs Java 17 or newer: install it, or let JAVA_HOME name it")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_DIRS"] = str(directory / "spark")
    builder = SparkSession.builder.master("local[2]").appName("flights")
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    with _undisturbed(), _stderr_to(directory / "spark.log"):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back: one that meets PySpark while it starts the JVM would leave that behind."""
    met: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: met.append(number)) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
        for late in met:
            signal.raise_signal(late)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the stderr of processes that are started meanwhile to a file, for as long as they live."""
    ours = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
