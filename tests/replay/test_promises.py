"""Figures of a promise are those of a simulation, row by row; the advice takes what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay import naive
from tests.replay.naive import Query, Row, Window
from tracker.replay.history import Columns, ReplayError
from tracker.replay.report import Figures, Options, Outcome, Replay

MS = 1000
HOUR = 3_600_000_000


def columns(rows: Sequence[Row], scoped: bool = True) -> Columns:
    """Return rows as they are read."""
    names = sorted({scope for _, _, scope in rows})
    event, arrived = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    places = np.array([names.index(scope) for _, _, scope in rows], np.int64)
    return Columns(event, arrived, places if scoped else None, names, "at", "shop" if scoped else "")


def outcome(rows: Sequence[Row], promise: str, **options: str) -> Outcome:
    [found] = Replay.of(columns(rows), Options(promises=[promise], **options)).outcomes
    return found


def figures(found: Figures) -> tuple[object, ...]:
    return astuple(found)


@st.composite
def queries(draw: st.DrawFn) -> Query:
    """Draw small histories: rows whose times and arrivals are in any order, before 1970 as well."""
    unit = draw(st.sampled_from([500, 400_000]))
    time = st.integers(-20, 60).map(lambda number: number * unit)
    rows = draw(st.lists(st.tuples(time, time, st.sampled_from(["berlin", "lima", "rome"])), min_size=1, max_size=25))
    length = draw(st.integers(1, 12)) * unit
    slide = draw(st.sampled_from([length, *range(unit, length, unit)]))
    ahead = draw(st.none() | st.integers(0, 30).map(lambda number: number * unit))
    return Query(rows, length, slide, draw(st.integers(1, 9)) * unit, ahead)


def same(query: Query, promise: str, released: dict[Window, int], windows: set[Window], scoped: bool = True) -> None:
    """Compare a promise's figures, of all windows and of each scope, with those of the simulation."""
    options = Options(
        window=f"{query.length}us",
        slide=f"{query.slide}us",
        promises=[promise],
        trigger=f"{query.trigger}us",
        ahead="none" if query.ahead is None else f"{query.ahead}us",
    )
    [found] = Replay.of(columns(query.rows, scoped), options).outcomes
    assert figures(found.all) == query.judged(released, windows)
    expected = {scope: query.judged(released, {each for each in windows if each[0] == scope}) for scope, _ in windows}
    assert {scope: figures(each) for scope, each in found.scopes.items()} == (expected if scoped else {})


@settings(max_examples=75, deadline=None)
@given(queries(), st.integers(0, 20))
def test_each_promise_gives_the_figures_of_the_simulation(query: Query, delay: int) -> None:
    micros = delay * MS
    for promise, released in {
        f"watermark={delay}ms": naive.watermark(query, micros),
        f"frontier={delay}ms": naive.frontier(query, micros, per_scope=False),
        f"per-scope={delay}ms": naive.frontier(query, micros, per_scope=True),
        f"wait={delay}ms": naive.wait(query, micros),
        "counts": naive.counts(query),
    }.items():
        same(query, promise, released, query.all_windows)


def without_scopes(query: Query) -> Query:
    rows = [(time, arrived, "") for time, arrived, _ in query.rows]
    return Query(rows, query.length, query.slide, query.trigger, query.ahead)


@settings(max_examples=75, deadline=None)
@given(queries(), st.sampled_from(["50%", "90%", "99.9%", "100%"]), st.booleans())
def test_the_least_delay_is_chosen_on_one_half_judged_on_another(query: Query, share: str, scoped: bool) -> None:
    query = query if scoped else without_scopes(query)
    released, windows = naive.least(query, Fraction(share[:-1]) / 100, scoped)
    same(query, f"least={share}", released, windows, scoped)


@settings(max_examples=75, deadline=None)
@given(queries(), st.sampled_from(["30%", "50%", "60%"]), st.integers(1, 30), st.booleans())
def test_a_measured_delay_is_learnt_from_batch_to_batch(query: Query, share: str, ceiling: int, scoped: bool) -> None:
    query = query if scoped else without_scopes(query)
    released = naive.measured(query, float(share[:-1]) / 100, ceiling * MS)
    same(query, f"measured={share}/{ceiling}ms", released, query.all_windows, scoped)


def test_a_row_after_the_end_of_its_window_makes_that_wrong() -> None:
    hours = [(0.5, 0.5), (1.5, 1.5), (0.9, 1.9)]  # the last row arrives after one that is an hour ahead
    rows = [(int(time * HOUR), int(arrived * HOUR), "berlin") for time, arrived in hours]
    early, late = (outcome(rows, f"per-scope={delay}") for delay in ("10min", "40min"))
    assert (early.all.windows, early.all.wrong, early.all.late, early.all.never) == (2, 1, 1, 1)
    assert (late.all.wrong, late.all.late, late.all.never) == (0, 0, 2)
    assert sum(early.timeline) == 1
    assert early.timeline[0] == 1


def test_spark_releases_a_trigger_later_and_still_takes_that_batchs_rows() -> None:
    rows = [(10, HOUR, "a"), (HOUR + 10, HOUR + 30, "a"), (20, HOUR + 90_000_000, "a")]
    assert outcome(rows, "frontier=0s").all.wrong == 1
    assert outcome(rows, "watermark=0s").all.wrong == 0


def shops(*delays: tuple[float, float], hours: int = 60) -> list[Row]:
    """Return two rows an hour of each of two shops; of each hour the second arrives so many minutes late, by shop."""
    rows = []
    for hour in range(hours):
        for shop, delay in zip("ab", delays[hour % len(delays)], strict=True):
            rows += [(hour * HOUR, hour * HOUR, shop), (hour * HOUR + 9, int(hour * HOUR + delay * HOUR / 60), shop)]
    return rows


def advised(rows: Sequence[Row], *promises: str, **options: str) -> list[str]:
    return [each.name for each in Replay.of(columns(rows), Options(promises=promises, **options)).advice]


def test_the_soonest_promise_under_which_no_window_was_wrong_is_taken() -> None:
    rows = shops((70, 1))
    assert advised(rows, "per-scope=0s", "per-scope=2h", "per-scope=1h", "per-scope=5h") == ["per-scope=1h"]
    assert advised(rows, "per-scope=0s", "watermark=1d") == []  # that of Spark is no promise of a source


def test_who_can_count_is_advised_to_and_others_get_the_best_guess() -> None:
    found = Replay.of(columns(shops((70, 1))), Options(promises=["counts", "per-scope=1h", "wait=3h"]))
    assert [each.name for each in found.advice] == ["counts", "per-scope=1h"]
    assert "the source knows how many rows" in found.advice[0].needs
    assert found.advice[1].needs.endswith("which is a guess (here 0 of 120 windows were wrong)")


def test_a_share_of_windows_may_be_wrong_if_one_says_so() -> None:
    rows = shops(*[(1, 1)] * 29, (70, 1), *[(1, 1)] * 30)  # one of 120 windows
    assert advised(rows, "per-scope=0s", "per-scope=1h") == ["per-scope=1h"]
    assert advised(rows, "per-scope=0s", "per-scope=1h", wrong="1%") == ["per-scope=0s"]
    assert advised(rows, "per-scope=0s", "per-scope=1h", wrong="0.5%") == ["per-scope=1h"]


def test_a_promise_that_leaves_many_windows_open_is_not_taken() -> None:
    assert outcome(shops((1, 1)), "frontier=30h").all.never > 3
    assert advised(shops((1, 1)), "frontier=30h", "wait=40h") == ["wait=40h"]


def test_the_least_promises_line_has_the_delay_that_was_chosen() -> None:
    found = outcome(shops((130, 1)), "least=100%")  # after a row of the hour after the next one
    assert found.front == 'Frontier("1 hour 1 second", per_scope=True)'
    assert found.all.wrong == 0
    assert 50 < found.all.windows < 70
    assert "judged on the second half" in found.note


def test_a_measured_promises_line_has_its_target_and_ceiling() -> None:
    found = outcome(shops((30, 1)), "measured=90%/5h")
    assert found.front == 'Frontier.measured("90%", ceiling="5 hours")'
    assert found.all.windows == 120
    assert found.note == "at the end at most 0 seconds"


def test_a_row_of_a_fast_clock_moves_a_watermark_and_no_frontier() -> None:
    rows = [*shops((0, 1)), (1000 * HOUR, 10 * HOUR, "a")]
    assert outcome(rows, "watermark=10min").all.wrong > 50
    for promise, front in {
        "frontier=10min": 'Frontier("10 minutes")',
        "per-scope=10min": 'Frontier("10 minutes", per_scope=True)',
        "measured=90%/1h": 'Frontier.measured("90%", ceiling="1 hour")',
    }.items():
        assert (outcome(rows, promise).all.wrong, outcome(rows, promise).front) == (0, front)
    far = outcome(rows, "frontier=10min", ahead="none")
    assert (far.all.wrong > 50, far.front) == (True, 'Frontier("10 minutes", ahead=None)')
    assert outcome(rows, "per-scope=10min", ahead="1h").front.endswith(', per_scope=True, ahead="1 hour")')
    only_far = [(HOUR, 0, "a")]
    assert all(outcome(only_far, promise).all.never == 1 for promise in ("frontier=0s", "measured=90%"))


def test_rows_ahead_of_their_arrival_and_nulls_are_told() -> None:
    rows = [(3 * HOUR, HOUR, "a"), (HOUR, HOUR, "a")]
    found = columns(rows)
    result = Replay.of(Columns(found.event, found.arrived, None, [], "at", nulls=7), Options())
    assert (result.ahead, result.furthest_ahead) == (1, 2 * HOUR)
    assert any("1 rows are ahead of their arrival, by up to 2.0 h" in each for each in result.remarks)
    assert any("7 rows were left out" in each for each in result.remarks)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Options(promises=["watermarks=5min"]), "is no promise: there are watermark, frontier, per-scope, wait"),
        (Options(promises=["watermark"]), "'' is no length of time: write for example 30s"),
        (Options(promises=["wait=5 lightyears"]), "is no length of time"),
        (Options(promises=["wait=40000d"]), "is too long"),
        (Options(promises=["measured=100%"]), "'100%': no delay can promise all windows"),
        (Options(promises=["measured=99%/soon"]), "'soon' is no length of time"),
        (Options(promises=["measured=1"]), "'1' is no share of windows: write for example 99.9%"),
        (Options(promises=["measured=many%"]), "is no share of windows"),
        (Options(promises=["counts=7"]), "'counts=7' is no promise"),
        (Options(slide="1us", window="1min"), "rows are in too many windows to be held: give a longer slide"),
        (Options(window="0s"), "a length above zero"),
        (Options(window="1h", slide="2h"), "slides by no more than that"),
        (Options(trigger="0s"), "the trigger is above zero"),
        (Options(wrong="0.1"), "'0.1' is no share of windows"),
        (Options(wrong="much%"), "is no share of windows"),
        (Options(wrong="101%"), "is no share of windows"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_what_can(options: Options, reason: str) -> None:
    with pytest.raises(ReplayError, match=reason):
        Replay.of(columns([(0, 1, "a")]), options)


def test_a_promise_for_each_scope_is_refused_without_scopes() -> None:
    with pytest.raises(ReplayError, match="needs the column with the scopes: give it, or try frontier=1h"):
        Replay.of(columns([(0, 1, "a")], scoped=False), Options(promises=["per-scope=1h"]))


def test_a_history_without_rows_is_refused() -> None:
    with pytest.raises(ReplayError, match="no rows with both times"):
        Replay.of(columns([]), Options())
