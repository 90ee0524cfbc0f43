"""How many partitions a batch's own aggregations are exchanged in.

What crosses them is partial aggregates, far fewer than rows. Spark's own operators exchange in as many partitions as
the session says; adaptive execution would merge them afterwards, at the price of a job more for each exchange. Here
it is known beforehand about how much will cross.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_ROWS: Final = 50_000  #: that one partition takes


@contextmanager
def exchanging(spark: SparkSession, rows: int | None) -> Iterator[None]:
    """Plans that are run inside exchange about so many rows; never in more partitions than the session says.

    Args:
        spark: the session that runs them.
        rows: that will cross an exchange; None: not known.

    >>> with exchanging(spark, rows=10_000):                                              # doctest: +SKIP
    ...     rows.groupBy("key").count().write.parquet(path)
    """
    before = {key: str(spark.conf.get(key)) for key in (_PARTITIONS, _ADAPTIVE)}
    wanted = spark.sparkContext.defaultParallelism if rows is None else -(-rows // _ROWS)
    spark.conf.set(_PARTITIONS, max(1, min(wanted, int(before[_PARTITIONS]))))
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
