"""Which state store keeps the state of ``transformWithState``.

Relies on the name of the class that ``spark.sql.streaming.stateStore.providerClass`` has for RocksDB. Fails closed:
with another name the state is refused. Since Spark 4.1.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def provider_of(spark: SparkSession) -> str:
    """Return the class of a session's state store."""
    return str(spark.conf.get(PROVIDER))


def is_rocksdb(spark: SparkSession) -> bool:
    """Return whether a session keeps state in RocksDB."""
    return provider_of(spark).rpartition(".")[2] == ROCKSDB.rpartition(".")[2]
