"""Rows counted by substream: aggregated by Spark, folded where they were written, or read back from files.

Arrow folds what is at hand in Python, or too small for a Spark job; a native aggregation counts a batch on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.counting.folding import Folded, Key, fold_labels, plain, unite
from spark_client.errors import TrackingError
from spark_client.fronts.front import IDENTITIES, Group
from spark_client.plan.layouts import RowLayout
from spark_client.plan.streams import Direction
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substreams
from tracker.client import Report

Dataset: TypeAlias = Any  #: of Arrow, which has no types

_FEW: Final = 4_000_000  #: rows up to which counting them here costs less than a Spark job does


def groups_of(folded: Iterable[tuple[Key, dict[str, Any]]], rule: Substreams) -> list[Group]:
    """Give folded rows the names of their substreams.

    Raises:
        TrackingError: rows that belong nowhere, since their scope, time or name is null.
    """
    groups: list[Group] = []
    for (scope, key), values in folded:
        if scope is None or key is None:
            what = rule.scope if scope is None else rule.keyed_by
            raise TrackingError(
                f"{values['_rows']} rows belong to no substream: {what} is null in them. Drop or repair them before "
                "they are tracked, for example raw.where('… is not null')"
            )
        values.setdefault("_xor", 0)
        groups.append((rule.substream(scope, key), values))
    return groups


def add_groups(report: Report, segment: str, direction: Direction, groups: Sequence[Group], rule: Substreams) -> None:
    """Put counted rows into a report: each as an element of all substreams that the tracker knows it as."""
    tracked = ((each, values) for substream, values in groups for each in rule.tracked_as(substream))
    for (scope, name, end_time), values in tracked:
        rows, xor = values["_rows"], values["_xor"]
        if direction == "passing":
            report.add(segment, scope, name, 0, sent=rows, received=rows, end_time=end_time)
        elif direction == "sent":
            report.add(segment, scope, name, xor, sent=rows, end_time=end_time)
        else:
            report.add(segment, scope, name, xor, received=rows, end_time=end_time)


def counted(rows: DataFrame, rule: Substreams, measures: Mapping[str, Column], labels: bool) -> DataFrame:
    """Count tracked rows by one native aggregation: a row for each substream, with `_scope`, `_key` and its figures.

    Args:
        rows: with the column `_tracker`.
        measures: further aggregates, by name.
        labels: also the XOR of their labels, as `_xor`.
    """
    xor = {"_xor": F.bit_xor(F.col(f"{TRACKER}.label"))} if labels else {}
    aggregates = {"_rows": F.count("*"), **xor, **measures}
    scope, key = F.col(f"{TRACKER}.scope").alias("_scope"), rule.plain(rule.key).alias("_key")
    return rows.groupBy(scope, key).agg(*[value.alias(name) for name, value in aggregates.items()])


def by_substream(rows: DataFrame, rule: Substreams, measures: Mapping[str, Column], labels: bool) -> list[Group]:
    """Return the groups of tracked rows, as `counted` counts them, on the driver.

    Returns:
        For each substream `_rows`, `_xor` (0 without labels) and the measures.
    """
    return groups_in((row.asDict() for row in counted(rows, rule, measures, labels).collect()), rule)


def groups_in(found: Iterable[dict[str, Any]], rule: Substreams) -> list[Group]:
    """Return the groups that rows of `counted` are, each as a dict."""
    return groups_of((((row.pop("_scope"), row.pop("_key")), row) for row in found), rule)


def in_files(folder: Folder, layout: RowLayout, rows: Callable[[], DataFrame]) -> list[Group]:
    """Count tracked rows that were just written: here, if they are few, and natively if they are many.

    Args:
        rows: gives the same as a DataFrame, which takes Spark a while.
    """
    written = files(folder, layout.texts)
    if written.count_rows() > _FEW:
        return by_substream(rows(), layout.rule, {}, labels=True)
    folded: Folded = {}
    for batch in written.to_batches(columns=[name for name in layout.columns if name in written.schema.names]):
        unite(folded, fold_labels(*layout.keys_and_labels(batch)))
    return of_folded(folded, layout.rule)


def of_folded(folded: Folded, rule: Substreams) -> list[Group]:
    """Return the groups that folded rows are."""
    return groups_of(((key, {"_rows": number, "_xor": xor}) for key, (number, xor) in folded.items()), rule)


def files(folder: Folder, texts: Sequence[str] = (), names: Sequence[str] = ()) -> Dataset:
    """Return the Parquet files that a batch has written into a folder, as a dataset of Arrow.

    Args:
        texts: columns of strings that are wanted as dictionaries, as they are in the files.
        names: of the files; none: all that the folder holds.
    """
    import pyarrow.dataset as ds  # which tasks of a probe need not load

    form = ds.ParquetFileFormat(
        coerce_int96_timestamp_unit="us",  # Spark writes Parquet's oldest form of timestamps by default
        dictionary_columns=list(texts),
    )
    if folder.path is not None:
        return ds.dataset(str(folder), format=form, exclude_invalid_files=False, ignore_prefixes=["_", "."])
    pieces = [form.make_fragment(pa.BufferReader(folder.content(file))) for file in names or folder.files()]
    return ds.FileSystemDataset(pieces, pieces[0].physical_schema if pieces else pa.schema([]), form)


def fold_table(table: pa.Table, xor: str | None, largest: Sequence[str]) -> dict[Key, dict[str, Any]]:
    """Fold a table with `_scope`, `_key` and `_rows`.

    Args:
        xor: a column of which the XOR is taken, beside that of identities.
        largest: columns of which the greatest is taken, but for the identities.

    Returns:
        By substream ``_rows``, which are added up, and the other columns.
    """
    by_xor = [name for name in (xor, *largest) if name is not None and name in (xor, IDENTITIES)]
    largest = [name for name in largest if name not in by_xor]
    table = table.combine_chunks().set_column(table.schema.get_field_index("_key"), "_key", plain(table["_key"]))
    summed = table.group_by(["_scope", "_key"]).aggregate([("_rows", "sum"), *((name, "max") for name in largest)])
    folded: dict[Key, dict[str, Any]] = {
        (row["_scope"], row["_key"]): {"_rows": row["_rows_sum"], **{name: row[f"{name}_max"] for name in largest}}
        for row in summed.to_pylist()
    }
    for name in by_xor if table.num_rows else ():
        for key, (_, value) in fold_labels(_one(table["_scope"]), _one(table["_key"]), _one(table[name])).items():
            folded[key][name] = value
    return folded


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
