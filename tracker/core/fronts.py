"""The fronts: who has promised what, and which segments wait for whom.

What a front has `promised` takes effect; what it has `committed` cannot be taken back (`provisional` keeps the rest). A
front feeds some segments, or all; a segment waits for the fronts that feed it or a segment upstream. What the fronts of
a group of segments have promised together is `frontgroups`'s to keep.

This module handles times, scopes and names, but no substreams: the caller finds those that a promise closes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .frontgroups import UNSET, CommittedWatermarks, Front, FrontGroup
from .graph import Graph


class Fronts:
    """All fronts of a job, and the groups of those that its segments wait for.

    Segments that wait for the same fronts, and have the same committed watermarks, share a group; most jobs have one.

    Args:
        names: of the fronts.
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
            graph: the job's.
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
        """Return the group of a segment."""
        return self.groups[self.group_of[segment]]

    def committed_watermarks(self) -> list[CommittedWatermarks]:
        """Return the committed watermarks by segment."""
        return [self.groups[place].committed_watermarks for place in self.group_of]

    def changed(self) -> None:
        """Drop everything derived from the fronts: another set of them is waited for, or a time has sunk."""
        for group in self.groups:
            group.changed()

    @property
    def has_committed_watermark(self) -> bool:
        """Whether any scope has one; it outlives the fronts."""
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
            front: the front's name.
            scope: the frontier's.
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
