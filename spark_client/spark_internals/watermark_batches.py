"""Under which watermark each batch of a query with Spark's own operators ran, and which files it read.

Relies on the files of a checkpoint, which are read and never written:

- ``offsets/N``, in version v1: a line of JSON with ``batchWatermarkMs`` and ``batchTimestampMs``, then a line for each
  source in the plan's order. Spark deletes them after a hundred batches. Fails open: such a batch is not known.
- The log of a source of files: see `file_log`.
- A batch drops rows by the watermark of the batch before it, and closes windows by its own (since Spark 3.4, which made
  several stateful operators in one query possible). Tested beside Spark's own results.

Since Spark 4.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_client.spark_internals.file_log import entries_of
from spark_client.spark_internals.file_offsets import OF_FILES, is_of_files
from spark_client.spark_internals.loglines import lines_of

_NOTHING_YET: Final = "-"  # what Spark writes for a source that has given nothing


@dataclass(frozen=True, slots=True)
class WatermarkBatch:
    """A batch of a query with Spark's own watermark.

    Attributes:
        number: of the batch.
        at: when it was planned, in milliseconds since 1970.
        watermark: by which it closes windows, in milliseconds since 1970.
        offsets: of the sources after it, as Spark writes them.
    """

    number: int
    at: int
    watermark: int
    offsets: tuple[str, ...]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> WatermarkBatch:
        """From its fields, as `dataclasses.asdict` and JSON give them."""
        return cls(**{**fields, "offsets": tuple(fields["offsets"])})


def batches_of(checkpoint: Path, after: int = -1) -> list[WatermarkBatch]:
    """Return the batches that a checkpoint still has, in their order.

    Args:
        checkpoint: of the query.
        after: only those with greater numbers.
    """
    names = [path.name for path in (checkpoint / "offsets").glob("[0-9]*")]
    numbers = sorted(int(name) for name in names if name.isdigit() and int(name) > after)
    return [batch for number in numbers if (batch := _batch(checkpoint, number)) is not None]


def _batch(checkpoint: Path, number: int) -> WatermarkBatch | None:
    try:
        version, metadata, *offsets = lines_of(checkpoint / "offsets" / str(number))
    except (FileNotFoundError, ValueError):  # Spark has deleted it meanwhile
        return None
    if version != "v1":
        return None
    planned = json.loads(metadata)
    return WatermarkBatch(number, planned["batchTimestampMs"], planned["batchWatermarkMs"], tuple(offsets))


def last_of_files(batch: WatermarkBatch, source: int) -> int | None:
    """Return how far a source of files had come with a batch: the source's own number; -1: not begun; None: no such
    source.

    Args:
        batch: of the query.
        source: its place among the query's sources.
    """
    text = batch.offsets[source] if source < len(batch.offsets) else "null"
    if text == _NOTHING_YET:
        return -1
    offset = json.loads(text)
    return int(offset[OF_FILES]) if isinstance(offset, dict) and is_of_files(offset) else None


def files_of(checkpoint: Path, source: int) -> Iterator[tuple[str, int]]:
    """Yield the files that a source of files has read: path, and the source's own number of the batch.

    Args:
        checkpoint: of the query.
        source: its place among the query's sources.
    """
    for entry in entries_of(checkpoint / "sources" / str(source)):
        yield entry["path"], entry["batchId"]
