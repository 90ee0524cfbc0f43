"""The state of a release as files that others read, with all else that a checkpoint needs to go on from there.

The state of open substreams is a table in Parquet, in the form that `plan.state` describes. The rest (how far Spark's
query has read, what came late, revisions) is copied as it is: it makes sense to this package and Spark only.
"""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from spark_client.counting import once
from spark_client.errors import TrackingError
from spark_client.plan.state import exported
from spark_client.release import inbox
from spark_client.release.aggregation import only
from spark_client.release.committed import READERS, CommittedState, committed
from spark_client.release.parts import joined
from spark_client.spark_internals.checkpoints import files_after, last_commit, query_id, started_query
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.directories import WHOLE, as_batches_write, write_json
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substreams

STATE: Final = "state"  #: the directory of the table, and of its index
POSITION: Final = "position.json"
REST: Final = "checkpoint.tar"
#: Entries of a checkpoint that `REST` leaves out: they are written in another form, or are made again.
_LEFT_OUT: Final = frozenset({"state", inbox.ACTS, inbox.BEFORE, "made", READERS, "query.json", "restored.json"})


def export(spark: SparkSession, checkpoint: Folder, target: Path) -> dict[str, Any]:
    """Write what a release's query holds into a directory.

    Args:
        checkpoint: of the query, which does not run.
        target: the directory, which is made, on the driver's disk.

    Returns:
        Its description: the query's id, its last batch, what it is, how many substreams its state has.

    Raises:
        UsageError: it is no release's.
        TrackingError: its state is damaged; or its next batch has begun, and was not committed.
    """
    with committed(checkpoint) as state:
        if has_begun(checkpoint, state.epoch + 1):
            raise TrackingError(
                f"batch {state.epoch + 1} of {checkpoint} has begun to release, and was not committed: its results may "
                "be out, and the state still has what they were made of. Start the query again, which completes it, "
                "and export then"
            )
        whole = joined(state.parts, STATE)
        target.mkdir(parents=True)
        if state.parts:
            fetch(_rows(spark, state), checkpoint, target / STATE)
        whole.index(Folder(target))
        fields = {name: value for name, value in state.fields.items() if name not in ("parts", "dead")}
        write_json(target / POSITION, fields)
        with tarfile.open(target / REST, "w") as archive:
            for name in _rest(checkpoint, state.epoch):
                if content := checkpoint.content(name):  # Hadoop marks a folder in a bucket by an empty object
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return {
            "id": started_query(checkpoint),
            "checkpoint": str(checkpoint),
            "epoch": state.epoch,
            "substreams": len(whole.live),
            "rows": sum(tally.rows for tally in whole.rows.values()),
            "query": dict(state.query),
        }


def has_begun(checkpoint: Folder, epoch: int) -> bool:
    """Return whether an attempt of a batch of a release's query has begun to act: its results may be out."""
    tracker = checkpoint / "tracker"
    return inbox.has_begun(tracker / inbox.ACTS, tracker / inbox.BEFORE, epoch)


def has_gone_on(checkpoint: Folder, query: str, epoch: int) -> bool:
    """Return whether a query has released something after a batch, as far as its checkpoint can be seen from here.

    Args:
        checkpoint: where it was; it may be gone, or elsewhere.
    """
    try:
        if query_id(checkpoint) != query:
            return False
        last = last_commit(checkpoint)
        return (last is not None and last > epoch) or has_begun(checkpoint, epoch + 1)
    except (OSError, TrackingError):
        return False


def _rows(spark: SparkSession, state: CommittedState) -> DataFrame:
    rule = Substreams.from_json(state.query["substreams"])
    read = spark.read.options(**WHOLE, mergeSchema="true")
    found = [only(read.parquet(*paths), rule, substreams) for paths, substreams in state.selections(state.living)]
    partials = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), found)
    return exported(partials, state.query, rule)


def fetch(rows: DataFrame, checkpoint: Folder, target: Path) -> None:
    """Write rows as Parquet where executors can, in a checkpoint, and move them to the driver's disk.

    Args:
        target: a directory, which is made.
    """
    readers, name = checkpoint / "tracker" / READERS, uuid.uuid4().hex
    target.mkdir(parents=True)
    try:
        with as_batches_write(rows.sparkSession):
            readers.write(name, Parquet(rows))
        for file in (readers / name).files():
            (readers / name).take(file, target / file)
    finally:
        readers.remove(name)


def _rest(checkpoint: Folder, epoch: int) -> Iterator[str]:
    """Yield the names of the other files of a checkpoint after a batch."""
    yield from files_after(checkpoint, epoch)
    for name in (checkpoint / "tracker").below():
        part, _, inside = name.partition("/")
        if part in _LEFT_OUT or part.startswith("_"):
            continue
        if part != once.IDENTITIES or not once.is_later(inside, epoch):  # the next batch may have other rows there
            yield f"tracker/{name}"
