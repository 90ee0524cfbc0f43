"""`Frontier`: the rows' own times, less a delay that is allowed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER, ColumnOrName, named, names_of
from spark_client.errors import UsageError, check_choice, check_faults, check_seconds, refused
from spark_client.fronts import timetable
from spark_client.fronts.front import (
    Front,
    Group,
    LiveFront,
    Partitions,
    Promiser,
    Promises,
    SourceRows,
    check_scoped,
    silence,
)
from spark_client.spark_internals.stores import folder_of
from spark_client.storage.folder import Folder
from spark_client.windows import eventtime, lengths
from spark_client.windows.belonging import Condition
from spark_client.windows.lengths import Duration
from spark_client.windows.substreams import Substream
from tracker.client import Frontier
from tracker.contract.commands import CommitPromise
from tracker.contract.values import EVERY_SCOPE
from tracker.lateness import Lateness, Promised, share

Scopes: TypeAlias = DataFrame | Iterable[Any]  #: a column, or values

Beyond: TypeAlias = Literal["count", "bad"]

_NEAR = f"{TRACKER}_near"  #: whether a row is not too far ahead of its batch
_LEARNT = "lateness"  #: the folder of notes, in the checkpoint
_REACHED = "frontiers"  #: likewise, of how far it has come


def _time_key(partition: int) -> str:
    """Return what the newest time of a partition's rows in a batch is called."""
    return f"_newest_{partition}"


_NEWEST = _time_key(0)


@dataclass(frozen=True)
class _Newest:
    """Promises made of the newest times.

    Attributes:
        names: of the fronts, one for each partition.
        delay: that is allowed, in microseconds.
        per_scope: whether it promises for each scope by itself.
    """

    names: tuple[str, ...]
    delay: int
    per_scope: bool

    def __call__(self, groups: Sequence[Group]) -> Promises:
        if not self.per_scope:
            return Promises(frontiers=self.frontiers([aggregates for _, aggregates in groups], None))
        by_scope: dict[str, list[Mapping[str, Any]]] = {}
        for substream, aggregates in groups:
            by_scope.setdefault(substream.scope, []).append(aggregates)
        return Promises(frontiers=[f for scope, rows in by_scope.items() for f in self.frontiers(rows, scope)])

    def frontiers(self, rows: Sequence[Mapping[str, Any]], scope: str | None) -> list[Frontier]:
        """Return the times that can be promised for a scope; None: for all."""
        frontiers = []
        for number, name in enumerate(self.names):
            times = [row[_time_key(number)] for row in rows if row[_time_key(number)] is not None]
            if times:
                frontiers.append(Frontier(name, max(max(times) - self.delay, -eventtime.LIMIT), scope))
        return frontiers


class BoundedOutOfOrderness(Front):
    """The newest time of the rows, less an allowed delay: exported as `Frontier`.

    The source promises that no row will come that is more than `allowed_delay` older than the newest one of its
    partition. That is the guess a watermark makes; the tracker takes it for each partition of the source by itself, and
    the slowest one counts, so that a partition that lags behind loses nothing.

    Args:
        allowed_delay: how much older than the newest row of its partition a row may be: ``"10 minutes"``, a timedelta;
            ``"0 seconds"`` where each partition is in order.
        partition: the column with the partition of the source that a row came from.
        partitions: how many there are, numbered from 0, or their names; each is a front of its own.
        per_scope: promise for each scope by itself, by the newest row of that scope: where each tenant's rows come in
            the order of its own clock. Costs an aggregation of the source's rows by substream; such promises do not
            move `Advanced`, since a scope may yet appear.
        each: ``"batch"``: promise with each batch; ``"run"``: when a run with ``trigger(availableNow=True)`` has read
            all that there is, of all its batches. So the order in which a night's files are read makes no row late.
        ahead: how far beyond the machine's clock a row's time may be. One that is further ahead moves no promise, so a
            wrong clock at one device makes no honest row late: the row counts in its own window, which ends when other
            rows get there. None: every row moves it, as where times are scheduled ones.
        beyond: what becomes of a row that is further ahead. ``"count"``: the above. ``"bad"``: it belongs to no
            substream, so ``on_bad_rows`` of the source has it set aside, or fails the batch. The clock is that of the
            batch's beginning, so a batch that is repeated decides alike.
        idle_after: with `per_scope`, a scope, and with `partitions`, a partition of which nothing has come for so long,
            while others went on, is not waited for: the open windows end as ``IDLE``. Rules of the job, as
            ``Tracking(scope_idle_after=, front_idle_after=)``. None: never.
        scopes: the scopes that there have to be, as a list, a DataFrame of one column, or a function that returns
            either, for one that grows: it then promises `per_scope`. A scope without rows is shown as never seen, and
            has the newest window of the first batch after it was listed, with 0 rows. Others may come as well.
        refresh: seconds between two calls of the function.

    >>> BoundedOutOfOrderness("10 minutes", partition="partition", partitions=4).names      # doctest: +SKIP
    ['flights/0', 'flights/1', 'flights/2', 'flights/3']
    """

    overlapping = True
    _longest = "Frontier's delay"  #: as messages call its first length
    trusts = "no row is later than the delay: a guess, as a watermark"

    def __init__(
        self,
        allowed_delay: Duration,
        partition: ColumnOrName | None = None,
        partitions: int | Sequence[str] = 1,
        per_scope: bool = False,
        each: Literal["batch", "run"] = "batch",
        ahead: Duration | None = "5 minutes",
        idle_after: Duration | None = None,
        scopes: Scopes | Callable[[], Scopes] = (),
        refresh: float = 1.0,
        beyond: Beyond = "count",
    ) -> None:
        self._allowed = allowed_delay
        self._delay = 0
        self._partitions = Partitions(partition, partitions, "Frontier")
        self._idle_after = idle_after
        if isinstance(scopes, str) or not (callable(scopes) or isinstance(scopes, Iterable | DataFrame)):
            raise UsageError(f"Frontier: scopes={scopes!r}: give a list, a DataFrame, or a function that returns one")
        # A list, since another source may take the same front: an iterator gives its values once.
        self._scopes = scopes if callable(scopes) or isinstance(scopes, DataFrame) else [*scopes]
        self._lists = not isinstance(self._scopes, list) or bool(self._scopes)
        self._per_scope = per_scope or self._lists
        check_seconds("Frontier: refresh", refresh)
        self.refresh = refresh if callable(scopes) else None
        check_choice("Frontier: beyond", beyond, "count", "bad")
        whole = not self._per_scope and partition is None
        check_faults(
            "Frontier:",
            (
                idle_after is not None and whole,
                "idle_after= is for scopes or partitions: give per_scope=True, or partition= and partitions=",
            ),
            (
                beyond == "bad" and ahead is None,
                "beyond='bad' is for rows that are further ahead than ahead=: give that",
            ),
        )
        self._ahead = ahead
        self._beyond_is_bad = beyond == "bad"
        check_choice("Frontier: each", each, "batch", "run")
        self.after_runs = each == "run"
        if self.after_runs:
            self.trusts = "no row of a later run is later than the delay"
            self.not_by_tasks = "and each='run' promises when all have ended: leave each= out"

    @staticmethod
    def measured(
        target: str,
        *,
        ceiling: Duration,
        floor: Duration = "0 seconds",
        ahead: Duration | None = "5 minutes",
        idle_after: Duration | None = None,
        scopes: Scopes | Callable[[], Scopes] = (),
        beyond: Beyond = "count",
    ) -> MeasuredFrontier:
        """Return a front whose delay is learnt, for each scope, from how late its rows were: see `tracker.lateness`.

        A window whose rows all come before it is promised to be over is kept. Until enough windows have been seen to
        know which delay keeps the target (40 for 95 %, 2,000 for 99.9 %, in all scopes), the ceiling is waited for.

        Args:
            target: the share of windows that are to be kept, such as ``"99.9%"``.
            ceiling: the longest delay; rows that come later break their window under any.
            floor: the shortest delay that a scope may get.
            ahead, beyond: how far beyond the machine's clock a row may be, as of `Frontier`.
            idle_after: after how long a silent scope is not waited for, as of `Frontier`.
            scopes: that there have to be, as of `Frontier`.

        Raises:
            UsageError: the target is no share below 100 %.

        >>> Frontier.measured("99.9%", ceiling="1 day")                                      # doctest: +SKIP
        """
        return MeasuredFrontier(
            target,
            ceiling,
            floor,
            ahead=ahead,
            idle_after=idle_after,
            scopes=scopes,
            beyond=beyond,
        )

    @staticmethod
    def kept(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> dict[str, list[Promised]]:
        """Return, for each measured front of a query, which delays it promises and how many windows were kept.

        Args:
            checkpoint: of the query, which may run.

        >>> Frontier.kept(spark, "/data/checkpoints/daily")                                  # doctest: +SKIP
        {'orders': [Promised(scope='berlin', delay=312000000, windows=4410, broken=2)]}
        """
        folder = folder_of(spark, checkpoint, "checkpoint") / "tracker" / _LEARNT
        notes = [_Note(**folder.read(name)) for name in folder.names()]
        return {note.front: note.lateness().kept() for note in sorted(notes, key=lambda note: note.epoch)}

    def __repr__(self) -> str:
        each = ", each='run'" if self.after_runs else ""
        ahead = "" if self._ahead == "5 minutes" else f", ahead={self._ahead!r}"
        partitions = f"partitions={self._partitions.all}"
        idle = "" if self._idle_after is None else f", idle_after={self._idle_after!r}"
        return f"Frontier({self._allowed!r}, {partitions}, per_scope={self._per_scope}{idle}{each}{ahead})"

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        if source.time is None:
            raise UsageError("Frontier promises times: the source needs window=('time_column', '1 day')")
        check_scoped(self, source.rule, self._lists)
        self._per_scope = self._per_scope and source.rule.scope is not None  # without scopes there is one
        self.read_scopes = self._scopes if callable(self._scopes) else None
        self.listed: tuple[str, ...] = ()
        if not callable(self._scopes):
            self.listed = self.texts(source.rows.sparkSession, self._scopes)
        self._scopes = []  # a table is of the session
        self.moves_progress = not self._per_scope and not self.after_runs
        self._delay = lengths.not_negative(source.rows.sparkSession, self._allowed, self._longest)
        if self._idle_after is not None:
            rules = [*["scope_idle_after"] * self._per_scope, *["front_idle_after"] * (len(self.names) > 1)]
            self.idle_after = silence(source, self._idle_after, "Frontier", rules)
        self._time = source.rule.micros(source.time)
        if self._ahead is not None:
            far = lengths.not_negative(source.rows.sparkSession, self._ahead, "Frontier's ahead")
            now = F.current_timestamp().cast(source.rows.select(source.time).schema[0].dataType)
            self._is_near = self._time <= source.rule.micros(now) + far
            self._time = F.when(self._is_near, self._time)

    def texts(self, spark: SparkSession, scopes: Scopes) -> tuple[str, ...]:
        """Return scopes as the tracker has them.

        Raises:
            UsageError: one is of another type than the source's, or none that a row could have.
        """
        return timetable.scopes_of(spark, scopes, self.rule, "Frontier(scopes=…)") if self.rule.scope else ()

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of(self._partitions.columns)

    def conditions(self, rows: DataFrame) -> list[Condition]:
        conditions = self._partitions.conditions(rows)
        if self._beyond_is_bad:
            fault = f"the time is more than {self._ahead} beyond the clock"
            conditions.append(Condition(named(_NEAR), fault, None))
        return conditions

    def stamps(self) -> dict[str, Column]:
        return {_NEAR: self._is_near} if self._beyond_is_bad else {}

    @property
    def names(self) -> list[str]:
        return self._partitions.names(self.name)

    def observed(self) -> dict[str, Column] | None:
        return None if self._per_scope else self.grouped()

    def values(self) -> dict[str, Column]:
        return {_time_key(number): time for number, time in enumerate(self._partitions.split(self._time))}

    @property
    def promiser(self) -> Promiser:
        return self.newest

    @property
    def newest(self) -> _Newest:
        return _Newest(tuple(self.names), self._delay, self._per_scope)

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        return Promises(frontiers=self.newest.frontiers([row], None))

    def live(self, spark: SparkSession) -> LiveFront:
        return _AfterRun(self, spark) if self.after_runs else LiveFrontier(self, spark)


class MeasuredFrontier(BoundedOutOfOrderness):
    """A frontier whose delay is learnt: see `Frontier.measured`."""

    _longest = "Frontier.measured's ceiling"
    trusts = "no more windows than it allows get a row after its delay: a guess, by how late rows were"
    not_by_tasks = "none of which sees all rows of a scope: give Frontier a delay"

    def __init__(self, target: str, ceiling: Duration, floor: Duration, **of_frontier: Any) -> None:
        super().__init__(ceiling, per_scope=True, **of_frontier)
        self._target, self._floor = target, floor
        with refused("Frontier.measured: target", errors=ValueError):
            Lateness(share(target), ceiling=0)

    def __repr__(self) -> str:
        return f"Frontier.measured({self._target!r}, ceiling={self._allowed!r}, floor={self._floor!r})"

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        self.moves_progress = False
        self.scoped = self._per_scope
        floor = lengths.not_negative(source.rows.sparkSession, self._floor, "Frontier.measured's floor")
        self.learnt = _Note(self.name, -1, share(self._target), self._delay, floor)
        if floor > self._delay:
            raise UsageError(f"{self!r}: the floor is above the ceiling")

    def observed(self) -> None:
        """Ask for aggregates of each substream: a window is broken by its own rows."""

    def live(self, spark: SparkSession) -> LiveFront:
        return LearningFront(self, spark)


class LiveFrontier(LiveFront):
    """A frontier while its query runs, with the scopes that it lists.

    A note in the checkpoint has the batch in which each of them was first looked for: a batch that is repeated opens
    the same windows, and no later one opens them again.
    """

    front: BoundedOutOfOrderness
    failing = "the scopes that it lists cannot be read"

    def __init__(self, front: BoundedOutOfOrderness, spark: SparkSession) -> None:
        super().__init__(front)
        self._spark = spark
        self._listed: Sequence[str] = ()
        self._since: dict[str, int] | None = None  # as the note has it
        self._epoch: int | None = None
        self._list(front.listed)

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:
        self._notes, self._epoch = checkpoint / "tracker", epoch
        super().look(checkpoint, epoch, at_once)

    def read(self) -> None:
        if self.front.read_scopes is not None:
            self._list(self.front.texts(self._spark, self.front.read_scopes()))

    def resume(self, frontiers: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        # At the tracker a deployment begins without promises, so windows that had ended would do so once more.
        epoch, drained = (self._notes / _REACHED).read(self._drained) or (None, [])
        if epoch is not None and epoch > (-1 if self._epoch is None else self._epoch):
            drained = []  # the checkpoint was set back since, and its rows are read again
        if self._listed or drained:
            known = {(name, scope) for name, scopes in frontiers().items() for scope in scopes}
            # Each would be a promise, and a silent partition be waited for anew at each start.
            self.promised([each for subject, each in self._waiting.items() if subject in known])
            self.promise(
                Frontier(name, time, None if scope == EVERY_SCOPE else scope)
                for name, scope, time in drained
                if name in self.names and (name, scope) not in known
            )

    def rest(self, frontiers: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        promised = frontiers()
        reached = [[name, scope, time] for name in self.names for scope, time in promised.get(name, {}).items()]
        if reached:
            (self._notes / _REACHED).put(self._drained, [self._epoch, reached])

    @property
    def _drained(self) -> str:
        return f"{self.front.name}.drained.json"

    def _list(self, scopes: Sequence[str]) -> None:
        """Have the tracker know scopes, by a time that ends nothing."""
        self._listed = scopes
        self.promise(Frontier(name, -eventtime.LIMIT, scope) for scope in scopes for name in self.names)

    def of_groups(self, groups: Sequence[Group], epoch: int) -> Promises:
        promises = self.moved(groups, epoch)
        return replace(promises, opened=self._opened(groups, epoch))

    def moved(self, groups: Sequence[Group], epoch: int) -> Promises:
        """Return the times that a batch allows to promise."""
        return super().of_groups(groups, epoch)

    def _opened(self, groups: Sequence[Group], epoch: int) -> list[tuple[str, Substream]]:
        """Return a window for each listed scope that has not sent anything yet: the newest one of the batch."""
        listed = self._listed
        moving = [*map(_time_key, range(len(self.names)))]
        ends = [(each.end_time, each) for each, row in groups if any(row[name] is not None for name in moving)]
        if not listed or not ends:
            return []
        folder, note = self._notes / "scopes", f"{self.front.name}.json"
        since = self._since if self._since is not None else folder.read(note) or {}
        before = {scope: first for scope, first in since.items() if first < epoch}
        new = [scope for scope in listed if scope not in before]
        self._since = before | dict.fromkeys(new, epoch)
        if self._since != since:
            folder.put(note, self._since)
        came, (_, newest) = {each.scope for each, _ in groups}, max(ends)
        silent = [Substream(scope, newest.name, newest.end_time) for scope in new if scope not in came]
        return [(self.front.name, each) for window in silent for each in self.front.rule.tracked_as(window)]


@dataclass(frozen=True)
class _Note:
    """All that a measured front has learnt up to a batch, as its checkpoint keeps it."""

    front: str
    epoch: int
    target: float
    ceiling: int
    floor: int
    state: Sequence[str] = ()

    def lateness(self) -> Lateness:
        return Lateness(self.target, self.ceiling, self.floor, self.state)


class LearningFront(LiveFrontier):
    """A frontier that learns its delay from each batch.

    Two notes in the checkpoint, written in turns, have what the last two batches have taught: a batch that is repeated
    begins with what was known before it.
    """

    front: MeasuredFrontier
    lateness: Lateness

    def __init__(self, front: MeasuredFrontier, spark: SparkSession) -> None:
        super().__init__(front, spark)
        self.lateness = front.learnt.lateness()
        self._turn: int | None = None  # the note to write next; None: no batch has come yet

    @property
    def _folder(self) -> Folder:
        return self._notes / _LEARNT

    def moved(self, groups: Sequence[Group], epoch: int) -> Promises:
        if self._turn is None:
            self._turn = self._go_on(epoch)
        windows = [
            (scope if self.front.scoped else "", end, aggregates[_NEWEST])
            for (scope, _, end), aggregates in groups
            if end is not None and aggregates[_NEWEST] is not None
        ]
        promised = self.lateness.batch(windows)
        if promised:
            note = replace(self.front.learnt, epoch=epoch, state=self.lateness.state)
            self._folder.put(f"{self.front.name}.{self._turn}.json", asdict(note))
            self._turn = 1 - self._turn
        return Promises(
            frontiers=[
                Frontier(self.front.name, max(time, -eventtime.LIMIT), scope if self.front.scoped else None)
                for scope, time in promised.items()
            ]
        )

    def _go_on(self, epoch: int) -> int:
        """Go on from the newest note of an earlier batch, and return which one to write next: the other."""
        found = [(self._folder.read(f"{self.front.name}.{turn}.json"), turn) for turn in (0, 1)]
        earlier = [(_Note(**note), turn) for note, turn in found if note is not None and note["epoch"] < epoch]
        if not earlier:
            return 0
        note, turn = max(earlier, key=lambda each: each[0].epoch)
        self.lateness = replace(self.front.learnt, state=note.state).lateness()
        return 1 - turn


class _AfterRun(LiveFrontier):
    """A frontier that waits in the checkpoint, while the batches of a run move it, until that run has read all."""

    def __init__(self, front: BoundedOutOfOrderness, spark: SparkSession) -> None:
        super().__init__(front, spark)
        self._folder: Folder | None = None
        self._reached: dict[tuple[str, str | None], int] = {}

    @property
    def _note(self) -> str:
        return f"{self.front.name}.json"

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:
        super().look(checkpoint, epoch, at_once)
        if self._folder is None:  # an earlier run may have died before its promise
            self._folder = self._notes / _REACHED
            self._reached = {(name, scope): time for name, scope, time in self._folder.read(self._note) or []}

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        return self._kept(self.front.of_observed(row))

    def moved(self, groups: Sequence[Group], epoch: int) -> Promises:  # noqa: ARG002
        return self._kept(self.front.newest(groups))

    def _kept(self, promises: Promises) -> Promises:
        with self._lock:
            further = {
                (each.front, each.scope): each.time
                for each in promises.frontiers
                if each.time > self._reached.get((each.front, each.scope), each.time - 1)
            }
            if further:
                self._reached.update(further)
                self._write()
        return Promises()

    def _write(self) -> None:
        assert self._folder is not None, "the query looks before its first batch"
        self._folder.put(self._note, [[*subject, time] for subject, time in self._reached.items()])

    def promised(self, promises: Sequence[CommitPromise]) -> None:
        super().promised(promises)
        if "front_idle_after" not in self.front.idle_after:
            return
        # The next run promises for partitions of which it has rows: the others are silent.
        taken = {(each.front, each.scope): each.time for each in promises if isinstance(each, Frontier)}
        with self._lock:
            left = {subject: time for subject, time in self._reached.items() if taken.get(subject) != time}
            if len(left) < len(self._reached):
                self._reached = left
                self._write()

    def ran(self) -> None:
        self._spark.range(1).count()  # a query that ended with its session has not read all
        with self._lock:
            reached = [*self._reached.items()]
        self.promise(Frontier(name, time, scope) for (name, scope), time in reached)
