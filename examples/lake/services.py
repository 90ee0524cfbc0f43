"""A Spark Connect server for a lake: Delta, Iceberg with a catalog in SQLite, and an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from examples.services import jars
from examples.services.connect import ConnectServer
from examples.services.s3 import S3

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

_EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


class LakeServer(ConnectServer):
    """A server whose tables are in a store. The store's keys are in the environment, as applications have them, too.

    Attributes:
        catalog: the database of Iceberg's catalog `lake`.

    Raises:
        MissingError: jars are missing, or this Spark is not 4.1.
    """

    def __init__(self, directory: Path, store: S3) -> None:
        self.catalog = directory / "catalog.db"
        super().__init__(
            directory, {"spark.jars": ",".join([jars.lake(), jars.s3a()]), **settings(store.endpoint, self.catalog)}
        )


def settings(endpoint: str, catalog: Path) -> dict[str, str]:
    """Return Spark's settings for Delta, Iceberg and the store.

    Args:
        endpoint: the store's URL.
        catalog: the database of Iceberg's catalog `lake`.
    """
    lake = "spark.sql.catalog.lake"
    return {
        "spark.sql.extensions": ",".join(_EXTENSIONS),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        lake: "org.apache.iceberg.spark.SparkCatalog",
        f"{lake}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{lake}.uri": f"jdbc:sqlite:{catalog}",
        f"{lake}.warehouse": "s3a://state/warehouse",
        f"{lake}.jdbc.schema-version": "V1",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def catalog_of(store: S3, database: Path) -> SqlCatalog:
    """Return Iceberg's catalog `lake` for pyiceberg.

    Args:
        store: with the tables.
        database: of the catalog.
    """
    from pyiceberg.catalog.sql import SqlCatalog

    options = {
        "uri": f"sqlite:///{database}",
        "s3.endpoint": store.endpoint,
        "s3.region": store.environment["AWS_REGION"],
        "s3.access-key-id": store.environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": store.environment["AWS_SECRET_ACCESS_KEY"],
    }
    return SqlCatalog("lake", **options)


def environment(store: S3, endpoint: str = "") -> dict[str, str]:
    """Return the variables with which programs find the store.

    Args:
        store: that they use.
        endpoint: by which they reach the store; empty: its own.
    """
    return {**store.environment, "AWS_ENDPOINT_URL": endpoint or store.endpoint, "AWS_ALLOW_HTTP": "true"}
