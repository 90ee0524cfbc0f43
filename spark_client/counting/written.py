"""What a batch has written, read where it was written: without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.dataset as ds  # type: ignore[import-untyped]


def files(path: Path, texts: Sequence[str] = ()) -> ds.Dataset:
    """Return the Parquet files of a directory.

    Args:
        path: of it.
        texts: columns of strings that are wanted as dictionaries, as they are in the files.
    """
    form = ds.ParquetFileFormat(
        coerce_int96_timestamp_unit="us",  # Spark writes Parquet's oldest form of timestamps, unless told otherwise
        dictionary_columns=list(texts),
    )
    return ds.dataset(str(path), format=form, exclude_invalid_files=False, ignore_prefixes=["_", "."])
