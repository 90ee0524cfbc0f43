"""The state store of RocksDB is still called so, and a session with it is known."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_client.spark_internals.plans import PROVIDER, ROCKSDB, is_rocksdb, provider_of

pytestmark = pytest.mark.spark


def test_the_state_store_of_rocksdb_is_called_so(spark: SparkSession) -> None:
    assert not is_rocksdb(spark)
    spark.conf.set(PROVIDER, ROCKSDB)
    try:
        assert is_rocksdb(spark)
        assert provider_of(spark) == ROCKSDB
        assert spark._jvm is not None
        assert spark._jvm.java.lang.Class.forName(ROCKSDB) is not None
        spark.conf.set(PROVIDER, f"org.example.{ROCKSDB.rpartition('.')[2]}")
        assert is_rocksdb(spark), "another build of Spark has it in a package of its own"
    finally:
        spark.conf.unset(PROVIDER)
