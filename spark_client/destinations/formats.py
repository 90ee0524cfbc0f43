"""The formats that a release's writer takes, each with the destination that writes it: a new one is a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_client.destinations.delta import DeltaTable
from spark_client.destinations.destination import Destination, Written
from spark_client.destinations.files import FileDestination
from spark_client.destinations.iceberg import IcebergTable

FORMATS: Final[dict[str, Callable[[Written], Destination]]] = {
    "parquet": FileDestination,
    "orc": FileDestination,
    "json": FileDestination,
    "csv": FileDestination,
    "delta": DeltaTable.destination,
    "iceberg": IcebergTable.destination,
}

TABLES: Final = ("delta", "iceberg")  #: formats that a catalog may keep
