"""Settings of stores as Hadoop's clients have them, and files that tasks write themselves."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_client.errors import UsageError
from spark_client.spark_internals.stores import Parquet, _Puts, _settings, folder_of
from spark_client.storage.directories import parquet_of
from spark_client.storage.folder import Folder

pytestmark = pytest.mark.spark


@pytest.fixture
def hadoop(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Hadoop's configuration, as it was afterwards; no store has settings in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_REGION", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    found = spark.sparkContext._jsc.hadoopConfiguration()
    before = {name: found.get(name) for name in _NAMES}
    yield found
    for name, value in before.items():
        if value is None:
            found.unset(name)
        else:
            found.set(name, value)


_NAMES = [
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.endpoint",
    "fs.s3a.connection.ssl.enabled",
    "fs.s3a.bucket.lake.access.key",
    "fs.s3a.bucket.lake.secret.key",
    "fs.azure.account.key.box.dfs.core.windows.net",
    "google.cloud.auth.service.account.json.keyfile",
]


def test_keys_are_those_of_the_bucket_or_of_all(spark: SparkSession, hadoop: Any) -> None:
    hadoop.set("fs.s3a.access.key", "all")
    hadoop.set("fs.s3a.secret.key", "secret")
    hadoop.set("fs.s3a.bucket.lake.access.key", "lake")
    hadoop.set("fs.s3a.endpoint", "store:9000")
    hadoop.set("fs.s3a.connection.ssl.enabled", "false")
    found = _settings(spark, "s3a", "lake")
    assert (found["access_key_id"], found["secret_access_key"]) == ("lake", "secret")
    assert found["endpoint"] == "http://store:9000"
    assert _settings(spark, "s3a", "other")["access_key_id"] == "all"


def test_the_environment_comes_before_sparks_settings(
    spark: SparkSession, hadoop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hadoop.set("fs.s3a.access.key", "all")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    assert "access_key_id" not in _settings(spark, "s3a", "lake")


def test_azure_and_google_have_keys_of_their_own(spark: SparkSession, hadoop: Any) -> None:
    hadoop.set("fs.azure.account.key.box.dfs.core.windows.net", "key")
    hadoop.set("google.cloud.auth.service.account.json.keyfile", "/key.json")
    assert _settings(spark, "abfss", "lake@box.dfs.core.windows.net") == {"account_key": "key"}
    assert _settings(spark, "gs", "lake") == {"service_account": "/key.json"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [("s3a://b/a*", "reads otherwise"), ("dbfs:/x", "on a file system"), ("hdfs://n/x", "UnknownHost")],
)
def test_urls_that_cannot_be_used_are_refused(spark: SparkSession, url: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        folder_of(spark, url, "late_path")


@pytest.mark.thorough
def test_files_that_tasks_write_hold_what_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Each type that passes through Arrow comes back as it was, nulls and nested ones among them."""
    moment = datetime(2024, 1, 2, 3, 4, 5, 678901)
    values: list[Any] = [True, 1, 2**40, 1.5, Decimal("1.25"), "ä", b"\0", moment.date(), moment, timedelta(seconds=3)]
    values += [[1, None], {"a": 1}, (1, "x")]
    schema = (
        "a boolean, b int, c long, d double, e decimal(9,2), f string, g binary, h date, i timestamp, "
        "j interval day to second, k array<int>, l map<string,int>, m struct<x:int,y:string>"
    )
    rows = spark.createDataFrame([tuple(values), (None,) * len(values)], schema).repartition(2)
    names = [row[0] for row in rows.mapInArrow(_Puts(Folder(tmp_path)), "file string, seen string").collect()]
    found = parquet_of(spark, schema).parquet(*[str(tmp_path / name) for name in names])
    assert sorted(map(str, found.collect())) == sorted(map(str, rows.collect()))


def test_a_folder_on_a_disk_is_filled_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert Parquet(spark.range(3))(Folder(tmp_path / "rows")) == []
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 3
