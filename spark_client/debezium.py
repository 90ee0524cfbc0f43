"""Fronts for change data as Debezium writes it.

>>> from spark_client import debezium
>>> rows = raw.where(debezium.in_snapshot()).withColumn("table", F.col("source.table"))                 # doctest: +SKIP
>>> tracking.source(rows, "snapshot", substream="table", front=debezium.snapshot_end())                # doctest: +SKIP
"""

from spark_client.plan.changes import in_snapshot, snapshot_end, transaction_counts

__all__ = ["in_snapshot", "snapshot_end", "transaction_counts"]
