"""Rows folded by substream in Arrow and numpy, in the driver and in tasks, which load little for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from spark_client.plan.layouts import RowLayout

Key: TypeAlias = tuple[Any, Any]  #: scope, and name or end in microseconds; None where the column is null
Folded: TypeAlias = dict[Key, tuple[int, int]]  #: how many rows each substream has, and the XOR of their labels


@dataclass(frozen=True)
class Fold:
    """Fold of the rows that a task writes, as text that travels to the driver.

    Args:
        layout: how the rows are laid out.
    """

    layout: RowLayout

    def __call__(self, rows: pa.Table) -> str:
        folded: Folded = {}
        for batch in rows.combine_chunks().to_batches():
            unite(folded, fold_labels(*self.layout.keys_and_labels(batch)))
        return json.dumps([[*key, *values] for key, values in folded.items()])

    @staticmethod
    def united(texts: Iterable[str]) -> Folded:
        """Return what several tasks have folded."""
        folded: Folded = {}
        for text in texts:
            unite(folded, {(scope, key): (rows, xor) for scope, key, rows, xor in json.loads(text)})
        return folded


def fold_labels(scopes: pa.Array, keys: pa.Array, labels: pa.Array | None) -> Folded:
    """Return the rows and the XOR of their labels, by substream.

    Args:
        scopes: one for each row.
        keys: names, or ends as timestamps, one for each row.
        labels: one for each row; None: their XOR is not asked for and given as 0.
    """
    if len(scopes) == 0:
        return {}
    scope_codes, scope_values = _codes(scopes)
    key_codes, key_values = _codes(plain(keys))
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


def unite(into: Folded, more: Mapping[Key, tuple[int, int]]) -> None:
    """Add what was folded elsewhere."""
    for key, (rows, xor) in more.items():
        had = into.get(key, (0, 0))
        into[key] = (had[0] + rows, had[1] ^ xor)


def plain(keys: Any) -> Any:
    """End as microseconds; names as they are."""
    if pa.types.is_timestamp(keys.type):
        return keys.cast(pa.timestamp("us", keys.type.tz)).cast(pa.int64())
    return keys


def _codes(values: pa.Array) -> tuple[Any, list[Any]]:
    if pa.types.is_dictionary(values.type) and not values.null_count:
        encoded = values
    else:
        decoded = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
        encoded = decoded.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()
