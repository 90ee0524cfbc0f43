"""What stands in a checkpoint of Spark's: whose it is, which batches were planned and committed, and what was planned.

Relies on the files of a checkpoint (``StreamMetadata``, ``OffsetSeqLog``, ``CommitLog``, ``HDFSMetadataLog``):

- ``metadata`` has the query's id before the query's start is announced. Fails closed: its run is not opened.
- ``commits/N`` appears when batch N is committed, and batch N + 1 does not begin before that. Fails closed: without
  these files nothing counts as committed. With asynchronous progress tracking it would be otherwise: that is refused.
- ``offsets/N``, in version v1, has what batch N reads, a line for each source in the plan's order, after a line that
  tells when it was planned. It is written before the batch runs, so it is the same whenever the batch is run again, and
  deleted after a hundred batches; who needs it longer keeps it. Fails open: receipts are without it.
- A query goes on behind a committed batch from a copy of all files, less the entries of both logs after that batch.
  Fails closed: Spark refuses a checkpoint in which it misses something.
- ``sources/N/0`` has where a source of Kafka began, in version v1: a line with the version, after a byte of zero, and
  the offsets. It is there before the first batch, which does not come if there is nothing to read. Fails closed: who
  waits for that position goes on waiting.
- An entry is written under another name, ``.N.….tmp``, and renamed (``CheckpointFileManager``). Fails closed: a file of
  another form is left alone, and Spark refuses a checkpoint with it in a sentence of its own (from 4.1 on).

Since Spark 4.0.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_client.errors import TrackingError
from spark_client.spark_internals.loglines import lines_of

#: An entry of Spark's logs that is being written, and the file of its checksum.
_UNFINISHED: Final = re.compile(r"\.\d+\..+\.tmp|\.\.\d+\..+\.tmp\.crc")

#: An entry of Spark's logs, and the file of its checksum.
_ENTRY: Final = re.compile(r"\.?(\d+)(?:\.crc)?")


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
    """Return a batch of a release's query.

    Args:
        checkpoint: of the query, whose last source rings for ends: it is left out.
        epoch: the batch's number.
    """
    at, until = _planned(checkpoint, epoch)
    return Batch(at, _planned(checkpoint, epoch - 1)[1], until)


def _planned(checkpoint: Path, epoch: int) -> tuple[int | None, str | None]:
    try:
        version, metadata, *offsets = lines_of(checkpoint / "offsets" / str(epoch))
    except (FileNotFoundError, ValueError):
        return None, None
    if version != "v1":
        return None, None
    return json.loads(metadata)["batchTimestampMs"] * 1000, "\n".join(offsets[:-1])


def positions(checkpoint: Path, epoch: int | None) -> list[dict[str, Any]]:
    """Return up to where the sources of a query have been read, as each writes it, with a batch.

    Args:
        checkpoint: of the query.
        epoch: the batch's number; None: before the first, where sources of Kafka began.
    """
    try:
        if epoch is None:
            lines = [lines_of(path)[-1] for path in sorted(checkpoint.glob("sources/*/0"))]
        else:
            version, _, *lines = lines_of(checkpoint / "offsets" / str(epoch))
            lines = lines if version == "v1" else []
    except (FileNotFoundError, ValueError, IndexError):
        return []
    found = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


def query_id(checkpoint: Path) -> str | None:
    """Return the id of the query whose checkpoint it is, as Spark has written it; None: none was started there."""
    try:
        metadata = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return str(metadata["id"])


def started_query(checkpoint: Path) -> str:
    """Return the id of the query that was started in a checkpoint.

    Raises:
        TrackingError: none was.
    """
    query = query_id(checkpoint)
    if query is None:
        raise TrackingError(
            f"no query was started with the checkpoint {checkpoint}, or its file `metadata` is gone, without which "
            "Spark does not go on from it: give the checkpoint that the query has"
        )
    return query


def last_commit(checkpoint: Path) -> int | None:
    """Return the last batch that Spark has committed in a checkpoint; None: none yet."""
    return max((int(name) for name in _entries(checkpoint / "commits") if name.isdigit()), default=None)


def last_begun(checkpoint: Path) -> int | None:
    """Return the last batch that Spark has planned in a checkpoint, whether or not it has committed it; None: none
    yet."""
    return max((int(name) for name in _entries(checkpoint / "offsets") if name.isdigit()), default=None)


def files_after(checkpoint: Path, epoch: int) -> Iterator[Path]:
    """Yield the files of Spark's in a checkpoint from which it goes on after a batch: of its logs the entries up to
    that one.

    Args:
        checkpoint: of a query that is at rest; what this package keeps in it is left out.
        epoch: the batch.
    """
    for log in (checkpoint / "offsets", checkpoint / "commits"):
        entries = [name for name in _entries(log) if (match := _ENTRY.fullmatch(name)) and int(match[1]) <= epoch]
        yield from sorted(log / name for name in entries)
    for entry in sorted(checkpoint.iterdir()):
        if entry.is_file():
            yield entry
        elif entry.name not in ("offsets", "commits", "tracker"):
            yield from sorted(each for each in entry.rglob("*") if each.is_file())


def clear_unfinished(checkpoint: Path) -> None:
    """Remove what a driver has left that was killed while it wrote down its first batch.

    Spark writes an entry of its logs under another name and renames it. It takes a checkpoint that has no entry, and
    such a file, for one that another query uses, and would refuse it for ever (from Spark 4.1 on). Where there is any
    entry, or anything else, nothing is removed.

    Args:
        checkpoint: of a query that does not run.
    """
    found = [log / name for log in (checkpoint / "offsets", checkpoint / "commits") for name in _entries(log)]
    if all(_UNFINISHED.fullmatch(path.name) for path in found):
        for path in found:
            path.unlink(missing_ok=True)


def _entries(log: Path) -> list[str]:
    try:
        return os.listdir(log)
    except FileNotFoundError:
        return []
