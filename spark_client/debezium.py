"""Fronts for change data as Debezium writes it.

>>> from spark_client import debezium
>>> rows = raw.where(debezium.in_snapshot()).withColumn("table", F.col("source.table"))                 # doctest: +SKIP
>>> tracking.source(rows, "snapshot", substream="table", front=debezium.snapshot_end())                # doctest: +SKIP

A snapshot's first table stays open if it has one row, which has the mark ``first`` alone, and so does one whose last
row a compacted topic has lost: see `snapshot_end` for what to do.
"""

from spark_client.plan.changes import in_snapshot, snapshot_end, transaction_counts

__all__ = ["in_snapshot", "snapshot_end", "transaction_counts"]
