"""The fronts: who has promised what, and which segments wait for whom.

A front's `promised` frontiers take effect; its `committed` ones cannot be taken back (`provisional` keeps the rest). A
front feeds some segments, or all; a segment waits for the fronts that feed it or a segment upstream.

This module handles times, scopes and names, but no substreams: the caller finds those that a promise closes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tracker.contract.refusal import Refusal, Refused

from .graph import Graph

UNSET = -(2**63) - 1  #: below every time: nothing promised
EVERYTHING = 2**63  #: above every time, and above having none: all have finished


@dataclass(eq=False, slots=True)
class Front:
    """One source instance's promises.

    Attributes:
        last_contact: when its owner's last message arrived, or when it was added (ns).
        owner: the producer that promises for it; None: nobody has yet.
        owned_in: the deployment in which the owner last claimed it.
        fed: the segments that it feeds, by number; None: all of them.
        groups: those that wait for it, by their places among the job's.
        committed: its greatest frontiers by scope (None: for every scope), of which nothing can be taken back.
        promised: the same with what can be; the same dict where nothing can.
        finished: it will send nothing more at all; `finish_committed`: and that cannot be taken back.
        drained_in: it finished in the drain under way.
        idle: it is not waited for, as long as another front is.
        last_promise: when it promised last (ns); None: not yet.
        silent: others have promised for long since it did; what waits for nothing else is closed (`timers`).
        quiet_since: its last promise, or when it was added or the last hand-over ended, from which its silence counts.
    """

    name: str
    last_contact: int
    owner: str | None = None
    owned_in: str = ""
    fed: frozenset[int] | None = None
    groups: list[int] = field(default_factory=list)
    committed: dict[str | None, int] = field(default_factory=dict)
    promised: dict[str | None, int] = field(init=False)
    finished: bool = False
    finish_committed: bool = False
    drained_in: bool = False
    idle: bool = False
    last_promise: int | None = None
    silent: bool = False
    quiet_since: int = field(init=False)

    def __post_init__(self) -> None:
        self.promised = self.committed
        self.quiet_since = self.last_contact

    def feeds(self, segment: int) -> bool:
        """Return whether the front's elements enter a segment."""
        return self.fed is None or segment in self.fed

    def time(self, scope: str | None) -> int:
        """Return the greatest time that it has promised for a scope (None: for every scope)."""
        return _greatest(self.promised, scope)

    def closing_time(self, scope: str | None) -> int:
        """Return the promised time of a front that may still send; ``EVERYTHING`` once it has finished."""
        return EVERYTHING if self.finished else self.time(scope)

    def committed_time(self, scope: str | None) -> int:
        """Return the committed time; ``EVERYTHING`` once it has finished for good."""
        return EVERYTHING if self.finish_committed else _greatest(self.committed, scope)


def _greatest(frontiers: dict[str | None, int], scope: str | None) -> int:
    time = frontiers.get(None, UNSET)
    return time if scope is None else max(time, frontiers.get(scope, UNSET))


class _Least:
    """The least of some fronts' times, which only grow."""

    __slots__ = ("_heap", "_time")

    def __init__(self, fronts: Iterable[Front], time: Callable[[Front], int]) -> None:
        self._time = time
        self._heap = [(time(front), front.name, front) for front in fronts]
        heapq.heapify(self._heap)

    def read(self) -> int:
        """Return the least; ``EVERYTHING`` if there is no front to wait for."""
        heap = self._heap
        while heap:
            bound, name, front = heap[0]
            now = self._time(front)
            if now == bound:
                return bound
            heapq.heapreplace(heap, (now, name, front))
        return EVERYTHING


@dataclass(eq=False, slots=True)
class CommittedWatermarks:
    """The highest times that all fronts then unfinished had promised for good, by scope; they outlive the fronts."""

    of_all: int = UNSET
    by_scope: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.of_all > UNSET or bool(self.by_scope)

    def read(self, scope: str) -> int:
        """Return a scope's committed watermark."""
        return max(self.of_all, self.by_scope.get(scope, UNSET))

    def rise(self, scope: str | None, time: int) -> None:
        """Raise a scope's committed watermark; it never sinks."""
        if scope is None:
            self.of_all = max(self.of_all, time)
        else:
            self.by_scope[scope] = max(self.by_scope.get(scope, UNSET), time)

    def copy(self) -> CommittedWatermarks:
        """Return an independent copy."""
        return CommittedWatermarks(self.of_all, dict(self.by_scope))

    @classmethod
    def least(cls, several: Iterable[CommittedWatermarks]) -> CommittedWatermarks:
        """Return the least of several committed watermarks, by scope."""
        several = list(several)
        scopes = {scope for each in several for scope in each.by_scope}
        return cls(
            min((each.of_all for each in several), default=UNSET),
            {scope: min(each.read(scope) for each in several) for scope in scopes},
        )


class FrontGroup:
    """The fronts that some segments wait for, and the common progress of these.

    For each scope, the least of their promises is kept in a heap whose entries may lag behind: a front's time only
    grows, so an entry is a lower bound and is put right when it comes to the top. Nothing is searched.

    Args:
        scoped: the scopes that any promise has named; the job's, which grows.
        committed_watermarks: how far the segments' fronts have come.
    """

    def __init__(self, members: list[Front], scoped: set[str], committed_watermarks: CommittedWatermarks) -> None:
        self.members = members
        self.committed_watermarks = committed_watermarks
        self._scoped = scoped
        self._leasts: dict[str | None, _Least] = {}
        self._committed_leasts: dict[str | None, _Least] = {}

    def unfinished(self) -> list[Front]:
        """Return those that may still send."""
        return [front for front in self.members if not front.finished]

    def waited(self) -> list[Front]:
        """Return the fronts that closing waits for: the unfinished that are not idle, or all if every one is idle."""
        unfinished = self.unfinished()
        awake = [front for front in unfinished if not front.idle]
        return awake or unfinished

    @property
    def has_idle(self) -> bool:
        """Return whether any front is idle."""
        return any(front.idle for front in self.members)

    def changed(self) -> None:
        """Drop everything derived from the fronts' times: fronts became idle or active, or a time has sunk."""
        self._leasts.clear()
        self._committed_leasts.clear()

    def name_scope(self, scope: str) -> None:
        """Add a scope that a promise has named for the first time."""
        self._leasts.pop(scope, None)

    def watermark(self, scope: str | None) -> int:
        """Return the end time up to which all fronts have closed a scope (None: one that no promise has named).

        ``UNSET`` if there are no fronts or one has promised nothing, ``EVERYTHING`` if all have finished.
        """
        if not self.members:
            return UNSET
        key = scope if scope in self._scoped else None
        least = self._leasts.get(key)
        if least is None:
            least = self._leasts[key] = _Least(self.waited(), partial(Front.closing_time, scope=key))
        return least.read()

    def frontier_of_all_scopes(self) -> int:
        """Return the least frontier for every scope, of idle fronts too: what they send when they wake is not over
        yet."""
        if not self.has_idle:
            return self.watermark(None)
        return min((front.time(None) for front in self.unfinished()), default=EVERYTHING)

    def raise_committed(self, scopes: Iterable[str | None]) -> None:
        """Raise the committed watermarks of scopes whose promises were committed or may now count; None: all."""
        touched = set(scopes)
        if None in touched:
            touched |= self._scoped
        for scope in touched:
            least = self._committed_leasts.get(scope)
            if least is None:
                least = self._committed_leasts[scope] = _Least(self.members, partial(Front.committed_time, scope=scope))
            time = least.read()
            if time == EVERYTHING:  # none is unfinished: the committed watermarks stay
                return
            self.committed_watermarks.rise(scope, time)


class Fronts:
    """All fronts of a job, and the groups of those that its segments wait for.

    Segments that wait for the same fronts, and have the same committed watermarks, share a group; most jobs have one.

    Args:
        now: when they were defined (ns).
    """

    def __init__(self, names: Iterable[str], now: int) -> None:
        self.by_name: dict[str, Front] = {name: Front(name, now) for name in names}
        self.scoped: set[str] = set()  #: the scopes that any promise has named
        self.groups: list[FrontGroup] = []
        self.group_of: list[int] = []  #: by segment: its group's place in `groups`

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def __iter__(self) -> Iterator[Front]:
        return iter(self.by_name.values())

    def find(self, name: str, code: str | None = None) -> Front:
        """Return a front; raises `Refused`, with this gRPC status if one is given, if there is no such front."""
        if name not in self.by_name:
            fronts = ", ".join(self.by_name) or "none"
            raise Refused(Refusal.UNKNOWN_FRONT, f"{name!r} is not one of the job's fronts: {fronts}", code=code)
        return self.by_name[name]

    def unfinished(self) -> list[Front]:
        """Return those that may still send."""
        return [front for front in self.by_name.values() if not front.finished]

    # ------------------------------------------------------------ groups

    def lead(
        self,
        given: Iterable[tuple[str, Iterable[str]]],
        graph: Graph,
        committed_watermarks: Sequence[CommittedWatermarks],
    ) -> None:
        """Set which segments each front feeds, and so which fronts each segment waits for.

        Args:
            given: the segments that some fronts feed; the others feed all.
            committed_watermarks: by segment, how far its fronts have come.
        """
        fed = {front: frozenset(graph.number[segment] for segment in segments) for front, segments in given}
        for front in self.by_name.values():
            front.fed = None if len(fed.get(front.name, ())) in (0, len(graph)) else fed[front.name]
            front.groups = []
        all_of_them = list(self)
        everywhere = all(front.fed is None for front in self)
        found: dict[tuple[Any, ...], int] = {}
        self.groups, self.group_of = [], []
        reached = {front.name: graph.reached(front.fed) for front in self if front.fed is not None}
        for segment, committed_watermark in enumerate(committed_watermarks):
            reaching = all_of_them
            if not everywhere:
                reaching = [front for front in self if front.fed is None or reached[front.name][segment]]
            # Segments of one group have the same committed watermarks, in one place.
            key = (
                (id(committed_watermark),)
                if everywhere
                else (id(committed_watermark), *(front.name for front in reaching))
            )
            if key not in found:
                found[key] = len(self.groups)
                for front in reaching:
                    front.groups.append(len(self.groups))
                self.groups.append(FrontGroup(reaching, self.scoped, committed_watermark.copy()))
            self.group_of.append(found[key])

    def group(self, segment: int) -> FrontGroup:
        return self.groups[self.group_of[segment]]

    def committed_watermarks(self) -> list[CommittedWatermarks]:
        return [self.groups[place].committed_watermarks for place in self.group_of]

    def changed(self) -> None:
        """Drop everything derived from the fronts: another set of them is waited for, or a time has sunk."""
        for group in self.groups:
            group.changed()

    @property
    def has_committed_watermark(self) -> bool:
        """Return whether any scope has one; it outlives the fronts."""
        return any(group.committed_watermarks for group in self.groups)

    def lowest_committed_watermark(self, scope: str) -> int:
        """Return the lowest committed watermark that a scope has on any segment."""
        return min((group.committed_watermarks.read(scope) for group in self.groups), default=UNSET)

    def raise_committed(self) -> None:
        """Raise the committed watermarks of all scopes, since fronts have changed."""
        for group in self.groups:
            group.raise_committed({None, *self.scoped})

    def would_change(self, front: str, scope: str | None, time: int | None, besides: Iterable[Any] = ()) -> bool:
        """Return whether a promise would raise the front's frontier, or (`time` None) finish it.

        Args:
            time: the frontier's, or None for a finish.
            besides: (front, scope, time) of promises that are to take effect before.
        """
        stands = self.by_name[front]
        if time is None:
            return not stands.finished and not any(f == front and t is None for f, _, t in besides)
        reached = stands.promised.get(scope, UNSET)
        for other, of, promised in besides:
            if other == front and of == scope and promised is not None:
                reached = max(reached, promised)
        return time > reached

    def promise(self, front: Front, scope: str | None, time: int) -> tuple[int, int]:
        """Record a front's frontier, for a scope or for every scope.

        Returns:
            the front's time for that scope before and after: what lies between is newly promised.
        """
        if scope is not None and scope not in self.scoped:
            self.scoped.add(scope)
            for group in self.groups:
                group.name_scope(scope)
        before = front.time(scope)
        front.promised[scope] = max(time, front.promised.get(scope, UNSET))
        return before, front.time(scope)

    def add_front(self, name: str, now: int, committed_watermarks: CommittedWatermarks) -> Front:
        """Add a new deployment's front: unfinished, and as far as the segments that it reaches."""
        front = self.by_name[name] = Front(name, now)
        front.committed.update((scope, time) for scope, time in committed_watermarks.by_scope.items() if time > UNSET)
        if committed_watermarks.of_all > UNSET:
            front.committed[None] = committed_watermarks.of_all
        return front
