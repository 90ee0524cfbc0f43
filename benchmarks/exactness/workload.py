"""Arrival of events: sites that are late, closed or cut off, partitions, and the steps in which a reader gets them.

A *site* is a tenant with a Nexmark generator of its own. Its rows reach the reader some seconds after they happen; one
of ten takes up to three minutes. A site that is cut off keeps its rows and sends them, in order, when it is back. A
closed site has none. After each minute a site states how many rows it had in it (a *count*), by the same line as its
rows. Other plans delay partitions, have rows uploaded together, or stamp them by periods.

A *step* is what a reader gets at once: the rows and counts that arrived in it. The end of a step is the time on the
clock. All times are milliseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from random import Random

from benchmarks.exactness import nexmark

MINUTE = 60_000
START = 1_772_323_200_000  #: 2026-03-01T00:00:00Z
UPLOAD = 10 * MINUTE  #: the rows of so long are uploaded together

Span = tuple[int, int]  #: minutes after `START`, from and until


@dataclass(frozen=True)
class Site:
    """A tenant.

    Attributes:
        tenant: its name.
        partitions: that its rows go to, one after the other.
        away: when it is cut off.
        back: the minute in which it sends what it has kept; None: when it is no longer cut off.
        closed: when nothing happens there.
        fast: a minute, and by how many minutes the clock of a device is ahead that makes the minute's first bid.
    """

    tenant: str
    partitions: tuple[int, ...]
    away: Span | None = None
    back: int | None = None
    closed: Span | None = None
    fast: tuple[int, int] | None = None


@dataclass(frozen=True)
class Row:
    """An event as a reader gets it.

    Attributes:
        number, kind, auction, person, price: see `nexmark.Event`.
        tenant: the site.
        part: its partition.
        at: its event time.
        arrives: when it is there to be read.
        last: whether it is its partition's last one of an upload.
    """

    number: int
    tenant: str
    part: int
    kind: str
    at: int
    arrives: int
    auction: int
    person: int
    price: int
    last: bool = False


@dataclass(frozen=True)
class Count:
    """The number of rows that a site has had in the minute that begins at `minute`."""

    tenant: str
    minute: int
    rows: int
    arrives: int


@dataclass(frozen=True)
class Step:
    """The rows and counts that a reader gets at once, in order of arrival.

    Attributes:
        number: from 0.
        until: the time on the clock when all of it has arrived.
        complete: up to which time all sites have stated their counts.
    """

    number: int
    until: int
    rows: tuple[Row, ...]
    counts: tuple[Count, ...]
    complete: int


@dataclass(frozen=True)
class Plan:
    """Parameters of a workload.

    Attributes:
        name: of the workload.
        minutes: for which events happen.
        sites: the tenants.
        due: windows that end by this minute are measured, and what comes later lets time pass; None: all are.
        lag: minutes by which some partitions are read later than their rows arrive.
        uploads: partitions whose rows come an upload at once, so many minutes after the last one's time.
        period: minutes; a row has the last millisecond of its period for its time, and comes in order within the next
            one; 0: it has a time of its own.
        slow: share of rows that take up to `slowest` minutes.
        step: minutes of a step.
        quiet: minutes without data at the end.
        seed: of everything.
        clock: the event times of each site's generator.
        begins: the time of minute 0.
    """

    name: str
    minutes: int
    sites: tuple[Site, ...]
    due: int | None = None
    lag: Mapping[int, int] = field(default_factory=dict)
    uploads: Mapping[int, int] = field(default_factory=dict)
    period: int = 0
    slow: float = 0.1
    slowest: float = 3
    step: int = 2
    quiet: int = 20
    seed: int = 7
    clock: nexmark.Clock = field(default_factory=nexmark.Clock)
    begins: int = START


@dataclass(frozen=True)
class Workload:
    """Rows in steps."""

    plan: Plan
    steps: tuple[Step, ...]

    @property
    def rows(self) -> list[Row]:
        """All rows, in order of arrival."""
        return [row for step in self.steps for row in step.rows]

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return 1 + max(part for site in self.plan.sites for part in site.partitions)

    def write(self, path: Path) -> None:
        """Write the workload for the program of a peer."""
        steps = [
            {"number": step.number, "until": step.until, "rows": [asdict(row) for row in step.rows]}
            for step in self.steps
        ]
        path.write_text(json.dumps({"partitions": self.partitions, "steps": steps}))


def usual(minutes: int = 120, *, own: bool = False, seed: int = 7) -> Plan:
    """Return four tenants: one cut off for a while, one closed for a while, and rows out of order everywhere.

    Args:
        minutes: for which events happen; outages are in proportion.
        own: each tenant has a partition of its own; otherwise three share three partitions, and the one that closes has
            the fourth.
        seed: of everything.
    """

    def span(first: float, last: float) -> Span:
        return round(minutes * first), round(minutes * last)

    shared = (0, 1, 2)
    sites = (
        Site("north", (0,) if own else shared),
        Site("east", (1,) if own else shared, away=span(0.25, 0.5)),
        Site("south", (2,) if own else shared),
        Site("west", (3,), closed=span(0.3, 0.6)),
    )
    return Plan("a partition for each tenant" if own else "tenants share partitions", minutes, sites, seed=seed)


def make(plan: Plan) -> Workload:
    """Make the rows, and deal them out to steps."""
    rows: list[Row] = []
    counts: list[Count] = []
    for number, site in enumerate(plan.sites):
        own = _rows(plan, site, number)
        rows += own
        counts += _counts(plan, site, own)
    rows.sort(key=lambda row: (row.arrives, row.tenant, row.number))
    counts.sort(key=lambda count: (count.arrives, count.tenant, count.minute))
    return Workload(plan, tuple(_steps(plan, rows, counts)))


def _rows(plan: Plan, site: Site, place: int) -> list[Row]:
    seed = plan.seed * 100 + place
    random = Random(f"{seed} arrival")
    times = plan.clock.times(plan.minutes * MINUTE)
    found: list[Row] = []
    ahead = site.fast
    for event, time in zip(nexmark.events(seed, len(times)), times, strict=True):
        delay = random.uniform(0, plan.slowest * MINUTE) if random.random() < plan.slow else random.uniform(0, 2000)
        if site.closed and site.closed[0] * MINUTE <= time < site.closed[1] * MINUTE:
            continue
        part = site.partitions[event.number % len(site.partitions)]
        at, arrives = time, _sent(site, time) + int(delay) + plan.lag.get(part, 0) * MINUTE
        if ahead and event.kind == "bid" and time >= ahead[0] * MINUTE:
            at, ahead = time + ahead[1] * MINUTE, None
        if part in plan.uploads:
            arrives = (time // UPLOAD + 1) * UPLOAD + plan.uploads[part] * MINUTE
        if plan.period:
            length = plan.period * MINUTE
            at, arrives = (time // length + 1) * length - 1, time + length
        found.append(
            Row(
                number=event.number,
                tenant=site.tenant,
                part=part,
                kind=event.kind,
                at=plan.begins + at,
                arrives=plan.begins + arrives,
                auction=event.auction,
                person=event.person,
                price=event.price,
            )
        )
    if not plan.uploads:
        return found
    last = {(row.part, row.arrives): row.number for row in found}
    return [replace(row, last=last[row.part, row.arrives] == row.number) for row in found]


def _sent(site: Site, time: int) -> int:
    """Return when a site sends an event of a time: at once, or, in order, when the site is back."""
    if site.away and site.away[0] * MINUTE <= time < site.away[1] * MINUTE:
        back = site.away[1] if site.back is None else site.back
        return back * MINUTE + (time - site.away[0] * MINUTE) // 1000
    return time


def _counts(plan: Plan, site: Site, rows: Sequence[Row]) -> list[Count]:
    had: dict[int, int] = {}
    for row in rows:
        had[row.at // MINUTE * MINUTE] = had.get(row.at // MINUTE * MINUTE, 0) + 1
    return [
        Count(
            site.tenant,
            plan.begins + minute * MINUTE,
            had.get(plan.begins + minute * MINUTE, 0),
            plan.begins + max(_sent(site, (minute + 1) * MINUTE - 1) + 1, 0),
        )
        for minute in range(plan.minutes + plan.quiet)  # open sites also state that they had none
    ]


def _steps(plan: Plan, rows: Sequence[Row], counts: Sequence[Count]) -> list[Step]:
    length = plan.step * MINUTE
    start = plan.begins
    end = max(rows[-1].arrives, start + plan.minutes * MINUTE) + plan.quiet * MINUTE
    came = {number: tuple(group) for number, group in groupby(rows, lambda row: (row.arrives - start) // length)}
    stated = {number: tuple(group) for number, group in groupby(counts, lambda each: (each.arrives - start) // length)}
    done = {site.tenant: set[int]() for site in plan.sites}
    upto = {site.tenant: start for site in plan.sites}
    steps = []
    for number in range(-(-(end - start) // length)):
        for count in stated.get(number, ()):
            done[count.tenant].add(count.minute)
            while upto[count.tenant] in done[count.tenant]:
                upto[count.tenant] += MINUTE
        until = start + (number + 1) * length
        steps.append(Step(number, until, came.get(number, ()), stated.get(number, ()), complete=min(upto.values())))
    return steps
