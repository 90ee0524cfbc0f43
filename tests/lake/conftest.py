"""Tables of Delta and Iceberg in the session of all Spark tests, which has their jars."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import feed, job, spark, tracker

__all__ = ["feed", "job", "spark", "tracker"]

_numbers = count()


def catalog_at(warehouse: str, home: str | Path) -> dict[str, str]:
    """Return the settings of the catalog `lake` of Iceberg's, kept in SQLite in a folder."""
    return {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{home}/catalog.db",
        "spark.sql.catalog.lake.warehouse": warehouse,
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
    }


@pytest.fixture(scope="session", autouse=True)
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make the catalog `lake` of Iceberg's in the shared session, kept in SQLite, which pyiceberg reads as well."""
    if "iceberg" not in str(spark.conf.get("spark.sql.extensions", "")):
        pytest.skip("Delta and Iceberg are for Spark 4.1, and their jars come by Maven")
    if spark.conf.get("spark.sql.catalog.lake", None):
        return  # tests of another folder have made it, in the same session
    home = tmp_path_factory.mktemp("lake")
    settings = {
        **catalog_at(str(home / "warehouse"), home),
        "spark.sql.catalog.lake.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",  # Iceberg reads sums
        "spark.sql.catalog.lake.hadoop.fs.file.impl.disable.cache": "true",
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    spark.sql("create namespace lake.shop")


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.thorough)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Return a format, and the place of a table that is not there yet."""
    place = str(tmp_path / "table") if request.param == "delta" else f"lake.shop.table_{next(_numbers)}"
    return request.param, place


def append(rows: DataFrame, table: tuple[str, str]) -> None:
    """Commit rows to a table once; the first commit makes it."""
    file_format, place = table
    if file_format == "delta":
        rows.write.format("delta").mode("append").save(place)
    elif rows.sparkSession.catalog.tableExists(place):
        rows.writeTo(place).append()
    else:
        rows.writeTo(place).using("iceberg").create()


def followed(spark: SparkSession, table: tuple[str, str], **options: str) -> DataFrame:
    """Return the rows of a table, as a stream."""
    file_format, place = table
    return spark.readStream.format(file_format).options(**options).load(place)
