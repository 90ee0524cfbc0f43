"""The promises of a dry run, simulated trigger by trigger and row by row: it shares no code with `tracker.replay`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

Row = tuple[int, int, str]  #: time, arrival, scope
Window = tuple[str, int]  #: scope, end
Rule = Callable[[Window, list[Row], list[Row], int], bool]


@dataclass
class Query:
    """A query that is triggered again and again.

    Args:
        rows: in any order.
        length, slide, trigger: in microseconds.
        ahead: how far beyond its trigger a row's time may be to move a frontier, in microseconds; None: as it is.
    """

    rows: list[Row]
    length: int
    slide: int
    trigger: int
    ahead: int | None = None
    batches: dict[int, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            at = self.trigger * -(-row[1] // self.trigger)
            self.batches.setdefault(at, []).append(row)

    def near(self, rows: list[Row]) -> list[Row]:
        """Return the rows that move a frontier."""
        clocks = [self.trigger * -(-row[1] // self.trigger) for row in rows]
        return [row for row, at in zip(rows, clocks, strict=True) if self.ahead is None or row[0] <= at + self.ahead]

    def windows(self, row: Row) -> list[Window]:
        """Return the windows that a row is in: all starts at a slide that are at most a length before it."""
        time, _, scope = row
        starts = range(time // self.slide * self.slide, time - self.length, -self.slide)
        return [(scope, start + self.length) for start in starts if start <= time < start + self.length]

    @property
    def all_windows(self) -> set[Window]:
        return {window for row in self.rows for window in self.windows(row)}

    def released(self, ends: Rule, last: int, first: int | None = None) -> dict[Window, int]:
        """Return when each window is released: at the first trigger, up to the last one, at which a rule has it end.

        Args:
            ends: the rule, of the window, the rows before this trigger's batch, those up to it, and its time.
            first: trigger; None: that of the first batch.
        """
        found: dict[Window, int] = {}
        before: list[Row] = []
        for at in range(min(self.batches) if first is None else first, last + 1, self.trigger):
            now = [*before, *self.batches.get(at, [])]
            for window in self.all_windows - found.keys():
                if ends(window, before, now, at):
                    found[window] = at
            before = now
        return found

    def judged(self, released: dict[Window, int], windows: set[Window]) -> tuple[object, ...]:
        """Return the figures of `Figures`, in its order, as plain tuples."""
        placed = [(window, row) for row in self.rows for window in self.windows(row) if window in windows]
        late = [
            (window, row)
            for window, row in placed
            if window in released and released[window] < self.trigger * -(-row[1] // self.trigger)
        ]
        ended = [window for window in windows if window in released]
        last = {window: max(row[1] for other, row in placed if other == window) for window in windows}
        return (
            len(windows),
            len({window for window, _ in late}),
            len(windows) - len(ended),
            len(placed),
            len(late),
            quantiles([released[window] - last[window] for window in ended]),
            quantiles([released[window] - window[1] for window in ended]),
        )


def quantiles(values: list[int]) -> tuple[int, ...] | None:
    """Return the least values that 50 %, 95 % and all of the values do not exceed."""
    if not values:
        return None
    shares = (Fraction(1, 2), Fraction(95, 100), Fraction(1))
    return tuple(
        min(value for value in values if sum(each <= value for each in values) >= share * len(values))
        for share in shares
    )


def newest(rows: list[Row], scope: str | None) -> int | None:
    return max((time for time, _, other in rows if scope in (None, other)), default=None)


def watermark(query: Query, delay: int) -> dict[Window, int]:
    """Measure Spark's: to the millisecond, under the rows before this batch; one batch runs when no row comes."""

    def ends(window: Window, before: list[Row], now: list[Row], at: int) -> bool:
        top = newest(before, None)
        return top is not None and top // 1000 * 1000 - delay >= window[1]

    return query.released(ends, max(query.batches) + query.trigger)


def frontier(query: Query, delay: int, per_scope: bool) -> dict[Window, int]:
    def ends(window: Window, before: list[Row], now: list[Row], at: int) -> bool:
        top = newest(query.near(now), window[0] if per_scope else None)
        return top is not None and top - delay >= window[1]

    return query.released(ends, max(query.batches))


def wait(query: Query, delay: int) -> dict[Window, int]:
    """Measure by a clock, which needs no rows: it begins with the first window's end, or with the first batch."""
    ends = [end + delay for _, end in query.all_windows]
    first = min(query.trigger * -(-min(ends) // query.trigger), min(query.batches))
    last = max(*ends, *query.batches) + query.trigger
    return query.released(lambda window, before, now, at: at >= window[1] + delay, last, first)


def counts(query: Query) -> dict[Window, int]:
    def ends(window: Window, before: list[Row], now: list[Row], at: int) -> bool:
        return sum(window in query.windows(row) for row in now) == sum(window in query.windows(r) for r in query.rows)

    return query.released(ends, max(query.batches))


def measured(query: Query, target: float, ceiling: int) -> dict[Window, int]:
    """Measure each scope by itself, batch by batch, by lists of all windows that it has had."""
    allowed = 1 - target
    newest_of: dict[str, int] = {}
    promised: dict[str, int] = {}
    needs: dict[str, list[int]] = {}  # settled windows, in their order
    broken_at: dict[str, list[int]] = {}  # how many were settled when one was broken
    open_windows: dict[Window, int] = {}
    broken_windows: set[Window] = set()  # of those that are open
    released: dict[Window, int] = {}

    def weight(later: int) -> float:
        return (1 - allowed / 20) ** later

    def seen(scope: str) -> tuple[list[tuple[int, float]], float]:
        of = needs.get(scope, [])
        weighed = [(need, weight(len(of) - 1 - place)) for place, need in enumerate(of)]
        return weighed, sum(weight(len(of) - settled) for settled in broken_at.get(scope, []))

    for at in sorted(query.batches):
        rows = query.near(query.batches[at])
        before = dict(newest_of)
        for window in sorted({window for row in rows for window in query.windows(row)}):
            scope, end = window
            if scope in promised and end <= promised[scope] and window not in broken_windows:
                broken_windows.add(window)
                broken_at.setdefault(scope, []).append(len(needs.get(scope, [])))
            need = max(0, before[scope] - end + 1) if scope in before else 0
            open_windows[window] = max(open_windows.get(window, 0), need)
        for scope in {row[2] for row in rows}:
            newest_of[scope] = max(
                row[0] for row in [*rows, (before.get(scope, -(10**18)), 0, scope)] if row[2] == scope
            )
            over = sorted(
                window for window in open_windows if window[0] == scope and window[1] <= newest_of[scope] - ceiling
            )
            needs.setdefault(scope, []).extend(open_windows.pop(window) for window in over)
            broken_windows -= set(over)
        for scope in {row[2] for row in rows}:
            weighed, broken = seen(scope)
            missing = 4 / allowed - sum(each for _, each in weighed)
            others = [seen(other) for other in needs if other != scope]
            number = sum(each for of, _ in others for _, each in of)
            if missing > 0 and others:
                part = min(1.0, missing / max(number, 1.0))
                weighed = weighed + [(need, part * each) for of, _ in others for need, each in of]
                broken += part * sum(each for _, each in others)
            left = allowed * (sum(each for _, each in weighed) + 1) - broken - 2
            delay = ceiling
            if left >= 0:
                steps = {need: rounded(need) for need, _ in weighed}
                fit = [step for step in {0, *steps.values()} if more(weighed, steps, step) <= left]
                delay = min(ceiling, *fit) if fit else ceiling
            promised[scope] = max(promised.get(scope, -(10**18)), newest_of[scope] - delay)
        for window in query.all_windows - released.keys():
            if promised.get(window[0], -(10**18)) >= window[1]:
                released[window] = at
    return released


def more(weighed: list[tuple[int, float]], steps: dict[int, int], step: int) -> float:
    """Return the weight of the windows that need more than a delay."""
    return sum(each for need, each in weighed if steps[need] > step)


def rounded(need: int) -> int:
    """Return the least whole power of 1.05 that is no less, rounded up, as histograms have it."""
    if need == 0:
        return 0
    power = 0
    while ceil(1.05**power) < need:
        power += 1
    return ceil(1.05**power)


def least(query: Query, share: Fraction, per_scope: bool) -> tuple[dict[Window, int], set[Window]]:
    """Return the least delay in whole seconds that is right on the first half; and the windows without a row there."""
    at = sorted(batch for batch, rows in query.batches.items() for row in rows for _ in query.windows(row))
    half = at[(len(at) - 1) // 2]
    early = [row for batch, rows in query.batches.items() for row in rows if batch <= half]
    first = Query(early, query.length, query.slide, query.trigger, query.ahead)
    delay = 0
    while True:
        windows, wrong, *_ = first.judged(frontier(first, delay, per_scope), first.all_windows)
        assert isinstance(windows, int)
        assert isinstance(wrong, int)
        if windows - wrong >= share * windows:
            return frontier(query, delay, per_scope), query.all_windows - first.all_windows
        delay += 1_000_000
