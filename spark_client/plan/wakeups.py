"""Wake-ups beside rows: rows of another stream that only make a batch happen."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

WAKE_UP: Final = "_tracker_wake_up"  #: the column of a batch whose rows may be wake-ups: true in those


def beside(rows: DataFrame, wake_ups: DataFrame) -> DataFrame:
    """Return the rows, with `WAKE_UP`, and a row of nulls for each wake-up."""
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
    return rows.withColumn(WAKE_UP, F.lit(False)).unionByName(wake_ups.select(*nothing, F.lit(True).alias(WAKE_UP)))
