"""Results against the truth: which windows are right, wrong, missing or doubled, what is lost, and how long it took.

An engine's results are final here: whatever comes out is what a reader acts upon. So a window that comes out with
other figures, or with other bounds, is wrong, even if it comes again with the right ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.exactness.queries import Key, Result, Value
from benchmarks.exactness.workload import MINUTE, Step


@dataclass(frozen=True)
class Emitted:
    """A result that came out of an engine in a step; `marked`: the engine says that it may lack rows."""

    step: int
    key: Key
    value: Value
    marked: bool = False


@dataclass(frozen=True)
class Verdict:
    """Outcome of the windows of a query.

    Attributes:
        windows: of the truth.
        right: came once, with the right figures.
        wrong: came with other figures or bounds, as if they were right.
        marked: came with other figures, and marked as incomplete.
        never: did not come.
        dropped: of those, the ones that will not come: a later window of the same tenant and entity did.
        doubled: came more than once with the same bounds.
        extra: results that belong to no window of the truth.
        lost: rows that are missing from windows that came, and all rows of those that were dropped.
        delays: minutes from the moment at which a window was complete to the end of the step in which its first result
            came, of the windows that are right, sorted.
        marked_delays: minutes from the end of a window that was marked to the end of the step in which it came, sorted.
    """

    windows: int
    right: int
    wrong: int
    never: int
    dropped: int
    doubled: int
    extra: int
    lost: int
    delays: tuple[float, ...]
    marked: int = 0
    marked_delays: tuple[float, ...] = ()

    @property
    def exact(self) -> bool:
        """All windows came once, with the right figures, and nothing else did."""
        return 0 < self.windows == self.right and not self.extra

    @property
    def median_delay(self) -> float | None:
        """Minutes; None if no window is right."""
        return median(self.delays) if self.delays else None

    @property
    def longest_delay(self) -> float | None:
        """Minutes; None if no window is right."""
        return self.delays[-1] if self.delays else None


def judge(truth: Mapping[Key, Result], emitted: Iterable[Emitted], steps: Sequence[Step]) -> Verdict:
    """Hold results against the truth.

    Args:
        truth: of the query.
        emitted: what came out, in any order.
        steps: of the workload.
    """
    came, extra = _matched(truth, emitted)
    right, wrong, doubled, lost = 0, 0, 0, 0
    delays, marked_delays = [], []
    for key, results in came.items():
        expected = truth[key]
        others = [each for each in results if each.key != key or each.value != expected.value]
        differs = bool(others)
        until = steps[min(each.step for each in results)].until
        if differs and all(each.marked for each in others):
            marked_delays.append((until - key.end) / MINUTE)
            continue
        twice = max(Counter(each.key for each in results).values()) > 1
        wrong += differs
        doubled += twice
        pieces = {each.key: each.value[0] for each in results}
        lost += max(0, expected.value[0] - sum(pieces.values()))
        if not differs:
            delays.append((until - expected.complete) / MINUTE)
            right += not twice
    newest: dict[tuple[str, int], int] = {}
    for key in came:
        newest[key.tenant, key.entity] = max(newest.get((key.tenant, key.entity), 0), key.end)
    dropped = [key for key in truth if key not in came and key.end < newest.get((key.tenant, key.entity), 0)]
    lost += sum(truth[key].value[0] for key in dropped)
    return Verdict(
        windows=len(truth),
        right=right,
        wrong=wrong,
        never=len(truth) - len(came),
        dropped=len(dropped),
        doubled=doubled,
        extra=extra,
        lost=lost,
        delays=tuple(sorted(delays)),
        marked=len(marked_delays),
        marked_delays=tuple(sorted(marked_delays)),
    )


def _matched(truth: Mapping[Key, Result], emitted: Iterable[Emitted]) -> tuple[dict[Key, list[Emitted]], int]:
    """Group results by their window of the truth: an equal one, or the session in which they begin."""
    sessions: dict[tuple[str, int], list[Key]] = defaultdict(list)
    for key in truth:
        sessions[key.tenant, key.entity].append(key)
    came: dict[Key, list[Emitted]] = defaultdict(list)
    extra = 0
    for each in emitted:
        key = each.key
        if key in truth:
            came[key].append(each)
            continue
        within = [own for own in sessions[key.tenant, key.entity] if own.begin <= key.begin and key.end <= own.end]
        if len(within) == 1:
            came[within[0]].append(each)
        else:
            extra += 1
    return came, extra
