"""Plans of runs, and how a plan that shows a fault is cut down."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Final

from tests.checker.crowd import Size
from tests.checker.faults import KINDS, LEASE_S
from tests.checker.plants import PLANTS

_QUIET_S: Final = 1.0  # at the beginning and at the end
_ALONE_S: Final = 4.0  # before and after a fault that must be alone
_AFTERWARDS_S: Final = 2.0  # after the last fault that shows a planted one
_REPLACING: Final = ("promote", "promote older", "fill disk")  # a plan has one of them at most


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        kind: of `KINDS`.
        at: seconds from the beginning.
        lasts: seconds.
        target: ``leader``, ``standby`` or the number of a place.
        options: what else the kind needs.
    """

    kind: str
    at: float
    lasts: float
    target: str = "leader"
    options: dict[str, Any] = field(default_factory=dict)

    def shown(self) -> str:
        """Return a line for people."""
        more = "".join(f" {name}={value}" for name, value in self.options.items())
        return f"{self.at:7.2f} s  {self.kind} ({self.target}) for {self.lasts:.2f} s{more}"


@dataclass(frozen=True)
class Plan:
    """A run.

    Args:
        seed: decides what the clients do.
        seconds: how long they work under faults.
        faults: in their order.
        size: how many clients there are.
        journal: ``redis``, ``sqlite`` or ``objects``.
        plant: a fault that is planted in the tracker; empty: none.
        lease: of a journal in Redis or in an object store, in seconds; 0: the default.
        open_substreams: how many of another job are open all the time.
    """

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    size: Size = field(default_factory=Size)
    journal: str = "redis"
    plant: str = ""
    lease: float = LEASE_S
    open_substreams: int = 0

    def as_json(self) -> str:
        """Return the plan for a file."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, text: str) -> Plan:
        """Return the plan of a file."""
        values = json.loads(text)
        values["faults"] = tuple(Fault(**each) for each in values["faults"])
        values["size"] = Size(**values["size"])
        return cls(**values)


def draw(
    seed: int,
    seconds: float,
    journal: str = "redis",
    size: Size | None = None,
    kinds: Sequence[str] = (),
    pace: float = 2.0,
) -> Plan:
    """Draw a plan.

    Args:
        seed: decides.
        seconds: how long it takes.
        journal: ``redis``, ``sqlite`` or ``objects``.
        size: how many clients there are; None: as many as usual.
        kinds: of faults; empty: all that are possible.
        pace: seconds between the beginnings of two faults, on the average.

    >>> draw(7, 30) == draw(7, 30)
    True
    """
    random = Random(seed)
    possible = {name: kind for name, kind in KINDS.items() if journal in kind.journals and (not kinds or name in kinds)}
    replacing = random.choice(["", *(name for name in possible if name in _REPLACING)])
    names = [name for name in possible if name not in _REPLACING or name == replacing]
    faults: list[Fault] = []
    at = _QUIET_S
    while at < seconds - _QUIET_S and names:
        name = random.choices(names, [possible[each].weight for each in names])[0]
        kind = possible[name]
        lasts = round(random.uniform(*kind.lasts), 2)
        target = random.choices(["leader", "standby", "0", "1"], [6, 1, 1, 1])[0]
        if kind.alone:
            at = max([at, *(each.at + each.lasts for each in faults)]) + _ALONE_S
        faults.append(Fault(name, round(at, 2), lasts, target, kind.options(random)))
        if name in _REPLACING:
            names.remove(name)
        at += lasts + _ALONE_S if kind.alone else random.expovariate(1 / pace)
    return Plan(seed, seconds, tuple(faults), size or Size(), journal)


def planted(name: str, seed: int = 1) -> Plan:
    """Return the plan that shows a planted fault.

    Args:
        name: the fault's, of `PLANTS`.
        seed: decides what the clients do.
    """
    faults = [Fault(kind, at, lasts, "leader", options) for kind, at, lasts, options in PLANTS[name].faults]
    seconds = max(fault.at + fault.lasts for fault in faults) + _AFTERWARDS_S
    return Plan(seed, seconds, tuple(faults), plant=name)


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Cut a plan down that shows a fault: fewer faults, then fewer clients.

    A run depends on more than its plan, so `fails` may try a plan more than once.

    Args:
        plan: a plan that shows the fault.
        fails: whether a plan does.

    >>> plan = draw(7, 60)
    >>> needed = plan.faults[3]
    >>> shrink(plan, lambda some: needed in some.faults).faults == (needed,)
    True
    """
    best = plan
    size = (len(best.faults) + 1) // 2
    while size:
        start = 0
        while start < len(best.faults):
            fewer = replace(best, faults=best.faults[:start] + best.faults[start + size :])
            if fails(fewer):
                best = fewer
            else:
                start += size
        size //= 2
    for smaller in (Size(1, 1, best.size.epochs), Size(1, best.size.producers, best.size.epochs)):
        candidate = replace(best, size=smaller)
        if smaller != best.size and fails(candidate):
            return candidate
    return best
