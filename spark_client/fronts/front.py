"""Fronts: what a source can promise, as all of the package sees it. Each kind is a file beside this one.

A `Front` is what was declared. Of the aggregates of a batch that it asks for, it makes promises that ride in the
batch's epoch. A `LiveFront` is the front while its query runs: it looks where promises come from that no row brings,
such as a table of counts or a clock, and has them made between two batches.

Two ways lead to the aggregates. `observed` ones are global and ride in the pass over the rows that is made anyway.
Where a front needs a figure for each substream, it asks for `grouped` ones, which cost a native aggregation of the
source's rows, unless a release makes that aggregation anyway.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, column
from spark_client.errors import UsageError
from spark_client.spark_internals.columns import Form
from spark_client.storage.folder import Folder
from spark_client.windows import lengths
from spark_client.windows.belonging import Condition, partition_within
from spark_client.windows.lengths import Duration
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import Expected, Finish, Frontier, Report
from tracker.contract.commands import CommitPromise
from tracker.lateness import Lateness

_log = logging.getLogger("spark_client")

Group = tuple[Substream, Mapping[str, Any]]  #: a substream of a batch with its aggregates
Rows: TypeAlias = DataFrame | Iterable[Sequence[Any]]  #: of (scope, when, count), or (when, count) without scopes

AT_ONCE: Final = 10_000  #: promises in one message
IDENTITIES: Final = "_identities"  #: the XOR of those of a substream's rows in a batch
READ_ONCE: Final = "no row is read twice"  #: what promises by counts trust
COPIES: Final = "a row and its copies have one identity"  #: in place of it, where a source drops copies
_PATIENCE: Final = 60.0  #: seconds for which a look may fail, before the query does


@dataclass(slots=True)
class Promises:
    """The promises that a batch lets a source make.

    Attributes:
        closed: substreams, each with the front that closes it.
        opened: substreams that the tracker is to know although no row of them has come, each with its segment.
        identities: the XOR of those of a substream's rows in the batch, each with its front and segment.
    """

    closed: list[tuple[str, Substream]] = field(default_factory=list)
    frontiers: list[Frontier] = field(default_factory=list)
    opened: list[tuple[str, Substream]] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    identities: list[tuple[str, Substream, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.closed or self.frontiers or self.opened or self.expected or self.identities)

    def add_to(self, report: Report) -> None:
        """Put the promises into the report of the epoch that made them."""
        for frontier in self.frontiers:
            report.frontier(frontier.front, frontier.time, frontier.scope)
        for front, (scope, name, end_time) in self.closed:
            report.close(scope, name, end_time, front)
        for segment, (scope, name, end_time) in self.opened:
            report.add(segment, scope, name, 0, end_time=end_time)
        for each in self.expected:
            report.expect(
                *(each.front, each.segment, each.scope, each.name, each.elements, each.end_time),
                revise=each.revise,
                xor=each.xor,
            )
        for front, (scope, name, end_time), xor in self.identities:
            report.identities(front, front, scope, name, xor, end_time)


Promiser: TypeAlias = Callable[[Sequence[Group]], Promises]  #: what a front makes of groups; can be pickled


def _nothing(groups: Sequence[Group]) -> Promises:  # noqa: ARG001
    """Promise nothing, as a front that no row moves."""
    return Promises()


class SourceRows(NamedTuple):
    """The rows of the source that a front is bound to.

    Attributes:
        name: of the front, as of the segment that the source feeds.
        scope: of a row; null in rows that belong to no substream, as are `key` and `time`.
        key: the end of a row's window in microseconds, or its substream's name.
        time: the column that windows are over; None: substreams are named.
    """

    name: str
    rows: DataFrame
    rule: Substreams
    scope: Column
    key: Column
    time: Column | None


@dataclass(frozen=True)
class Partitions:
    """Partitions that a source's rows come from. Each is a front of its own, and all of them are waited for.

    Args:
        column: with a row's partition; None: the source is one.
        all: how many there are, numbered from 0, or their names.
        front: the kind of front, for messages.

    Raises:
        UsageError: one was given without the other, or a name is there twice.
    """

    column: ColumnOrName | None
    all: int | Sequence[str]
    front: str

    def __post_init__(self) -> None:
        listed = isinstance(self.all, int | Sequence) and not isinstance(self.all, str)
        faulty = not listed or len({*self.ids}) < max(1, len(self.ids)) or not {None, ""}.isdisjoint(self.ids)
        if faulty or (self.column is None) != (self.all == 1):
            raise UsageError(
                f"{self.front}: give partition='column' and partitions=n (2 or more), or a list of their names, "
                "together, or neither"
            )

    @property
    def ids(self) -> Sequence[int | str]:
        """The number or name of each."""
        return range(self.all) if isinstance(self.all, int) else self.all

    @property
    def columns(self) -> list[ColumnOrName]:
        """The column, if there is one."""
        return [] if self.column is None else [self.column]

    def conditions(self, rows: DataFrame) -> list[Condition]:
        """Return what has to hold for a row: its partition was declared.

        Raises:
            UsageError: the rows have no such column.
        """
        return [partition_within(rows, each, self.ids, f"{self.front}(partition)") for each in self.columns]

    def names(self, source: str) -> list[str]:
        """Return the names of the fronts of a source."""
        return [source] if self.column is None else [f"{source}/{each}" for each in self.ids]

    def split(self, value: Column) -> list[Column]:
        """Return a value of a row for each partition: null in all but the row's own."""
        if self.column is None:
            return [value]
        return [F.when(column(self.column) == each, value) for each in self.ids]

    @property
    def of_row(self) -> Column:
        """The place of a row's partition among them."""
        if self.column is None or isinstance(self.all, int):
            return F.lit(0) if self.column is None else column(self.column)
        return F.array_position(F.array(*map(F.lit, self.all)), column(self.column)) - 1


class Front:
    """Base of what `Tracking.source(front=…)` takes: each source binds a copy of its own.

    So one object may be given to several sources and several `Tracking`s. A front learns only in `bind`, and keeps that
    in attributes that `bind` makes: a bound front is data. While its query runs, its `LiveFront` promises what no
    batch's rows give rise to.

    Attributes:
        moves_progress: whether it promises, from global aggregates alone, times for all scopes, as an exact watermark
            needs them.
        overlapping: whether it promises for all windows up to a time, or for all substreams at once, so that windows
            may overlap. A window that is named by a row, or by a time in it, would be one of several then.
        automatic: whether it promises anything before it is finished.
        counts: whether its promises are about how many rows there are, so that all have to be counted by substream.
        refresh: seconds between two looks at where its promises come from; None: at nothing but rows.
        idle_after: by the job's rule, ``scope_idle_after`` or ``front_idle_after``: after how long a scope, or one of
            its fronts, that is silent while others go on is not waited for.
        after_runs: whether it promises when a run with ``trigger(availableNow=True)`` has read all, and not before.
        trusts: words on what has to be true for its ends to be the user's, for receipts.
        not_by_tasks: why tasks cannot make its promises, and what to do; empty: they can.
        needs: the feature of the tracker that it needs, and trackers of an earlier release lack; empty: none.
        identified: the expression that identifies rows, whose XOR it promises; None: it promises no such thing.
    """

    moves_progress = False
    overlapping = False
    automatic = True
    counts = False
    refresh: float | None = None
    idle_after: Mapping[str, timedelta] = MappingProxyType({})
    after_runs = False
    trusts = ""
    not_by_tasks = ""
    needs = ""
    identified: Form | None = None

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns that it looks at, beside those that make substreams; None: not known."""
        return frozenset()

    def conditions(self, rows: DataFrame) -> list[Condition]:  # noqa: ARG002 - most need nothing
        """Return what has to hold for a row of the source, beside what its substream asks: see `belonging`."""
        return []

    def stamps(self) -> dict[str, Column]:
        """Return columns of its own that rows have from the stream to where they are tracked, by name.

        Only there is the time now that of the batch, and the same if the batch is repeated.
        """
        return {}

    def bind(self, source: SourceRows) -> None:
        """Learn which source the front promises for, before anything flows."""
        self.name = source.name
        self.rule = source.rule

    @property
    def names(self) -> list[str]:
        """The fronts of the tracker that this one promises for."""
        return [self.name]

    def finish(self) -> list[Finish]:
        """Return the promise that nothing more will come at all."""
        return [Finish(name) for name in self.names]

    def observed(self) -> dict[str, Column] | None:
        """Return the global aggregates it needs, all null if there was no row; None: it needs `grouped` ones."""
        return {}

    def suffices(self, row: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return whether what was observed of a batch is all that it needs; else it is asked to `read` the batch."""
        return True

    def read(self, rows: DataFrame) -> Mapping[str, Any]:
        """Return what `of_observed` takes, by an action of its own.

        Args:
            rows: of the batch, as the source gives them.
        """
        aggregates = self.observed() or {}
        collected = rows.agg(*[value.alias(name) for name, value in aggregates.items()]).collect()[0]
        return cast(Mapping[str, Any], collected.asDict())

    def values(self) -> dict[str, Column]:
        """Return the values it needs of each row: the greatest of each substream in a batch are what it is asked
        about."""
        return {}

    def grouped(self) -> dict[str, Column]:
        """Return the aggregates it needs of each substream in a batch."""
        return {name: F.max(value) for name, value in self.values().items()}

    @property
    def promiser(self) -> Promiser:
        """The function that makes promises of `grouped` aggregates, without columns: tasks have no session."""
        return _nothing

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        """Return the promises that a batch's global aggregates allow."""
        return Promises()

    def live(self, spark: SparkSession) -> LiveFront:  # noqa: ARG002
        """Return the front for a query that is to run.

        Args:
            spark: the session that the query runs in.
        """
        return LiveFront(self)


def silence(source: SourceRows, after: Duration, front: str, rules: Iterable[str]) -> dict[str, timedelta]:
    """Return `Front.idle_after` by some rules of the job.

    Args:
        after: the shortest silence after which nobody waits for a part.
        front: the kind of front, for messages.

    Raises:
        UsageError: it is no length of time.
    """
    length = lengths.length(source.rows.sparkSession, after, f"{front}'s idle_after")
    return dict.fromkeys(rules, timedelta(microseconds=length))


def check_scoped(front: Front, rule: Substreams, scopes: object) -> None:
    """Refuse scopes that are listed for a source without any."""
    if scopes and rule.scope is None:
        raise UsageError(f"{front!r}: scopes= is for a source with a scope: give scope= to the source")


class ManualFront(Front):
    """A front that promises nothing until it is finished: by `Tracking.finish`, or a drain."""

    moves_progress = True
    overlapping = True
    automatic = False
    trusts = "the call that finished it, or the drain"


class GivenCounts(Protocol):
    """The counts that one source was given, by this deployment and by earlier ones.

    Attributes:
        done: substreams whose counts were given before the last drain: they have ended.
        taken: those of them that only a drain has closed, with the elements that it released.
        released: all substreams that only a drain has closed, whoever had given their counts, likewise.
    """

    done: Set[Substream]
    taken: Mapping[Substream, int]
    released: Mapping[Substream, int]

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
        """Acknowledge, now and then, what has ended before any drain: it was counted to its end.

        Raises:
            TrackingError: the tracker refuses the acknowledgement.
        """
        ...


class OpenRun(Protocol):
    """A query's run at the tracker, as far as a front needs it."""

    @property
    def closed(self) -> bool: ...

    def announce(self, front: LiveFront) -> None:
        """Make the promises that are due.

        Raises:
            TrackingError: the tracker refuses, or cannot be reached.
        """
        ...


class LiveFront:
    """A front while its query runs.

    The thread that follows the query's commits calls `look`, and makes what is `due` then. A kind of
    front that promises more than rows do has a class of its own: `read` finds what is new, at every `refresh` of the
    front, and passes it to `promise`.

    Attributes:
        failing: words on what is wrong when `read` fails.
        lateness: what it has learnt of how late rows are; None: it learns nothing.
    """

    failing = "what it promises by cannot be read"
    lateness: Lateness | None = None

    def __init__(self, front: Front) -> None:
        self.front = front
        self._lock = threading.Lock()
        self._made: dict[tuple[Any, ...], CommitPromise] = {}  # the last ones that the tracker has taken
        self._waiting: dict[tuple[Any, ...], CommitPromise] = {}  # those that it has not
        self._next = 0.0
        self._failing = float("inf")  # since when it fails

    @property
    def names(self) -> list[str]:
        """The fronts of the tracker that it promises for."""
        return self.front.names

    def finish(self) -> list[Finish]:
        """Return the promise that nothing more will come at all."""
        return self.front.finish()

    def begin(self, given: GivenCounts) -> None:
        """Learn what counts earlier deployments were given, when the query starts."""

    def resume(self, frontiers: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        """Learn, when the query starts, what earlier runs have promised.

        Args:
            frontiers: returns the times that the tracker has, by front and scope.
        """

    def rest(self, frontiers: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        """Note what was promised, before a drain: the next deployment begins there.

        Args:
            frontiers: returns the times that the tracker has, by front and scope.
        """

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:  # noqa: ARG002
        """Learn what is new where its promises come from, if it is time. A failing look is repeated for a minute.

        Args:
            epoch: the last batch that the tracker has for committed; None: there was none yet.
            at_once: it is time, and what fails is raised.

        Raises:
            UsageError: what is there can be promised by nobody, or cannot be read.
        """
        refresh = self.front.refresh
        if refresh is None or not (at_once or time.monotonic() >= self._next):
            return
        try:
            self.read()
            self._failing = float("inf")
        except UsageError:
            raise
        except Exception as error:
            now = time.monotonic()
            self._failing = min(self._failing, now)
            if at_once or now - self._failing > _PATIENCE:
                raise UsageError(f"{self.front!r}: {self.failing}: {error}") from error
            _log.warning("%r: %s, and is tried again: %s", self.front, self.failing, error)
        finally:
            self._next = time.monotonic() + refresh

    def read(self) -> None:
        """Look once, and `promise` what follows. Quick, since commits wait for it.

        Raises:
            UsageError: what is there can be promised by nobody. Any other error may pass.
        """

    def ran(self) -> None:
        """Learn that a run has read all that there was when it began."""

    def promise(self, promises: Iterable[CommitPromise]) -> None:
        """Have promises made, in the place of earlier ones of the same; what was promised before is passed over."""
        with self._lock:
            for promise in promises:
                subject = _subject(promise)
                before = self._waiting.get(subject, self._made.get(subject))
                lower = isinstance(promise, Frontier) and isinstance(before, Frontier) and promise.time < before.time
                if before != promise and not lower:
                    self._waiting[subject] = promise

    def due(self) -> Sequence[CommitPromise]:
        """Return the promises that are to be made now; more may be due when the tracker has taken them."""
        with self._lock:
            return [*self._waiting.values()][:AT_ONCE]

    def promised(self, promises: Sequence[CommitPromise]) -> None:
        """Learn that the tracker has taken these."""
        with self._lock:
            for promise in promises:
                subject = _subject(promise)
                self._made[subject] = promise
                if self._waiting.get(subject) == promise:
                    del self._waiting[subject]

    def expect(
        self,
        run: OpenRun | None,  # noqa: ARG002
        rows: Rows,  # noqa: ARG002
        through: datetime | date | None = None,  # noqa: ARG002
        revise: bool = False,  # noqa: ARG002
    ) -> None:
        """Take counts that a driver gives, and have them made.

        Args:
            run: of the query that reads its source; None: none has been started.
            through: a time up to whose window there will be no others.
            revise: whether they take the place of other numbers.

        Raises:
            UsageError: it promises by something else; rows of another form.
            TrackingError: the tracker refuses, or cannot be reached, or the query has ended. Nothing that the
                tracker has not taken is kept.
        """
        raise UsageError("expect gives counts to a source with front=Schedule(…): Schedule() for all to come later")

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        """Return the promises that a batch's global aggregates allow."""
        return self.front.of_observed(row)

    def of_groups(self, groups: Sequence[Group], epoch: int) -> Promises:  # noqa: ARG002
        """Return the promises that a batch's aggregates by substream allow.

        Args:
            epoch: of the batch, which may be one that was begun before.
        """
        return self.front.promiser(groups)


def _subject(promise: CommitPromise) -> tuple[Any, ...]:
    """Return what a promise is about: a later one takes its place."""
    if isinstance(promise, Expected):
        return promise.front, promise.scope, promise.name
    return promise.front, promise.scope if isinstance(promise, Frontier) else Finish
