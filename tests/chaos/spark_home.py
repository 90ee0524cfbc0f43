"""The Spark of the rounds: a home of their own, as executors work beneath it, and how its processes start sooner.

Starting a JVM with Spark is mostly loading some ten thousand classes. An archive of them (class data sharing) halves
the processor time of a start; a run of many killed drivers is worth making one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyspark
from pyspark.sql import DataFrame, SparkSession

ARCHIVE = "CHAOS_ARCHIVE"  #: the environment variable that names it
_REPOSITORY = Path(__file__).parents[2]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  #: for JVMs that live for seconds


def spark_home(path: Path) -> Path:
    """Makes a directory that looks like Spark's, with nothing of its own."""
    installed = Path(pyspark.__file__).parent
    path.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "python", "sbin"):
        if (installed / name).exists() and not (path / name).exists():
            (path / name).symlink_to(installed / name)
    return path


def archive(home: Path) -> Path | None:
    """Makes an archive of the classes that a job loads; None if this JVM cannot.

    Args:
        home: of `spark_home`: an archive holds for its class path only.
    """
    target = home / "classes.jsa"
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(_REPOSITORY)}
    program = [sys.executable, "-m", "tests.chaos.spark_home", str(target)]
    subprocess.run(program, env=environment, capture_output=True, check=False, cwd=home)
    return target if target.exists() else None


def java_options() -> str:
    """What drivers and executors are started with."""
    made = os.environ.get(ARCHIVE)
    return f"{QUICK} -XX:SharedArchiveFile={made} -Xlog:cds=off" if made else QUICK


def _load_classes(target: Path) -> None:
    """Has a JVM do a little of everything, and write what it has loaded at its end."""
    builder = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.ui.enabled", False)
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", 1)
    spark = builder.config("spark.driver.extraJavaOptions", f"{QUICK} -XX:ArchiveClassesAtExit={target}").getOrCreate()
    out = str(target.parent / "loaded")

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def write(rows: DataFrame, epoch: int) -> None:
        rows.write.parquet(f"{out}/epoch={epoch}")
        spark.read.parquet(f"{out}/epoch={epoch}").groupBy("value").count().collect()

    rows = spark.readStream.format("rate").load()
    query = rows.mapInArrow(same, rows.schema).writeStream.foreachBatch(write)
    query.option("checkpointLocation", f"{out}/checkpoint").trigger(once=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    _load_classes(Path(sys.argv[1]))
