"""The contents of a checkpoint of Spark's: batches planned and committed, offsets, files read, watermarks.

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
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql.streaming.query import StreamingQuery

from spark_client.errors import TrackingError, UsageError, check_faults, refused
from spark_client.spark_internals.errors import NOT_SHOWN
from spark_client.storage.folder import Folder

#: An entry of Spark's logs that is being written, and the file of its checksum.
_UNFINISHED: Final = re.compile(r"\.\d+\..+\.tmp|\.\.\d+\..+\.tmp\.crc")

#: An entry of Spark's logs, and the file of its checksum.
_ENTRY: Final = re.compile(r"\.?(\d+)(?:\.crc)?")

NOTHING_YET: Final = "-"  #: stands for the place of a source that has given nothing


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a query; what is not known is None.

    Attributes:
        at: when it was planned, in microseconds since the epoch.
        since: the sources' offsets before it, as Spark writes them: one line a source.
        until: the sources' offsets after it, in the same form.
    """

    at: int | None = None
    since: str | None = None
    until: str | None = None


def planned(checkpoint: Folder, epoch: int, since: str | None = None) -> Batch:
    """Return a batch of a release's query.

    Args:
        since: the sources' offsets before it; None: they are read.
    """
    at, until = _planned(checkpoint, epoch)
    return Batch(at, _planned(checkpoint, epoch - 1)[1] if since is None else since, until)


def _planned(checkpoint: Folder, epoch: int) -> tuple[int | None, str | None]:
    try:
        version, metadata, *offsets = lines_of(checkpoint, f"offsets/{epoch}")
    except (FileNotFoundError, ValueError):
        return None, None
    if version != "v1":
        return None, None
    return json.loads(metadata)["batchTimestampMs"] * 1000, "\n".join(offsets)


def positions(checkpoint: Folder, epoch: int | None) -> list[dict[str, Any]]:
    """Return up to where the sources of a query have been read, as each writes it, with a batch.

    Args:
        epoch: the batch's number; None: before the first, where sources of Kafka began.
    """
    try:
        if epoch is None:
            sources = checkpoint.names("sources")
            lines = [lines_of(checkpoint, f"sources/{name}0")[-1] for name in sources if name[-1] == "/"]
        else:
            version, _, *lines = lines_of(checkpoint, f"offsets/{epoch}")
            lines = lines if version == "v1" else []
    except (FileNotFoundError, ValueError, IndexError):
        return []
    found = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


# Relies on ``StreamingQuery._jsq`` and on ``StreamExecution.resolvedCheckpointRoot``. Fails closed: without an answer a
# checkpoint has to be named. Since Spark 4.0.


def checkpoint_of(query: StreamingQuery) -> str:
    """Return where a query of this process has its checkpoint, as Spark writes the place."""
    with refused(f"the checkpoint of {query!r} is not to be had", "Give its path", NOT_SHOWN):
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def query_id(checkpoint: Folder) -> str | None:
    """Return the id of the query whose checkpoint it is, as Spark has written it; None: none was started there."""
    metadata = checkpoint.read("metadata")
    return None if metadata is None else str(metadata["id"])


def first_id(checkpoint: Folder) -> str:
    """Return the id of the query whose checkpoint it is; if none was started there, the first one will have it."""
    return str(checkpoint.create("metadata", {"id": str(uuid.uuid4())})["id"])


def started_query(checkpoint: Folder) -> str:
    """Return the id of the query that was started in a checkpoint.

    Raises:
        TrackingError: no query was started there.
    """
    query = query_id(checkpoint)
    if query is None:
        raise TrackingError(
            f"no query was started with the checkpoint {checkpoint}, or its file `metadata` is gone, without which "
            "Spark does not go on from it: give the checkpoint that the query has"
        )
    return query


def drop_last_source(checkpoint: Folder, is_it: Callable[[dict[str, Any]], bool]) -> None:
    """Let a query go on without its last source: it is taken out of all batches that Spark may look up again.

    Args:
        checkpoint: of a query that does not run.
        is_it: whether a place is one of that source, as its JSON has it.
    """
    last = last_begun(checkpoint)
    for epoch in range(last, max(last - 3, -1), -1) if last is not None else ():
        try:
            *lines, place = lines_of(checkpoint, f"offsets/{epoch}")
            found = json.loads(place)
        except (FileNotFoundError, ValueError):
            continue
        if isinstance(found, dict) and is_it(found):
            offsets = checkpoint / "offsets"
            offsets.delete([f".{epoch}.crc"])  # it is the sum of what was there
            offsets.put(str(epoch), "\n".join(lines).encode())


def last_commit(checkpoint: Folder, known: int | None = None, begun: int | None = None) -> int | None:
    """Return the last batch that Spark has committed in a checkpoint; None: none yet.

    Args:
        known: a batch that is committed, from which a store of objects is asked for one after the other: a list costs
            as much as ten such questions.
        begun: the last batch that has begun; None: that is not known.
    """
    if known is None or checkpoint.path is not None:
        return _last(checkpoint, "commits")
    while known != begun and checkpoint.content(f"commits/{known + 1}") is not None:
        known += 1
    return known


def last_begun(checkpoint: Folder) -> int | None:
    """Return the last batch that Spark has planned in a checkpoint, whether or not it has committed it; None: none
    yet."""
    return _last(checkpoint, "offsets")


def _last(checkpoint: Folder, log: str) -> int | None:
    return max((int(name) for name in checkpoint.names(log) if name.isdigit()), default=None)


def files_after(checkpoint: Folder, epoch: int) -> Iterator[str]:
    """Yield the names of Spark's files in a checkpoint from which it goes on after a batch: of its logs the entries up
    to that one.

    Args:
        checkpoint: of a query that is at rest; what this package keeps in it is left out.
    """
    for name in checkpoint.below():
        log, _, entry = name.partition("/")
        if log in ("offsets", "commits"):
            if (match := _ENTRY.fullmatch(entry)) and int(match[1]) <= epoch:
                yield name
        elif log != "tracker":
            yield name


def clear_unfinished(checkpoint: Folder) -> None:
    """Remove what a driver has left that was killed while it wrote down its first batch.

    Spark writes an entry of its logs under another name and renames it. It takes a checkpoint that has no entry, and
    such a file, for one that another query uses, and would refuse it for ever (from Spark 4.1 on). Where there is any
    entry, or anything else, nothing is removed.

    Args:
        checkpoint: of a query that does not run.
    """
    found = {log: checkpoint.names(log) for log in ("offsets", "commits")}
    if all(_UNFINISHED.fullmatch(name) for names in found.values() for name in names):
        for log, names in found.items():
            (checkpoint / log).delete(names)


# Relies on how `HDFSMetadataLog` and `OffsetSeqLog` write: in UTF-8, the entry's lines with a line feed between them.
# Fails closed: a line that is cut elsewhere is no JSON.
#
# Since Spark 4.0.


def lines_of(checkpoint: Folder, log: str) -> list[str]:
    """Return a log's lines.

    Spark puts a line feed between them, and nothing else: names of files and offsets may have any of the other
    characters at which `str.splitlines` splits.

    Args:
        log: a file, such as ``offsets/0``.

    Raises:
        FileNotFoundError: the checkpoint has no such file.
    """
    content = checkpoint.content(log)
    if content is None:
        raise FileNotFoundError(checkpoint.url(log))
    return content.decode("utf-8").removesuffix("\n").split("\n")


# Relies on ``FileStreamSourceLog``: ``sources/S/N`` has, after the version, a line of JSON for each file of a batch,
# and ``sources/S/N.compact`` one for each file up to there. ``path`` is a URI, ``batchId`` is what the source's
# offset counts (``{"logOffset": N}``), and ``timestamp`` is, in milliseconds, when the file had changed last when
# Spark found it. Spark reads a file once: a later one of its name is never read. Fails open: a file that is not found
# there belongs to no batch, and is not known to be replaced.
#
# Since Spark 4.0.

_COMPACT: Final = ".compact"
_FILES: Final = re.compile(r"(\d+)(\.compact)?")


def entries_of(checkpoint: Folder, source: str) -> Iterator[dict[str, Any]]:
    """Yield what the log of a source has of each file that it has read; nothing for a source of another kind.

    Args:
        source: the number of the source, which need not be there.
    """
    log = f"sources/{source}"
    found = [(int(match[1]), bool(match[2])) for name in checkpoint.names(log) if (match := _FILES.fullmatch(name))]
    compact = max((number for number, compacted in found if compacted), default=-1)  # it has all that earlier ones have
    for number, compacted in sorted(found):
        if (number, compacted) >= (compact, True):
            lines = lines_of(checkpoint, f"{log}/{number}{_COMPACT if compacted else ''}")
            yield from (json.loads(line) for line in lines[1:] if '"path":' in line)


class FilesRead:
    """The files that a query has read so far. The logs of its sources are read once, when this is asked first."""

    def __init__(self, checkpoint: Folder) -> None:
        self._checkpoint = checkpoint
        self._real_directory = cache(os.path.realpath)

    def replaced(self, files: Iterable[str]) -> list[str]:
        """Return those of some files that have changed since Spark found them to read them.

        Args:
            files: paths of files that are there.
        """
        return [
            file
            for file in files
            if (read := self._times.get(self._real(file))) is not None
            and read != os.stat(file).st_mtime_ns // 1_000_000
        ]

    @cached_property
    def _times(self) -> dict[str, int]:
        """Return when each file had changed last when it was found, in milliseconds, by its real path."""
        times = {}
        for source in self._checkpoint.names("sources"):
            for entry in entries_of(self._checkpoint, source.rstrip("/")):
                scheme, _, path = str(entry["path"]).partition(":")
                if scheme == "file":
                    times[self._real("/" + unquote(path).lstrip("/"))] = int(entry["timestamp"])
        return times

    def _real(self, file: str) -> str:
        directory, name = os.path.split(file)
        return os.path.join(self._real_directory(directory), name)


# Relies on ``FileStreamSourceOffset``, which Spark writes into a checkpoint as ``{"logOffset": N}``: so 0.1 left it,
# and so it stays there. Fails open: another form would be taken for a place of this package. Since Spark 4.0.

OF_FILES: Final = "logOffset"  #: the one field of such a place


def is_of_files(offset: Mapping[str, Any]) -> bool:
    """Return whether a place in a checkpoint is one of Spark's source of files.

    >>> is_of_files({"logOffset": 3}), is_of_files({"5f0c": 3})
    (True, False)
    """
    return set(offset) == {OF_FILES}


# A query is led along the commits of another one: its batches are planned in its checkpoint, as Spark would plan them.
#
# Relies on a query that starts with the trigger ``once`` to run the last batch in ``offsets`` that is not in
# ``commits``, from where the batch before it ends, and no other (``MicroBatchExecution.populateStartOffsets``); and on
# a source going on from a copy of its folder ``sources/N``, which has the files that it has read, or where it began.
# Fails closed: who runs the batch looks at its number, and Spark refuses a checkpoint in which it misses something.
#
# Since Spark 4.0.


def reached(checkpoint: Folder, epoch: int, source: int | None) -> tuple[str, str] | None:
    """Return what Spark notes of a batch, and up to where a source of the query had been read with it, as each writes
    it; None: Spark has forgotten the batch.

    Args:
        source: its place among the query's sources; None: it is the only one.

    Raises:
        UsageError: there is no such source, or none whose rows can be read again.
    """
    try:
        version, noted, *places = lines_of(checkpoint, f"offsets/{epoch}")
    except (FileNotFoundError, ValueError):
        return None
    check_faults(
        f"the query of {checkpoint}",
        (version != "v1", f"has a log of offsets of the form {version}, and v1 is the one that is known"),
        (
            not 0 <= (source or 0) < len(places) or (source is None and len(places) > 1),
            f"reads {len(places)} sources, and one of them is followed: give source=0 for the first, up to "
            f"source={len(places) - 1}",
        ),
    )
    place = places[source or 0]
    with suppress(json.JSONDecodeError):
        if place != NOTHING_YET and not isinstance(json.loads(place), dict):
            raise UsageError(
                f"the source of the query of {checkpoint} gives rows that nobody can read again (its place is {place}, "
                "as of rate, a socket or memory): follow a query that reads Kafka, files or a table"
            )
    return noted, place


def plan_batch(own: Folder, epoch: int, planned: tuple[str, str], committed: bool = False) -> None:
    """Plan the next batch of a query that does not run.

    Args:
        planned: what Spark is to note of it, and up to where its only source is read.
        committed: it is taken for committed, so that the query begins after it.
    """
    if committed:
        own.put(f"commits/{epoch}", b'v1\n{"nextBatchWatermarkMs":0}')
    own.put(f"offsets/{epoch}", "\n".join(("v1", *planned)).encode())


def copy_source(observed: Folder, source: int, own: Folder) -> None:
    """Bring what a query notes of one of its sources into the checkpoint of another that has this source alone."""
    theirs, ours = observed / "sources" / str(source), own / "sources" / "0"
    have, before = _noted(ours), None
    while True:
        named = _noted(theirs)
        found = {name: theirs.content(name) for name in named if name not in have}
        if None not in found.values() or named == before:  # a store lists names of folders, which have no content
            break
        before = named  # Spark removes what it has put together in another file: then that one is there
    for name, content in found.items():
        if content is not None:
            ours.put(name, content)
    ours.delete([name for name in have if name not in named])


def _noted(source: Folder) -> list[str]:
    return [name for name in source.below() if not name.rpartition("/")[2].startswith(".")]


def files_between(checkpoint: Folder, epoch: int) -> dict[str, int]:
    """Return the files that the only source of a query has with a batch: when each had changed last as it was found, in
    milliseconds since 1970, by its path; none if the source is of another kind."""
    since, until = (
        json.loads(found[1]) if each >= 0 and (found := reached(checkpoint, each, 0)) else {}
        for each in (epoch - 1, epoch)
    )
    if not is_of_files(until):
        return {}
    after, last = since.get(OF_FILES, -1), until[OF_FILES]
    entries = (entry for entry in entries_of(checkpoint, "0") if after < entry["batchId"] <= last)
    return {unquote(entry["path"]): int(entry["timestamp"]) for entry in entries}


# Relies on the files of a checkpoint, which are read and never written:
#
# - ``offsets/N``, in version v1: a line of JSON with ``batchWatermarkMs`` and ``batchTimestampMs``, then a line for
# each source in the plan's order. Spark deletes them after a hundred batches. Fails open: such a batch is not known.
# - The log of a source of files: see `file_log`.
# - A batch drops rows by the watermark of the batch before it, and closes windows by its own (since Spark 3.4, which
# made several stateful operators in one query possible). Tested beside Spark's own results.
#
# Since Spark 4.0.


@dataclass(frozen=True, slots=True)
class WatermarkBatch:
    """A batch of a query with Spark's own watermark.

    Attributes:
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
        """Make a batch from its fields, as `dataclasses.asdict` and JSON give them."""
        return cls(**{**fields, "offsets": tuple(fields["offsets"])})


def batches_of(checkpoint: Folder, after: int = -1) -> list[WatermarkBatch]:
    """Return the batches that a checkpoint still has, in their order."""
    numbers = sorted(int(name) for name in checkpoint.names("offsets") if name.isdigit() and int(name) > after)
    return [batch for number in numbers if (batch := _batch(checkpoint, number)) is not None]


def _batch(checkpoint: Folder, number: int) -> WatermarkBatch | None:
    try:
        version, metadata, *offsets = lines_of(checkpoint, f"offsets/{number}")
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
        source: its place among the query's sources.
    """
    text = batch.offsets[source] if source < len(batch.offsets) else "null"
    if text == NOTHING_YET:
        return -1
    offset = json.loads(text)
    return int(offset[OF_FILES]) if isinstance(offset, dict) and is_of_files(offset) else None


def files_of(checkpoint: Folder, source: int) -> Iterator[tuple[str, int]]:
    """Yield the files that a source of files has read: path, and the source's own number of the batch.

    Args:
        source: its place among the query's sources.
    """
    for entry in entries_of(checkpoint, str(source)):
        yield entry["path"], entry["batchId"]
