"""Fronts while their queries run: what each promises, and when.

A `Front` is data. Here is what happens to it: promises that wait for no batch, and counts that come while a query runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import date, datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pyspark.sql import SparkSession

from spark_client.counting.countreaders import CountReader, Found, FunctionCounts
from spark_client.counting.loadcounts import ManifestCounts, MarkerCounts
from spark_client.counting.receiptcounts import ReceiptCounts
from spark_client.counting.tablecounts import TableCounts
from spark_client.errors import UsageError
from spark_client.plan import timetable
from spark_client.plan.end_offsets import EndOffsets
from spark_client.plan.fronts import Front, Group, Promises
from spark_client.plan.loads import ControlTable, Manifests, SuccessMarkers
from spark_client.plan.results_of import ResultsOf
from spark_client.plan.schedule import ByCount, Rows, Schedule
from spark_client.spark_internals.checkpoints import positions
from spark_client.windows.substreams import Substream
from tracker.client import Expected, Finish, Frontier
from tracker.contract.promises import CommitPromise

_log = logging.getLogger("spark_client")

Count: TypeAlias = tuple[int, bool]  #: how many rows, and whether it takes the place of another number

AT_ONCE = 10_000  #: numbers in one message
_PATIENCE = 60.0  #: seconds for which counts may not be found, before the query fails


class GivenCounts(Protocol):
    """The counts that one source was given, by this deployment and by earlier ones.

    Attributes:
        done: substreams whose counts were given before the last drain: they have ended.
        taken: those of them that only a drain has closed, with the elements that it released.
    """

    @property
    def done(self) -> Set[Substream]: ...

    @property
    def taken(self) -> Mapping[Substream, int]: ...

    def too_late(self, substreams: Iterable[Substream]) -> list[Substream]:
        """Return those of which it was promised, when others were given, that they will not come."""
        ...

    def give(self, substreams: Iterable[Substream]) -> None:
        """Write down that counts of these are given now; before the tracker is given them."""
        ...

    def keep_only(self, listed: Set[Substream]) -> None:
        """Forget deployments of whose substreams no table names any more.

        Args:
            listed: the substreams of the tables; if there are none, which may mean that they were not found, those of
                all deployments.
        """
        ...

    def follow(self) -> None:
        """Acknowledge, now and then, what has ended before any drain.

        Raises:
            TrackingError: the tracker refuses.
        """
        ...


class LiveFront:
    """A front while its query runs.

    Args:
        front: as it was declared.
    """

    def __init__(self, front: Front) -> None:
        self.front = front

    @property
    def names(self) -> list[str]:
        """The fronts of the tracker that it promises for."""
        return self.front.names

    def finish(self) -> list[Finish]:
        """Return the promise that nothing more will come at all."""
        return self.front.finish()

    def begin(self, given: GivenCounts) -> None:
        """Learn what counts earlier deployments were given, when the query starts."""

    def look(self, at_once: bool = False) -> None:
        """Learn what is new where its promises come from, if it is time.

        Args:
            at_once: it is time.
        """

    def committed(self, checkpoint: Path, epoch: int | None) -> None:
        """Learn which batch of its query the tracker has for committed.

        Args:
            checkpoint: the query's.
            epoch: the batch's number; None: there was none yet.
        """

    def due(self) -> Sequence[CommitPromise]:
        """Promise that wait for no batch; the next of them, until none are left."""
        return ()

    def promised(self, promises: Sequence[CommitPromise]) -> None:
        """The tracker has taken these."""

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        """Return the promises that a batch's global aggregates allow."""
        return self.front.of_observed(row)

    def of_groups(self, groups: Sequence[Group]) -> Promises:
        """Return the promises that a batch's aggregates by substream allow."""
        return self.front.of_groups(groups)


class LiveEndOffsets(LiveFront):
    """An `EndOffsets` while its query runs: it finishes when what Spark has committed comes up to the ends.

    Args:
        front: as it was declared.
    """

    def __init__(self, front: EndOffsets) -> None:
        super().__init__(front)
        self._ends = front
        self._seen: tuple[Path, int | None] | None = None
        self._finished = False
        self._promised = False

    def committed(self, checkpoint: Path, epoch: int | None) -> None:
        if self._promised or (epoch is not None and self._seen == (checkpoint, epoch)):
            return
        self._seen = checkpoint, epoch
        self._finished = self._finished or self._ends.reached(positions(checkpoint, epoch))

    def due(self) -> Sequence[CommitPromise]:
        return self.finish() if self._finished and not self._promised else ()

    def promised(self, promises: Sequence[CommitPromise]) -> None:  # noqa: ARG002
        self._promised = True


class LiveSchedule(LiveFront):
    """A front by counts while its query runs: the counts that the tracker is to be given.

    Args:
        schedule: as it was declared.
        spark: the session, in which times are read.
    """

    def __init__(self, schedule: ByCount, spark: SparkSession) -> None:
        super().__init__(schedule)
        self._schedule = schedule
        self._rule = schedule.rule
        self._spark = spark
        self._lock = threading.Lock()
        self._due: dict[Substream, Count] = {}  # counts that the tracker has not been given yet
        self._through: int | None = None  # likewise
        self._promised_through: int | None = None  # up to where the counts are complete, at the tracker
        self._checkpoints: set[Path] = set()  # of the queries that read its source
        self._reader = _reader(schedule, spark, self._checkpoints)  # None: counts are known, or given by `take`
        self._known: Mapping[Substream, int] = {}  # what the reader has found so far
        self._found: Found | None = None  # what it found last, and was refused
        self._ledger: GivenCounts | None = None
        self._next = 0.0
        self._failing = float("inf")  # since when the reader fails
        table = {substream: (count, schedule.revise) for substream, count in schedule.table.items()}
        self._add(table)

    def _add(self, due: Mapping[Substream, Count], through: datetime | date | None = None) -> None:
        self.take(due, self.end_of(due, through))

    def counts_of(self, rows: Rows, revise: bool = False) -> dict[Substream, Count]:
        """Read counts that a driver gives.

        Raises:
            UsageError: rows of another form, a substream twice, a time that does not fit the source's.
        """
        found = timetable.read(self._spark, rows, self._rule)
        return {substream: (count, revise or self._schedule.revise) for substream, count in found.items()}

    def end_of(self, due: Iterable[Substream], through: datetime | date | None = None) -> int | None:
        """Return up to where counts are complete when these are given; None: others may follow.

        Raises:
            UsageError: a time that does not fit the source's.
        """
        ends = [substream.end_time for substream in due if substream.end_time is not None]
        last = max(ends, default=None) if self._schedule.complete else None
        if through is not None:
            if not self._rule.windows:
                raise UsageError("through= is a time, and the source's substreams have none: it is for windows")
            if self._rule.calendar is not None and self._rule.calendar.by_row:
                raise UsageError(
                    "through= is a time up to whose window all is there, and each row has windows of its own zone: "
                    "leave it out, and give counts of all that is to come"
                )
            row = (through, 0) if self._rule.scope is None else ("", through, 0)
            (window,) = timetable.read(self._spark, [row], self._rule)
            ends.append(window.end_time or 0)
            last = max(ends) if self._schedule.complete else window.end_time
        return last

    @property
    def owes(self) -> bool:
        """Whether the tracker has not been given some counts yet."""
        return bool(self._due)

    def take(self, due: Mapping[Substream, Count], end: int | None) -> None:
        """Take counts, to be given to the tracker, and up to where they are complete."""
        with self._lock:
            self._due.update(due)
            if end is not None:
                self._through = end if self._through is None else max(end, self._through)

    def begin(self, given: GivenCounts) -> None:
        """Learn what earlier deployments were given, when the query starts.

        Raises:
            UsageError: substreams that were left out of a table that was complete are given now.
        """
        _refuse(given.too_late(self._due))
        with self._lock:
            given.keep_only(self._schedule.table.keys() | self._known.keys())
            self._due = {each: count for each, count in self._due.items() if self._goes_on(each, given)}
            self._ledger = given

    def committed(self, checkpoint: Path, epoch: int | None) -> None:  # noqa: ARG002
        self._checkpoints.add(checkpoint)

    def _goes_on(self, substream: Substream, ledger: GivenCounts) -> bool:
        """Return whether it is not done with already: another deployment has not seen it to its end."""
        return substream not in ledger.done or substream in ledger.taken

    def _missing(self, substream: Substream, count: int) -> int:
        """Return what is expected of a count now, after what a drain has released of it."""
        return max(0, count - (self._ledger.taken.get(substream, 0) if self._ledger is not None else 0))

    def look(self, at_once: bool = False) -> None:
        """Look for counts, if they are found somewhere and it is time.

        Args:
            at_once: it is time.

        Raises:
            UsageError: what is found is of another form, or cannot be promised.
        """
        if self._ledger is not None:
            self._ledger.follow()
        if self._reader is None or not (at_once or time.monotonic() >= self._next):
            return
        try:
            found = self._reader.read()
        except UsageError:
            raise
        except Exception as error:
            now = time.monotonic()
            self._next, self._failing = now + self._schedule.refresh, min(self._failing, now)
            if at_once or now - self._failing > _PATIENCE:
                raise UsageError(f"{self._schedule!r}: {self._reader.failing}: {error}") from error
            _log.warning("%r: %s, and is tried again: %s", self.front, self._reader.failing, error)
            return
        self._next, self._failing = time.monotonic() + self._schedule.refresh, float("inf")
        found = self._found = found or self._found
        if found is None:
            return
        known = found.counts
        news = {substream: count for substream, count in known.items() if self._known.get(substream) != count}
        through = self._promised_through
        left_out = [each for each in news if each not in self._known and each.end_time is not None]
        _refuse([each for each in left_out if through is not None and (each.end_time or 0) <= through])
        self._add({}, found.through)
        with self._lock:
            ledger = self._ledger
            for substream, count in news.items():
                if ledger is None or self._goes_on(substream, ledger):
                    self._due[substream] = count, self._schedule.revise
            ends = [substream.end_time for substream in known if substream.end_time is not None]
            if self._schedule.complete and ends:
                self._through = max(ends) if self._through is None else max(*ends, self._through)
        # What is not found for a while, as in a table that is loaded again, is known when it is back.
        self._known, self._found = {**self._known, **known}, None

    def due(self) -> Sequence[CommitPromise]:
        """Return the next promises to be made: counts first, and how far they are complete when all of them are
        made."""
        with self._lock:
            some = list(self._due.items())[:AT_ONCE]
            if not some:
                return [] if self._through is None else [Frontier(self._schedule.name, self._through, None)]
        return self.expected(dict(some))

    def expected(self, counts: Mapping[Substream, Count]) -> list[Expected]:
        """Return the promises of some counts, which are written down as given."""
        with self._lock:
            if self._ledger is not None and self._schedule.remembers:
                self._ledger.give(counts)
            return [
                Expected(
                    self._schedule.name,
                    self._schedule.name,  # a source's front is called as the segment that it feeds
                    substream.scope,
                    substream.name,
                    self._missing(substream, number),
                    substream.end_time,
                    revise,
                )
                for substream, (number, revise) in counts.items()
            ]

    def promised(self, promises: Sequence[CommitPromise]) -> None:
        """The tracker has taken these."""
        with self._lock:
            for promise in promises:
                if isinstance(promise, Finish):
                    continue
                if isinstance(promise, Frontier):
                    self._promised_through = promise.time
                    if self._through is not None and self._through <= promise.time:
                        self._through = None
                    continue
                substream = Substream(promise.scope, promise.name, promise.end_time)
                count, _ = self._due.get(substream, (-1, False))
                if self._missing(substream, count) == promise.elements:
                    self._due.pop(substream, None)

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        with self._lock:
            done = self._due or self._through is None
            return Promises() if done else Promises(frontiers=[Frontier(self._schedule.name, self._through or 0, None)])

    def of_groups(self, groups: Sequence[Group]) -> Promises:  # noqa: ARG002
        return self.of_observed({})


def _reader(front: ByCount, spark: SparkSession, checkpoints: Set[Path]) -> CountReader | None:
    """Return the reader that finds a front's counts; None: nothing does."""
    if isinstance(front, ResultsOf):
        return ReceiptCounts(front, front.rule, spark)
    if isinstance(front, SuccessMarkers):
        return MarkerCounts(front, spark, checkpoints)
    if isinstance(front, Manifests):
        return ManifestCounts(front, spark, checkpoints)
    if isinstance(front, ControlTable):
        return TableCounts(front, spark)
    return FunctionCounts(front, spark) if isinstance(front, Schedule) and front.looks else None


def live(front: Front, spark: SparkSession) -> LiveFront:
    """Return a declared front, for a query that is to run.

    Args:
        front: bound to its source.
        spark: the session that the query runs in.
    """
    if isinstance(front, EndOffsets):
        return LiveEndOffsets(front)
    return LiveSchedule(front, spark) if isinstance(front, ByCount) else LiveFront(front)


def _refuse(missed: Sequence[Substream]) -> None:
    """Substreams of which it was promised that they will not come."""
    if missed:
        raise UsageError(
            f"Schedule: {len(missed)} substreams, such as {missed[0].name} of {missed[0].scope!r}, are given only now, "
            "and the counts given before were said to be complete to a later time, so their rows are late. Take them "
            "out, and give them to the deployment after the next drain; and give complete=False, or no through=, if "
            "others may follow"
        )
