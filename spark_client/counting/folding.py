"""Folding columns by substream, in Arrow and numpy: for what is at hand in Python, or too small for a Spark job.

Knows nothing of trackers, queries or where columns come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

Key: TypeAlias = tuple[Any, Any]  #: scope, and name or end in microseconds; None where the column is null


def fold_labels(scopes: pa.Array, keys: pa.Array, labels: pa.Array | None) -> dict[Key, tuple[int, int]]:
    """Return the rows and the XOR of their labels, by substream.

    Args:
        scopes: one for each row.
        keys: names, or ends as timestamps, one for each row.
        labels: one for each row; None: their XOR is not asked for and given as 0.
    """
    if len(scopes) == 0:
        return {}
    scope_codes, scope_values = _codes(scopes)
    key_codes, key_values = _codes(_plain(keys))
    known = len(key_values)
    cells = scope_codes * known + key_codes
    pairs = len(scope_values) * known
    if pairs <= 4 * len(cells):
        taken = np.arange(pairs)
    else:  # most of them have no row
        taken, cells = np.unique(cells, return_inverse=True)
    rows = np.bincount(cells, minlength=len(taken))
    folded_xor = np.zeros(len(taken), np.int64)
    if labels is not None:
        np.bitwise_xor.at(folded_xor, cells, labels.to_numpy(zero_copy_only=False))
    return {
        (scope_values[cell // known], key_values[cell % known]): (number, xor)
        for cell, number, xor in zip(taken.tolist(), rows.tolist(), folded_xor.tolist(), strict=True)
        if number
    }


def fold_table(table: pa.Table, xor: str | None, largest: Sequence[str]) -> dict[Key, dict[str, Any]]:
    """Fold a table with `_scope`, `_key` and `_rows`: sums `_rows`, XORs one column, takes the greatest of others."""
    table = table.combine_chunks().set_column(table.schema.get_field_index("_key"), "_key", _plain(table["_key"]))
    summed = table.group_by(["_scope", "_key"]).aggregate([("_rows", "sum"), *((name, "max") for name in largest)])
    folded: dict[Key, dict[str, Any]] = {
        (row["_scope"], row["_key"]): {"_rows": row["_rows_sum"], **{name: row[f"{name}_max"] for name in largest}}
        for row in summed.to_pylist()
    }
    if xor is not None and table.num_rows:
        for key, (_, value) in fold_labels(_one(table["_scope"]), _one(table["_key"]), _one(table[xor])).items():
            folded[key]["_xor"] = value
    return folded


def unite(into: dict[Key, tuple[int, int]], more: Mapping[Key, tuple[int, int]]) -> None:
    """Add what was folded elsewhere."""
    for key, (rows, xor) in more.items():
        had = into.get(key, (0, 0))
        into[key] = (had[0] + rows, had[1] ^ xor)


def _plain(keys: Any) -> Any:
    """End as microseconds; names as they are."""
    if pa.types.is_timestamp(keys.type):
        return keys.cast(pa.timestamp("us", keys.type.tz)).cast(pa.int64())
    return keys


def _codes(values: pa.Array) -> tuple[Any, list[Any]]:
    if pa.types.is_dictionary(values.type) and not values.null_count:
        encoded = values
    else:
        plain = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
        encoded = plain.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
