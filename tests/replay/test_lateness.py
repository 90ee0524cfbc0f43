"""Delays that are learnt: so many windows are kept as were promised, however lateness changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest

from tracker.lateness import Lateness

HOUR = 3600
CEILING = 24 * HOUR
Law = Callable[[random.Random, float, int], float]  #: how late a row is, at a part of the history, in a scope

LAWS: dict[str, Law] = {
    "the same at all times": lambda draw, part, scope: draw.expovariate(1 / 300),
    "with a long tail": lambda draw, part, scope: min(60 * draw.paretovariate(1.2), CEILING - HOUR),
    "later and later": lambda draw, part, scope: draw.expovariate(1 / (300 + 2700 * part)),
    "ten times as late from one day on": lambda draw, part, scope: draw.expovariate(1 / (300 if part < 0.5 else 3000)),
    "sooner from one day on": lambda draw, part, scope: draw.expovariate(1 / (3000 if part < 0.5 else 300)),
    "good and bad weeks in turns": lambda draw, part, scope: draw.expovariate(1 / (300 if int(part * 9) % 2 else 3000)),
    "one tenant worse than others": lambda draw, part, scope: draw.expovariate(1 / (300 if scope else 9000)),
    "never late": lambda draw, part, scope: 0.0,
}


def batches(law: Law, windows: int, scopes: int, seed: int) -> Iterator[list[tuple[str, int, int]]]:
    """Yield three rows of each hour of each scope, in batches of five minutes, as `Lateness.batch` takes them."""
    draw = random.Random(seed)
    rows = []
    for scope in range(scopes):
        for hour in range(windows // scopes):
            times = [hour * HOUR + draw.randrange(HOUR) for _ in range(3)]
            rows += [(time + law(draw, hour * scopes / windows, scope), time, str(scope)) for time in times]
    for _, batch in groupby(sorted(rows), key=lambda row: row[0] // 300):
        newest: dict[tuple[str, int], int] = {}
        for _, time, scope_name in batch:
            window = scope_name, (time // HOUR + 1) * HOUR
            newest[window] = max(time, newest.get(window, time))
        yield [(*window, time) for window, time in newest.items()]


def broken(lateness: Lateness, law: Law, windows: int, scopes: int, seed: int) -> set[tuple[str, int]]:
    """Return the windows of which a row came after they were promised to be over."""
    promised: dict[str, int] = {}
    found = set()
    for batch in batches(law, windows, scopes, seed):
        found |= {(scope, end) for scope, end, _ in batch if end <= promised.get(scope, end - 1)}
        promised |= lateness.batch(batch)
    return found


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("target", "scopes"), [(0.9, 1), (0.95, 10), (0.99, 1)])
def test_no_fewer_windows_are_kept_than_were_promised(law: str, target: float, scopes: int) -> None:
    for seed in range(2):
        lateness = Lateness(target, CEILING)
        found = broken(lateness, LAWS[law], 2000, scopes, seed)
        assert len(found) <= (1 - target) * 2000
        assert {each.scope: each.broken for each in lateness.kept()} == {
            str(scope): sum(name == str(scope) for name, _ in found) for scope in range(scopes)
        }


def test_a_delay_is_as_short_as_the_target_allows() -> None:
    """Of exponential lateness of 5 minutes, three rows an hour: 99 % of windows need less than half an hour."""
    lateness = Lateness(0.99, CEILING)
    broken(lateness, LAWS["the same at all times"], 3000, 1, seed=1)
    assert 60 < lateness.delay < 1800


def test_a_scope_is_not_delayed_by_one_that_is_late() -> None:
    lateness = Lateness(0.9, CEILING)
    broken(lateness, LAWS["one tenant worse than others"], 3000, 3, seed=1)
    bad, good, best = (each.delay for each in lateness.kept())
    assert max(good, best) < 1200 < 3600 < bad


def test_a_new_scope_begins_with_what_others_have_taught() -> None:
    lateness = Lateness(0.9, CEILING)
    broken(lateness, LAWS["never late"], 1000, 2, seed=1)
    assert lateness.batch([("new", 10 * HOUR, 9 * HOUR)]) == {"new": 9 * HOUR}
    assert Lateness(0.9, CEILING).batch([("new", 10 * HOUR, 9 * HOUR)]) == {"new": 9 * HOUR - CEILING}


def test_floor_and_ceiling_bound_a_delay() -> None:
    kept, late = Lateness(0.9, CEILING, floor=600), Lateness(0.9, 1200)
    broken(kept, LAWS["never late"], 500, 1, seed=1)
    assert kept.delay == 600
    assert len(broken(late, LAWS["later and later"], 500, 1, seed=1)) > 50  # no delay up to 20 minutes is enough
    assert late.delay == 1200
    assert late.share < 0.9


def test_it_goes_on_from_its_state() -> None:
    lateness, law = Lateness(0.9, CEILING), LAWS["later and later"]
    for batch in batches(law, 600, 3, seed=1):
        copy = Lateness(0.9, CEILING, state=json.loads(json.dumps(lateness.state)))
        assert copy.batch(batch) == lateness.batch(batch)
        assert copy.kept() == lateness.kept()


def test_only_scopes_that_had_rows_are_written_anew() -> None:
    lateness = Lateness(0.9, CEILING)
    broken(lateness, LAWS["later and later"], 300, 3, seed=1)
    before = lateness.state
    lateness.batch([("1", 1000 * HOUR, 999 * HOUR)])
    changed = [new for new, old in zip(lateness.state, before, strict=True) if new is not old]
    assert [json.loads(each)[0] for each in changed] == ["1"]


def test_weights_stay_numbers_for_years() -> None:
    lateness = Lateness(0.5, 10)
    for end in range(10, 100_000, 10):
        lateness.batch([("", end, end - 1)])
    assert lateness.delay == 0
    assert lateness.share == 1


@pytest.mark.parametrize("target", [0.0, 1.0, -1.0, 99.9])
def test_a_target_that_no_delay_can_keep_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match=r"above 0 % and below 100 %"):
        Lateness(target, CEILING)


def test_a_floor_above_the_ceiling_is_refused() -> None:
    with pytest.raises(ValueError, match="above the ceiling"):
        Lateness(0.9, 10, floor=11)
