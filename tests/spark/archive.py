"""Makes an archive of the classes that a JVM with Spark loads: ``python -m tests.spark.archive FILE [MASTER]``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.classes import OPTIONS, QUICK


def make(target: Path, master: str) -> None:
    """Have a JVM do a little of everything, and write at its end what it has loaded."""
    os.environ[OPTIONS] = f"{QUICK} -XX:ArchiveClassesAtExit={target} -Xlog:cds*=off"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", False)
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", 1).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    with tempfile.TemporaryDirectory() as directory:

        def write(rows: DataFrame, epoch: int) -> None:
            rows.write.parquet(f"{directory}/epoch={epoch}")
            written = spark.read.parquet(f"{directory}/epoch={epoch}")
            written.groupBy("s").agg(F.count("*"), F.max("id")).join(written, "s").collect()
            spark.createDataFrame([(1, "a")], "n int, s string").toPandas()

        spark.range(3).selectExpr("id", "cast(id as string) s").write.json(f"{directory}/raw")
        rows = spark.readStream.schema("id long, s string").json(f"{directory}/raw")
        query = rows.mapInArrow(same, rows.schema).writeStream.foreachBatch(write)
        query.option("checkpointLocation", f"{directory}/rows").trigger(availableNow=True).start().awaitTermination()
        counts = rows.groupBy("s").count().writeStream.format("memory").queryName("counts").outputMode("complete")
        counts.trigger(availableNow=True).start().awaitTermination()
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends, and writes; it does so after this process, if nobody waits
        gateway.proc.wait()


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve(), *(sys.argv[2:] or ["local[2]"]))
