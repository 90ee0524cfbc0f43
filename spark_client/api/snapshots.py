"""Snapshots of a job's state: taken when it has been handed over, looked at, and gone on from in another shape."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession

from spark_client.advice import explaining
from spark_client.api.released import Released
from spark_client.api.session import Tracking
from spark_client.api.writer import Starter
from spark_client.datasource.streams import SUBSTREAM_SCHEMA, substream_rows
from spark_client.errors import TrackingError, UsageError, check_choice, check_faults, check_whole, refused
from spark_client.plan.graph import state_of
from spark_client.release import state_export, state_import
from spark_client.release.committed import READERS
from spark_client.release.moving import Move
from spark_client.release.parts import NOTE
from spark_client.runtime import declared
from spark_client.runtime.quiesce import paused
from spark_client.spark_internals.stores import folder_of
from spark_client.storage import snapshots
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.trackers.eventlogs import EventLogs
from spark_client.windows.substreams import Substreams
from tracker.client import DrainMode, DrainState, JobStatus

SnapshotFormat: TypeAlias = Literal["parquet", "delta"]

_FORM: Final = 1  #: of a snapshot
_SUBSTREAMS: Final = "substreams"
_RESTORED: Final = "tracker/restored.json"  #: names the snapshot of which a checkpoint was made
_WORK: Final = "work"  #: in a checkpoint while it is made


def at_rest(tracking: Tracking, timeout: float | None) -> AbstractContextManager[JobStatus]:
    """Return the job while nothing of it moves: it was handed over, or is paused.

    Args:
        timeout: seconds in which it has to come to rest; None: for as long as it takes.

    Raises:
        UsageError: it neither was handed over nor runs here.
        TrackingError: the tracker cannot be reached, or a query has failed.
        TimeoutError: it did not come to rest in time.
    """
    with explaining():
        status = tracking.client.job(tracking.job)
    drain = status.drain
    done = drain.state is DrainState.DRAINED and drain.mode is DrainMode.HAND_OVER
    own = status.spec.deployment == tracking.deployment
    if done and own:
        return nullcontext(status)
    if not own or not any(query.query is not None and query.query.isActive for query in tracking.queries):
        raise UsageError(
            f"deployment {tracking.deployment!r} of job {tracking.job!r} has not been handed over, and does not run "
            "here, so rows may be in flight that no state has: call tracking.hand_over() first"
            + ("" if own else f"; the job is at {status.spec.deployment!r}")
        )
    return _paused(tracking, timeout)


@contextmanager
def _paused(tracking: Tracking, timeout: float | None) -> Iterator[JobStatus]:
    """Pause one query after the other; the end of one pause lets all queries go on."""
    until = None if timeout is None else time.monotonic() + timeout
    if not tracking.pausing.acquire(timeout=-1 if timeout is None else timeout):
        raise TimeoutError("another export of this job has paused its queries, and was not done in time")
    try:
        left = None if until is None else max(0.0, until - time.monotonic())
        with paused(tracking.client, tracking.job, tracking.queries, left) as status:
            yield status
    finally:
        tracking.pausing.release()


class Snapshots:
    """A place with snapshots of one job's state.

    Args:
        location: a directory, or a URL that fsspec or obstore knows: ``s3://bucket/path``.
        keep: how many are kept: an export removes older ones; None: all.
        format: what the tables are: directories of Parquet files, or Delta tables (the extra ``delta``).
        storage_options: for fsspec's file system, such as credentials.

    >>> snapshots = Snapshots("/backups/shop", keep=3)                                        # doctest: +SKIP
    >>> tracking.hand_over(timeout=600)                                                       # doctest: +SKIP
    >>> snapshots.export(tracking)                                                            # doctest: +SKIP
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        keep: int | None = None,
        format: SnapshotFormat = "parquet",  # noqa: A002 - Spark's name
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if keep is not None:
            check_whole("keep", keep, 1)
        check_choice("format", format, "parquet", "delta")
        self._convert = _delta() if format == "delta" else None
        self._place = snapshots.Place.at(location, storage_options)
        self._keep = keep
        self._format = format

    def __repr__(self) -> str:
        return f"Snapshots({self._place.location!r})"

    def all(self) -> list[Snapshot]:
        """Return the complete snapshots that are there, the newest first. Half-written ones are not among them."""
        return [Snapshot(stored) for stored in snapshots.complete(self._place)]

    def newest(self) -> Snapshot:
        """Return the newest complete snapshot.

        Raises:
            UsageError: no snapshot there is complete.
        """
        found = self.all()
        if not found:
            raise UsageError(
                f"there is no complete snapshot in {self._place.location}: Snapshots(…).export(tracking) makes one"
            )
        return found[0]

    def export(
        self,
        tracking: Tracking,
        checkpoints: Sequence[str | os.PathLike[str]] | None = None,
        timeout: float | None = None,
    ) -> Snapshot:
        """Take a snapshot of a job when nothing of it is in flight but what releases keep.

        So all that it holds is of one moment, over all queries. A job that was handed over is so. One that runs here is
        brought to rest: its sources' queries begin no batch, what they have sent arrives, the snapshot is taken, and
        they go on. If it fails, or its process is killed, there is no snapshot, and it can be called again, by another
        process, too, once the job was handed over.

        Args:
            tracking: of the deployment that was handed over (`Tracking.hand_over`), or whose queries run.
            checkpoints: of the releases' queries; None: those that this `Tracking` has started.
            timeout: seconds in which a job that runs has to come to rest; None: for as long as it takes.

        Raises:
            UsageError: the job neither was handed over nor runs here; no query of it was a release.
            TrackingError: the tracker cannot be reached; a checkpoint is not where the tracker has seen it, or a batch
                of it was interrupted; a query has failed.
            TimeoutError: it did not come to rest in time.
        """
        running = [query.checkpoint for query in tracking.queries]
        chosen = running if checkpoints is None else [folder_of(tracking.spark, p, "checkpoint") for p in checkpoints]
        releases = [path for path in chosen if checkpoints is not None or _is_release(path)]
        if not releases:
            raise UsageError(
                "no release was started here whose state could be exported: give checkpoints=[…], the paths that the "
                "releases' queries have as checkpointLocation"
            )
        work = Path(tempfile.mkdtemp(prefix="_snapshot.", dir=_work(releases[0])))
        try:
            local = work / "content"
            entries = []
            with at_rest(tracking, timeout) as status:
                for number, path in enumerate(releases):
                    name = f"queries/{number}"
                    entry = state_export.export(tracking.spark, path, local / name)
                    _must_agree(status, entry["id"], entry["epoch"], path)
                    entries.append({**entry, "directory": name})
                state_export.fetch(_substreams(tracking), releases[0], local / _SUBSTREAMS)
            if self._convert is not None:
                for table in [_SUBSTREAMS, *(f"{entry['directory']}/{state_export.STATE}" for entry in entries)]:
                    if any((local / table).glob("*.parquet")):
                        self._convert(str(local / table))
            made = snapshots.write(self._place, local, _manifest(tracking, status, entries, self._format))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        if self._keep is not None:
            snapshots.keep(self._place, self._keep)
        return Snapshot(made)


@dataclass(frozen=True)
class Snapshot:
    """One complete snapshot of a job's state: made by `Snapshots`."""

    _stored: snapshots.Stored

    def __repr__(self) -> str:
        return f"Snapshot({self.name!r}, job={self.manifest['job']!r}, deployment={self.manifest['deployment']!r})"

    @property
    def name(self) -> str:
        """The name of its directory: ``snapshot-NUMBER-…``."""
        return self._stored.name

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Return what is in it: the job, its deployment and graph, fronts, producers, releases' queries, all files."""
        return self._stored.manifest

    def state(self, spark: SparkSession, of: str | None = None, through: str | None = None) -> DataFrame:
        """Return what a release kept: a row for each substream and key of a part of it.

        The columns are those of the results. An aggregate of which several values are kept is a struct of them (a
        mean: the sum and the count). `_substream` is the one whose part a row is.

        Args:
            spark: the session that reads the copies.
            of: the release's checkpoint or segment; None: there is one release only.
            through: a directory that the driver and the executors see, for copies while they are read; None: the
                driver's for temporary files.

        Raises:
            UsageError: there are several releases, or none of that name.
            TrackingError: a file is missing, or damaged.
        """
        return self._table(spark, f"{self._entry(of)['directory']}/{state_export.STATE}", through)

    def substreams(self, spark: SparkSession, through: str | None = None) -> DataFrame:
        """Return the substreams that the tracker had open, a row for each segment: `SUBSTREAM_SCHEMA`.

        Args:
            spark: the session that reads the copies.
            through: a directory that all of Spark sees, as for `state`.
        """
        return self._table(spark, _SUBSTREAMS, through)

    def restore(
        self,
        released: Released,
        checkpoint: str | os.PathLike[str],
        *,
        of: str | None = None,
        mapping: Callable[[DataFrame], DataFrame] | None = None,
        dropping: Column | str | None = None,
    ) -> bool:
        """Make the checkpoint from which a release goes on, in another shape if need be. Start its query then.

        The query goes on where the exported one stopped, under the same id, so nothing is read twice; of the two
        checkpoints only one can be gone on with. Nothing is there until all is: a call that was killed is repeated.

        Args:
            released: the release, as it is now.
            checkpoint: where nothing is yet.
            of: the checkpoint or segment of the exported release; None: the one of the release's segment.
            mapping: makes the new state of the exported one, from DataFrame to DataFrame. It gets what `state` gives,
                and returns the columns of the new release, in the same form, with `_substream`. It may make several
                rows of a substream and key: they are merged. None: the release keeps the same as before.
            dropping: a condition on the exported rows: those are left out.

        Returns:
            True if this call has made the checkpoint; False: this snapshot had been restored there before.

        Raises:
            UsageError: something else is there; the release has changed, and there is no mapping; what it has made
                does not fit, or lacks a substream. The message names what is wrong.
            TrackingError: the query has gone on since the snapshot, or has begun to; the job is another one; a file is
                damaged.

        >>> snapshots.newest().restore(                                                        # doctest: +SKIP
        ...     by_shop, "/data/cp-18", mapping=lambda state: state.drop("kind"))
        """
        tracking, plan = released.stream.tracking, released.release
        target = folder_of(tracking.spark, checkpoint, "checkpoint")
        entry = self._entry(of or released.stream.segment)
        mark = {"snapshot": self.name, "query": entry["id"]}
        if _is_restored(target, mark):
            return False
        described = declared.described(tracking.job, plan.stream, plan)
        sends_on = state_of(plan.stream.segment) in self.manifest["state_segments"]
        upgrade = state_import.Upgrade(plan, described, mapping, dropping, sends_on)
        upgrade.check(entry)
        self._must_be_current(tracking, entry)
        move = None
        if upgrade.recuts(entry):
            before = Substreams.from_json(entry["query"]["substreams"])
            segment, rules = plan.stream.segment, tracking.source_rules
            move = Move(tracking.client, tracking.job, entry["id"], before, plan.rule, segment, rules)
            move.check()

        def moved() -> Place:
            assert move is not None
            tracking.define()
            return move.carry_out()

        def write(content: Folder) -> list[str]:
            work = content / _WORK
            self._stored.fetch(entry["directory"], work)
            state_import.build(tracking.spark, work, entry, upgrade, content, moved)
            content.remove(_WORK)
            content.put(_RESTORED, mark)
            return sorted(content.below(), key=lambda name: name != _RESTORED)  # first: see `_is_restored`

        made = target.parent.publish(target.name, write)
        target.parent.sweep_after(target.name)
        if not made and not _is_restored(target, mark):
            raise UsageError(
                f"checkpoint {target}: another process has made it meanwhile: give a path of this query's own"
            )
        return True

    def _entry(self, of: str | None) -> dict[str, Any]:
        is_known = self.manifest["form"] == _FORM
        queries: list[dict[str, Any]] = self.manifest["queries"] if is_known else []
        found = [q for q in queries if of in (None, q["checkpoint"], q["query"]["segment"])]
        listed = ", ".join(f"{q['checkpoint']} (of {q['query']['segment']!r})" for q in queries)
        check_faults(
            self.name,
            (not is_known, "was made by another version of this package: restore it with that one"),
            (len(found) != 1, f"has {listed}: give of=, the checkpoint of one of them"),
        )
        return found[0]

    def _must_be_current(self, tracking: Starter, entry: Mapping[str, Any]) -> None:
        """Check whether the tracker knows nothing of the query that came after the snapshot.

        Raises:
            TrackingError: it does, or has another log.
        """
        if tracking.job != self.manifest["job"]:
            raise UsageError(
                f"the snapshot is of job {self.manifest['job']!r}, and this is job {tracking.job!r}: declare the "
                "release in a Tracking of that job"
            )
        with explaining():
            log_id = EventLogs(tracking.client, tracking.job).newest().log_id
            status = tracking.client.job(tracking.job)
        if log_id != self.manifest["log_id"]:
            raise TrackingError(
                f"LOG_CHANGED: the job's log is {log_id!r}, and was {self.manifest['log_id']!r} when {self.name} was "
                "made: the job was deleted, or the tracker's journal was lost or restored. Start the job again, with "
                "new checkpoints"
            )
        if any(each.producer == entry["id"] and not each.closed for each in status.producers):
            raise TrackingError(
                f"query {entry['id']} runs, or its last driver was killed: hand the job over (tracking.hand_over()), "
                "and restore what was exported then"
            )
        _must_agree(status, entry["id"], entry["epoch"], self.name)
        checkpoint = folder_of(tracking.spark, entry["checkpoint"], "checkpoint")
        if state_export.has_gone_on(checkpoint, entry["id"], entry["epoch"]):
            raise TrackingError(
                f"the query with the checkpoint {entry['checkpoint']} was started again and has begun a batch after "
                f"{self.name} was made: what it has released would be released twice. Start it again, hand the job "
                "over (tracking.hand_over()), and restore what is exported then"
            )

    def _table(self, spark: SparkSession, directory: str, through: str | None) -> DataFrame:
        work = Path(tempfile.mkdtemp(prefix="snapshot-", dir=through))
        try:
            self._stored.fetch(directory, Folder(work))
            if not any(work.glob("*.parquet")):
                raise UsageError(f"{self.name} has no rows in {directory}: nothing was kept when it was made")
            return spark.read.parquet(str(work)).localCheckpoint(eager=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _is_restored(target: Folder, mark: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was made of a snapshot before; else nothing must be there, but what a call that was
    killed has made of it in a bucket."""
    found = target.read(_RESTORED)
    if found == mark:
        return target.parent.is_published(target.name)
    if found is None and not target.names():
        if target.path is not None and target.path.is_dir():
            target.path.rmdir()
        return False
    raise UsageError(f"checkpoint {target} exists, and was not made of this snapshot: give a path that does not exist")


def _substreams(tracking: Tracking) -> DataFrame:
    with explaining():
        found = tracking.client.substreams(tracking.job)
        rows = [row for status in found for row in substream_rows(status, ())]
    return tracking.spark.createDataFrame(rows, SUBSTREAM_SCHEMA).coalesce(1)


def _is_release(checkpoint: Folder) -> bool:
    known = (checkpoint / "tracker").read(NOTE) or {}
    return "aggregates" in known or "releases" in known  # several of them are refused in the export


def _work(checkpoint: Folder) -> Path | None:
    """Return where files are put together: on the disk that has them already, else the driver's for temporary files."""
    if checkpoint.path is None:
        return None
    path = checkpoint.path / "tracker" / READERS
    path.mkdir(parents=True, exist_ok=True)
    return path


def _must_agree(status: JobStatus, query: str, epoch: int, what: object) -> None:
    """Check whether a query has committed at the tracker what a checkpoint or snapshot has, and no more."""
    known = next((each for each in status.producers if each.producer == query), None)
    committed = -1 if known is None or known.committed_epoch is None else known.committed_epoch
    if committed != epoch:
        raise TrackingError(
            f"{what} is query {query} after batch {epoch}, and the tracker has committed batch {committed} of it: what "
            "has ended since would be released twice, and rows be counted twice. Take what was exported last"
        )


def _manifest(
    tracking: Tracking, status: JobStatus, entries: Sequence[Mapping[str, Any]], form: SnapshotFormat
) -> dict[str, Any]:
    own = {entry["id"] for entry in entries}
    return {
        "form": _FORM,
        "format": form,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "job": tracking.job,
        "deployment": tracking.deployment,
        "log_id": EventLogs(tracking.client, tracking.job).newest().log_id,
        "segments": {segment: list(feeds) for segment, feeds in status.spec.segments.items()},
        "state_segments": list(status.spec.state_segments),
        "fronts": [{"front": f.front, "finished": f.finished, "frontiers": dict(f.frontiers)} for f in status.fronts],
        "open_substreams": status.open_substreams,
        "last_seq": status.last_seq,
        "queries": list(entries),
        "others": {p.producer: p.committed_epoch for p in status.producers if p.producer not in own},
    }


def _delta() -> Callable[[str], None]:
    with refused("format='delta' needs deltalake", "pip install 'substream-tracker[delta]'", ImportError):
        from deltalake import convert_to_deltalake
    return convert_to_deltalake
