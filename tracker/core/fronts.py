"""The fronts: who has promised what, and how far that closes.

A promise counts at once, but one made in IMMEDIATE mode can be withdrawn until its epoch is committed: it has a
*supporter*, the (producer, epoch) that made it, where a firm one has ``FIRM``. What all fronts have promised is kept
as the least of them for each scope, in a heap whose entries may lag behind: a front's time only grows, so an entry
is a lower bound and is put right when it comes to the top. Nothing is searched.

This module knows times, scopes and names, but no substreams: which of those a promise closes is the caller's to see.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

UNSET = -(2**63) - 1  #: below every time: nothing promised
EVERYTHING = 2**63  #: above every time, and above having none: all have finished

Supporter: TypeAlias = tuple[str, int] | None
FIRM: Supporter = None


class Front:
    """One source instance's promises.

    Attributes:
        owner: the producer that promises for it; None: nobody has yet.
        owned_in: the deployment in which the owner last claimed it.
        finishers: supporters of its finish; it has finished while there is any.
        drained_in: it finished in the drain under way.
        idle: it is not waited for, as long as another front is.
        heard_at: when its owner was last heard of, or when it was added (ns).
    """

    __slots__ = (
        "drained_in",
        "finishers",
        "firm",
        "heard_at",
        "idle",
        "last_promise",
        "name",
        "owned_in",
        "owner",
        "soft",
    )

    def __init__(self, name: str, heard_at: int) -> None:
        self.name = name
        self.owner: str | None = None
        self.owned_in = ""
        self.firm: dict[str | None, int] = {}
        self.soft: list[tuple[Supporter, str | None, int]] = []
        self.finishers: set[Supporter] = set()
        self.drained_in = False
        self.idle = False
        self.heard_at = heard_at
        self.last_promise: int | None = None

    @property
    def finished(self) -> bool:
        """It will send nothing more at all."""
        return bool(self.finishers)

    def firm_time(self, scope: str | None) -> int:
        """The greatest time that it has firmly promised for a scope (None: for every scope)."""
        time = self.firm.get(None, UNSET)
        return time if scope is None else max(time, self.firm.get(scope, UNSET))

    def time(self, scope: str | None) -> int:
        """The same, with what can still be withdrawn."""
        time = self.firm_time(scope)
        for _, of, promised in self.soft:
            if promised > time and (of is None or of == scope):
                time = promised
        return time

    def frontiers(self) -> dict[str | None, int]:
        """The greatest promised times by scope, as promised."""
        frontiers = dict(self.firm)
        for _, scope, time in self.soft:
            frontiers[scope] = max(time, frontiers.get(scope, UNSET))
        return frontiers


class _Least:
    """The least of some fronts' times, which only grow."""

    __slots__ = ("_heap", "_time")

    def __init__(self, fronts: Iterable[Front], time: Callable[[Front], int]) -> None:
        self._time = time
        self._heap = [(time(front), front.name, front) for front in fronts]
        heapq.heapify(self._heap)

    def read(self) -> int:
        """The least; ``EVERYTHING`` if there is no front to wait for."""
        heap = self._heap
        while heap:
            bound, name, front = heap[0]
            now = self._time(front)
            if now == bound:
                return bound
            heapq.heapreplace(heap, (now, name, front))
        return EVERYTHING


class Fronts:
    """All fronts of a job.

    Args:
        names: of the fronts.
        now: when they were defined (ns).
    """

    def __init__(self, names: Iterable[str], now: int) -> None:
        self.by_name: dict[str, Front] = {name: Front(name, now) for name in names}
        self.scoped: set[str] = set()  #: the scopes that any promise has named
        self.version = 0  #: counts what may have raised a floor
        self._floor_of_all = UNSET
        self._floors: dict[str, int] = {}
        self._leasts: dict[str | None, _Least] = {}
        self._firm_leasts: dict[str | None, _Least] = {}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def __iter__(self) -> Iterator[Front]:
        return iter(self.by_name.values())

    def unfinished(self) -> list[Front]:
        """Those that may still send."""
        return [front for front in self.by_name.values() if not front.finished]

    def waited(self) -> list[Front]:
        """Those that closing waits for: the unfinished, and of them only those that are not idle if there is one."""
        unfinished = self.unfinished()
        awake = [front for front in unfinished if not front.idle]
        return awake or unfinished

    def changed(self) -> None:
        """Which fronts are waited for has changed, or a time has sunk: what was derived from that is void."""
        self.version += 1
        self._leasts.clear()
        self._firm_leasts.clear()

    def limit(self, scope: str | None) -> int:
        """Up to which end time all fronts have closed a scope (None: one that no promise has named).

        ``UNSET`` if there are no fronts or one has promised nothing, ``EVERYTHING`` if all have finished.
        """
        if not self.by_name:
            return UNSET
        key = scope if scope in self.scoped else None
        least = self._leasts.get(key)
        if least is None:
            least = self._leasts[key] = _Least(self.waited(), partial(Front.time, scope=key))
        return least.read()

    def progress(self) -> int:
        """The least frontier for every scope, of idle fronts too: what they send when they wake is not over yet."""
        if not any(front.idle for front in self.by_name.values()):
            return self.limit(None)
        return min((front.time(None) for front in self.unfinished()), default=EVERYTHING)

    @property
    def has_floor(self) -> bool:
        """Whether any scope has one; it outlives the fronts."""
        return self._floor_of_all > UNSET or bool(self._floors)

    def all_finished_firmly(self) -> bool:
        """Nothing will be sent any more, and nobody can take that back."""
        return all(FIRM in front.finishers for front in self.by_name.values())

    def floor(self, scope: str) -> int:
        """The highest time that all fronts then unfinished had firmly promised, ever."""
        return max(self._floor_of_all, self._floors.get(scope, UNSET))

    def raise_floors(self, scopes: Iterable[str | None] | None = None) -> None:
        """Raise the floors of the scopes that a firm promise was for; None: of all, since fronts have changed."""
        unfinished = [front for front in self.by_name.values() if FIRM not in front.finishers]
        if not unfinished:
            return
        touched = {None, *self.scoped} if scopes is None else set(scopes)
        if None in touched:
            touched |= self.scoped
        self.version += 1
        for scope in touched:
            least = self._firm_leasts.get(scope)
            if least is None:
                least = self._firm_leasts[scope] = _Least(unfinished, partial(Front.firm_time, scope=scope))
            time = least.read()
            if scope is None:
                self._floor_of_all = max(self._floor_of_all, time)
            else:
                self._floors[scope] = max(self._floors.get(scope, UNSET), time)

    def would_change(self, front: str, scope: str | None, time: int | None, besides: Iterable[Any] = ()) -> bool:
        """Whether a promise would raise the front's frontier, or (`time` None) finish it.

        Args:
            front: the front's name.
            scope: the frontier's.
            time: the frontier's, or None for a finish.
            besides: (front, scope, time) of promises that are to take effect before.
        """
        stands = self.by_name[front]
        if time is None:
            return not stands.finished and not any(f == front and t is None for f, _, t in besides)
        reached = stands.frontiers().get(scope, UNSET)
        for other, of, promised in besides:
            if other == front and of == scope and promised is not None:
                reached = max(reached, promised)
        return time > reached

    def advance(self, front: Front, scope: str | None, time: int, supporter: Supporter) -> tuple[int, int]:
        """A front's frontier, of a scope or of every scope.

        Returns:
            the front's time for that scope before and after: what lies between is newly promised.
        """
        if scope is not None and scope not in self.scoped:
            self.scoped.add(scope)
            self._leasts.pop(scope, None)
        before = front.time(scope)
        if supporter is FIRM:
            if time > front.firm.get(scope, UNSET):
                front.firm[scope] = time
        else:
            front.soft.append((supporter, scope, time))
        return before, front.time(scope)

    def add_front(self, name: str, now: int) -> Front:
        """A front that is new in a deployment: unfinished, at the floors."""
        front = self.by_name[name] = Front(name, now)
        front.firm = {scope: time for scope, time in self._floors.items() if time > UNSET}
        if self._floor_of_all > UNSET:
            front.firm[None] = self._floor_of_all
        self.changed()
        return front

    # ------------------------------------------------------------ dump and load

    def dump(self) -> dict[str, Any]:
        """The fronts as plain values."""
        return {
            "fronts": [
                {
                    "name": front.name,
                    "owner": front.owner,
                    "owned_in": front.owned_in,
                    "firm": list(front.firm.items()),
                    "soft": list(front.soft),
                    "finishers": list(front.finishers),
                    "drained_in": front.drained_in,
                    "idle": front.idle,
                    "heard_at": front.heard_at,
                    "last_promise": front.last_promise,
                }
                for front in self.by_name.values()
            ],
            "scoped": sorted(self.scoped),
            "floor_of_all": str(self._floor_of_all),  # UNSET and EVERYTHING need more than 64 bits
            "floors": [(scope, str(floor)) for scope, floor in self._floors.items()],
        }

    @classmethod
    def load(cls, dump: dict[str, Any]) -> Fronts:
        """The fronts that gave `dump`."""
        fronts = cls((), 0)
        for each in dump["fronts"]:
            front = fronts.by_name[each["name"]] = Front(each["name"], each["heard_at"])
            front.owner, front.owned_in = each["owner"], each["owned_in"]
            front.firm = {scope: time for scope, time in each["firm"]}  # noqa: C416 - pairs may be lists
            front.soft = [(_supporter(by), scope, time) for by, scope, time in each["soft"]]
            front.finishers = {_supporter(by) for by in each["finishers"]}
            front.drained_in, front.idle, front.last_promise = each["drained_in"], each["idle"], each["last_promise"]
        fronts.scoped = set(dump["scoped"])
        fronts._floor_of_all = int(dump["floor_of_all"])
        fronts._floors = {scope: int(floor) for scope, floor in dump["floors"]}
        return fronts


def _supporter(value: Any) -> Supporter:
    """A supporter as it was before it went through a list."""
    return FIRM if value is None else (value[0], value[1])
