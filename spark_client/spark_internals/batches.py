"""What Spark's checkpoint says of a batch: when it was planned, and where its sources stood.

Spark writes it down before the batch runs, so it is the same whenever the batch is run again. It deletes it after a
hundred batches; who needs it longer keeps it. This module only reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a query; what is not known is None.

    Attributes:
        at: when it was planned, in microseconds since the epoch.
        since: the sources' offsets before it, as Spark writes them: one line a source.
        until: those after it.
    """

    at: int | None = None
    since: str | None = None
    until: str | None = None


def planned(checkpoint: Path, epoch: int) -> Batch:
    """A batch of a release's query.

    Args:
        checkpoint: of the query, whose last source rings for ends: it is left out.
        epoch: the batch's number.
    """
    at, until = _planned(checkpoint, epoch)
    return Batch(at, _planned(checkpoint, epoch - 1)[1], until)


def _planned(checkpoint: Path, epoch: int) -> tuple[int | None, str | None]:
    try:
        version, metadata, *offsets = (checkpoint / "offsets" / str(epoch)).read_text("utf-8").splitlines()
    except (FileNotFoundError, ValueError):
        return None, None
    if version != "v1":
        return None, None
    return json.loads(metadata)["batchTimestampMs"] * 1000, "\n".join(offsets[:-1])
