"""A Spark Connect server for a lake: Delta, Iceberg with a catalog in SQLite, and an object store."""

from __future__ import annotations

from pathlib import Path

from examples.services import jars
from examples.services.connect import ConnectServer
from examples.services.s3 import S3

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
        lake = "spark.sql.catalog.lake"
        settings = {
            "spark.jars": ",".join([jars.lake(), jars.s3a()]),
            "spark.sql.extensions": ",".join(_EXTENSIONS),
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
            lake: "org.apache.iceberg.spark.SparkCatalog",
            f"{lake}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            f"{lake}.uri": f"jdbc:sqlite:{self.catalog}",
            f"{lake}.warehouse": "s3a://state/warehouse",
            f"{lake}.jdbc.schema-version": "V1",
            "spark.hadoop.fs.s3a.endpoint": store.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
        super().__init__(directory, settings)


def environment(store: S3) -> dict[str, str]:
    """The variables with which programs find the store."""
    return {**store.environment, "AWS_ENDPOINT_URL": store.endpoint, "AWS_ALLOW_HTTP": "true"}
