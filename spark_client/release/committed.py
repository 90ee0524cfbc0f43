"""The state of a release as its last committed batch has left it, read beside the query that keeps it.

The query may compact and remove parts at any time. So their files are linked under another name first, which takes a
moment, and read from there: what is read is one version, whole, however long it takes.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from spark_client.errors import TrackingError, UsageError, check_faults
from spark_client.plan.releases import ReleasePlan
from spark_client.plan.state import can_read, differences, placed
from spark_client.release.aggregation import aggregation_of
from spark_client.release.parts import NOTE, Part, Selection, located, versions_of
from spark_client.spark_internals.checkpoints import last_commit
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream

READERS: Final = "readers"  #: beneath ``tracker``: files of those who read beside the query
_ABANDONED: Final = 86_400.0  #: seconds after which links that a reader has left, since it was killed, are removed


@dataclass(frozen=True)
class CommittedState:
    """One version of a release's state.

    Attributes:
        folder: that has the parts.
        epoch: the batch that has left it; -1: none was committed yet.
        fields: what its version has beside the parts; empty: there is no version yet.
        query: what its query is, from the checkpoint.
    """

    folder: Folder
    epoch: int
    fields: Mapping[str, Any]
    parts: list[Part]
    query: Mapping[str, Any]

    @property
    def living(self) -> dict[Substream, list[str]]:
        """The substreams that have not ended, with the parts in which they live."""
        living: dict[Substream, list[str]] = {}
        for part in self.parts:
            for substream in part.live:
                living.setdefault(substream, []).append(part.name)
        return living

    def selections(self, wanted: Mapping[Substream, Iterable[str]]) -> list[Selection]:
        """Return how to read some substreams in some parts each, and nothing else, by the parts' paths."""
        return located(self.folder, {part.name: part for part in self.parts}, wanted)


@contextmanager
def committed(checkpoint: Folder) -> Iterator[CommittedState]:
    """Yield the state after the last batch that Spark has committed; its files stay meanwhile.

    Args:
        checkpoint: of the release's query, which may run.

    Raises:
        UsageError: it is no release's.
        TrackingError: its state is damaged, or cannot be linked.
    """
    query = (checkpoint / "tracker").read(NOTE) or {}
    check_faults(
        str(checkpoint),
        (
            "releases" in query,
            f"is of a query that writes {', '.join(query.get('releases', []))} together: the state of several releases "
            "cannot be read or exported yet. Let a drain end what is open (tracking.drain()), or release into a query "
            "of its own what has to be read",
        ),
        (
            "aggregates" not in query,
            "is not the checkpoint of a release that has run: give the path that its query has as checkpointLocation",
        ),
    )
    if checkpoint.path is None:
        yield _newest(checkpoint, query)
        return
    readers = checkpoint.path / "tracker" / READERS
    _remove_abandoned(readers)
    links = readers / uuid.uuid4().hex
    try:
        yield _linked(checkpoint, links, query)
    finally:
        shutil.rmtree(links, ignore_errors=True)


def _newest(checkpoint: Folder, query: Mapping[str, Any]) -> CommittedState:
    folder = checkpoint / "tracker" / "state"
    while True:
        last = last_commit(checkpoint)
        epoch = -1 if last is None else last
        versions = [version for version in versions_of(folder.names()) if version.epoch <= epoch]
        if not versions:
            return CommittedState(folder, epoch, {}, [], query)
        newest = max(versions)
        try:
            fields, parts = newest.read(folder)
        except TrackingError:
            if folder.read(newest.file) is not None:
                raise  # else the query has gone on meanwhile: there is a newer version
        else:
            return CommittedState(folder, epoch, fields, [part for part in parts.values() if part.live], query)


def _linked(checkpoint: Folder, links: Path, query: Mapping[str, Any]) -> CommittedState:
    while True:
        state = _newest(checkpoint, query)
        path = Path(str(state.folder))
        try:
            for part in state.parts:
                _link(path / part.name, links / part.name)
        except FileNotFoundError:
            if _newest(checkpoint, query).fields == state.fields:
                raise
            shutil.rmtree(links, ignore_errors=True)  # the query has gone on meanwhile
        except OSError as error:
            raise TrackingError(
                f"the state in {path} cannot be read while its query may run: {error}. This user has to be able to "
                f"make hard links in {links.parent}"
            ) from error
        else:
            return replace(state, folder=Folder(links))


def _link(part: Path, link: Path) -> None:
    link.mkdir(parents=True)
    for file in part.iterdir():
        if file.suffix == ".parquet":
            os.link(file, link / file.name)


def _remove_abandoned(readers: Path) -> None:
    since = time.time() - _ABANDONED
    for left in readers.iterdir() if readers.is_dir() else ():
        try:
            if left.stat().st_mtime < since:
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            continue


def results_so_far(spark: SparkSession, checkpoint: Folder, plan: ReleasePlan) -> DataFrame:
    """Return what a release's results would be if all that it keeps ended now: read at once, of its last committed
    batch.

    Args:
        checkpoint: of the release's query, which may run.
        plan: the release, as it was declared.

    Raises:
        UsageError: the state is of another release.
    """
    while True:
        with committed(checkpoint) as state:
            try:
                return _results(spark, checkpoint, plan, state)
            except Exception:
                if checkpoint.path is not None or _newest(checkpoint, state.query).fields == state.fields:
                    raise  # else the query has gone on, and in a store nothing keeps what it needs no more


def _results(spark: SparkSession, checkpoint: Folder, plan: ReleasePlan, state: CommittedState) -> DataFrame:
    now = placed(plan, state.query)
    if state.query["segment"] != plan.stream.segment or not can_read(state.query, now.described()):
        changed = differences(state.query, {"segment": plan.stream.segment, **now.described()})
        raise UsageError(f"the state in {checkpoint} is of another release: {'; '.join(changed)}")
    released = aggregation_of(now)
    ended = {Substream(*key) for key, *_ in state.fields.get("ended", [])}
    groups = now.rule.open_groups(state.living, ended) if state.parts else {}
    rows = [released.grouped(spark, state.selections(kept), group) for group, kept in groups.items()]
    if rows:
        merged = now.rule.made(reduce(DataFrame.unionByName, rows), now.keys, released.merging)
    else:
        merged = released.merge(spark.createDataFrame([], now.part_schema))
    return released.results(merged, checked=False).localCheckpoint(eager=True)
