"""Counting on the driver: a native aggregation of a batch, or of the files that it has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.counting.folding import Key, fold_labels, unite
from spark_client.counting.groups import groups_of
from spark_client.counting.written import files
from spark_client.plan.fronts import Group
from spark_client.plan.layouts import RowLayout
from spark_client.windows.substreams import Substreams

_FEW = 4_000_000  #: rows up to which counting them here costs less than a Spark job does


def by_substream(rows: DataFrame, rule: Substreams, measures: Mapping[str, Column], labels: bool) -> list[Group]:
    """Count tracked rows on the driver, by one native aggregation.

    Args:
        rows: with the column `_tracker`.
        rule: how they fall into substreams.
        measures: further aggregates, by name.
        labels: also the XOR of their labels; without, `_xor` is 0.

    Returns:
        For each substream `_rows`, `_xor` and the measures.
    """
    xor = {"_xor": F.bit_xor(F.col(f"{TRACKER}.label"))} if labels else {}
    aggregates = {"_rows": F.count("*"), **xor, **measures}
    scope, key = F.col(f"{TRACKER}.scope").alias("_scope"), rule.end_micros().alias("_key")
    grouped = rows.groupBy(scope, key).agg(*[value.alias(name) for name, value in aggregates.items()])
    collected = [row.asDict() for row in grouped.collect()]
    return groups_of((((row.pop("_scope"), row.pop("_key")), row) for row in collected), rule)


def in_files(path: Path, layout: RowLayout, rows: Callable[[], DataFrame]) -> list[Group]:
    """Count tracked rows that were just written: here, if they are few, and natively if they are many.

    Args:
        path: of the Parquet files.
        layout: of the files.
        rows: gives the same as a DataFrame, which takes Spark a while.
    """
    written = files(path, layout.texts)
    if written.count_rows() > _FEW:
        return by_substream(rows(), layout.rule, {}, labels=True)
    counted: dict[Key, tuple[int, int]] = {}
    for batch in written.to_batches(columns=[name for name in layout.columns if name in written.schema.names]):
        unite(counted, fold_labels(*layout.keys_and_labels(batch)))
    return groups_of(((key, {"_rows": number, "_xor": xor}) for key, (number, xor) in counted.items()), layout.rule)
