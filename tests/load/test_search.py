"""The search for the rate that is sustained: where it goes, when it ends, and what it believes."""

from __future__ import annotations

import pytest

from tracker.load.results import Generator, Latency, Result, Series, Verdict
from tracker.load.run import Search, find_rate


def outcome(
    p99: float,
    *,
    floor: float = 1.0,
    behind: bool = False,
    kept_up: bool = True,
    faults: tuple[str, ...] = (),
    unanswered: int = 0,
) -> Result:
    """Return the result of a run."""
    latency = Latency(1_000, p99 / 2, p99, p99, p99, p99)
    return Result(
        planned=1_000,
        answered=1_000 - unanswered,
        rate=100.0,
        backlog=(1.0, 500.0 if behind else 1.0),
        backlog_grew=behind,
        reports=latency,
        round_trips=latency,
        ends=latency,
        floor=Latency(200, floor / 2, floor, floor, floor, floor),
        generator=Generator(latency, 0.5, kept_up, 0, 0, 0, 0, 0),
        server=0.5,
        server_waited=0.0,
        others=0.0,
        series=Series((), (), (), (), (), (), ()),
        samples=(),
        verdict=Verdict(faults, unanswered, 1_000),
    )


def search(first: float, capacity: float, failing: Result) -> Search:
    """Search against a tracker of which the capacity is known."""
    return find_rate(lambda rate: outcome(5.0) if rate <= capacity else failing, first, 50.0, lambda step: None)


@pytest.mark.parametrize("first", [1, 100, 700, 5_000])
@pytest.mark.parametrize(
    "failing",
    [outcome(51.0), outcome(5.0, behind=True), outcome(5.0, unanswered=1), outcome(float("nan"), behind=True)],
)
def test_it_comes_within_a_tenth_from_wherever_it_begins(first: float, failing: Result) -> None:
    found = search(first, 700, failing)
    assert 700 / 1.1 <= found.rate <= 700 or first == 1
    assert not found.by_generator
    assert len(found.steps) <= 20


def test_it_says_why_each_rate_was_not_sustained() -> None:
    found = search(500, 700, outcome(51.0))
    assert next(step.failed for step in found.steps if not step.sustained) == "99 % of the reports took up to 51.0 ms"


def test_what_the_generator_could_not_do_is_not_the_trackers_limit() -> None:
    assert search(500, 700, outcome(51.0, kept_up=False)).by_generator


def test_a_rate_at_which_answers_were_only_slow_is_tried_once_more() -> None:
    results = iter([outcome(51.0), outcome(5.0), outcome(51.0), outcome(51.0), *[outcome(5.0, behind=True)] * 20])
    found = find_rate(lambda rate: next(results), 100, 50.0, lambda step: None)
    assert [step.rate for step in found.steps][:5] == [100, 100, 150, 150, 122.5]
    assert found.rate == 100


def test_a_machine_too_busy_for_any_call_is_not_searched_further() -> None:
    found = search(500, 0, outcome(500.0, floor=60.0))
    assert found.too_busy
    assert [step.rate for step in found.steps] == [500, 500, 333.3, 333.3]
    assert not search(500, 0, outcome(500.0)).too_busy


def test_something_wrong_ends_it() -> None:
    found = search(500, 700, outcome(5.0, faults=("1 ended more than once: a/b on segment-01",)))
    assert [step.rate for step in found.steps] == [500, 750]
    assert found.steps[-1].failed == "1 ended more than once: a/b on segment-01"
    assert found.rate == 500


def test_nothing_sustained_is_said_so() -> None:
    found = search(500, 0, outcome(51.0))
    assert found.rate == 0
    assert len(found.steps) == 20
