"""Counting and finding open substreams by columns equals a look at each one by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.core.layouts import small_pages
from tests.model.generate import generate
from tests.model.lines import JOB, Driver
from tracker.contract.refusal import Refused
from tracker.contract.status import SOLE_OWNER, OpenSubstream, Wanted
from tracker.core import SubstreamStatus, Tracker, surveys
from tracker.core.surveys import Surveyor


def _states(seed: int) -> Iterator[Tracker]:
    """Yield a tracker after every fourth command of a generated sequence."""
    tracker = Tracker("core")
    driver = Driver(tracker)
    for number, line in enumerate(generate(seed)):
        driver.run(line)
        if JOB in tracker.jobs() and not number % 4:
            yield tracker


def _open(tracker: Tracker, only_stalled: bool = False) -> list[SubstreamStatus]:
    taken: list[SubstreamStatus] = []
    after: int | None = -1
    while after is not None:
        page, after = tracker.view(JOB).substreams(only_stalled=only_stalled, after=after)
        taken += page
    return taken


def _waits_for(tracker: Tracker, one: SubstreamStatus) -> tuple[set[str], dict[str, tuple[int, int]], bool, bool]:
    """Return the fronts, the segments with sent and received, whether for a commit, whether for earlier ones."""
    fronts = set(one.waiting_for)
    if not tracker.view(JOB).status().fronts and not one.closed:
        fronts = {SOLE_OWNER}
    unbalanced = {
        each.segment: (each.sent, each.received)
        for each in one.segments
        if not each.ended and (each.xor or each.sent != each.received)
    }
    staged = bool(tracker.view(JOB).explained(one.scope, one.name).staged or one.held_by)
    return fronts, unbalanced, staged, not (fronts or unbalanced or staged)


def _all_found(tracker: Tracker, wanted: Wanted, limit: int = 3) -> list[OpenSubstream]:
    taken: list[OpenSubstream] = []
    after = -1
    while True:
        found = tracker.view(JOB).search(wanted, limit, after)
        taken += found.substreams
        if found.following is None:
            return taken
        after = found.following


def test_a_survey_counts_what_each_open_substream_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()

    def compare(tracker: Tracker) -> None:
        surveyor = Surveyor()
        while (survey := tracker.view(JOB).survey(surveyor)) is None:
            pass
        substreams = _open(tracker)
        waits = [_waits_for(tracker, one) for one in substreams]
        assert survey.looked == len(substreams) == tracker.view(JOB).counts().open_substreams
        assert survey.fronts == Counter(front for fronts, *_ in waits for front in fronts)
        assert survey.all_fronts == sum(bool(fronts) for fronts, *_ in waits)
        assert survey.segments == Counter(segment for _, unbalanced, *_ in waits for segment in unbalanced)
        flights: Counter[str] = Counter()
        for one in substreams:
            flights.update({each.segment: max(0, each.sent - each.received) for each in one.segments})
        assert survey.in_flight == {name: flights[name] for name in survey.in_flight}
        assert sum(survey.in_flight.values()) == tracker.view(JOB).status().in_flight
        assert survey.staged == sum(staged for _, _, staged, _ in waits)
        assert survey.ordered == sum(ordered for *_, ordered in waits)
        assert survey.stalled == len(_open(tracker, only_stalled=True))
        stuck = [
            one for one, (fronts, unbalanced, *_) in zip(substreams, waits, strict=True) if unbalanced and not fronts
        ]
        oldest = sorted(stuck, key=lambda one: one.changed)[:10]
        assert [(one.scope, one.name) for one in survey.oldest] == [(one.scope, one.name) for one in oldest]
        seen.update(survey.fronts, front=survey.all_fronts, segment=len(survey.segments), staged=survey.staged)
        seen.update(ordered=survey.ordered, stalled=survey.stalled, stuck=len(stuck))

    monkeypatch.setattr(surveys, "_PAGES", 2)
    for seed in range(5):
        with small_pages() if seed % 2 else nullcontext():
            for tracker in _states(seed):
                compare(tracker)
    assert min(seen[each] for each in ("front", SOLE_OWNER, "segment", "staged", "ordered", "stalled", "stuck")) > 0


def test_a_search_finds_the_open_substreams_that_wait_for_what_is_wanted() -> None:
    found = 0
    for seed in range(24, 28):
        for tracker in _states(seed):
            waits = {(one.scope, one.name): _waits_for(tracker, one) for one in _open(tracker)}
            stalled = {(one.scope, one.name) for one in _open(tracker, only_stalled=True)}
            status = tracker.view(JOB).status()
            for front in [SOLE_OWNER, *(each.front for each in status.fronts)]:
                wanted = _all_found(tracker, Wanted(front=front))
                assert [(one.scope, one.name) for one in wanted] == [
                    at for at, each in waits.items() if front in each[0]
                ]
                found += len(wanted)
            for segment in status.spec.segments:
                wanted = _all_found(tracker, Wanted(segment=segment))
                assert [(one.scope, one.name) for one in wanted] == [
                    at for at, each in waits.items() if segment in each[1]
                ]
                assert all(
                    (each.sent, each.received) == waits[one.scope, one.name][1][each.segment]
                    for one in wanted
                    for each in one.unbalanced
                )
            staged, ordered = _all_found(tracker, Wanted(staged=True)), _all_found(tracker, Wanted(ordered=True))
            assert {(one.scope, one.name) for one in staged} == {at for at, each in waits.items() if each[2]}
            assert {(one.scope, one.name) for one in ordered} == {at for at, each in waits.items() if each[3]}
            assert {(one.scope, one.name) for one in _all_found(tracker, Wanted(stalled=True))} == stalled
            everything = _all_found(tracker, Wanted())
            assert [(one.scope, one.name) for one in everything] == list(waits)
            assert all(one.in_flight == max(0, one.in_flight) for one in everything)
    assert found


def test_each_word_is_sought_in_scope_and_name_without_regard_to_case() -> None:
    for tracker in _states(3):
        for one in _open(tracker):
            text = f"{one.name[1:].upper()} {one.scope[:2].lower()}"
            assert (one.scope, one.name) in [(each.scope, each.name) for each in _all_found(tracker, Wanted(text=text))]
            assert not _all_found(tracker, Wanted(text=f"{text} nowhere"))


def test_a_job_that_is_not_there_is_refused() -> None:
    tracker = Tracker("core")
    with pytest.raises(Refused, match="UNKNOWN_JOB"):
        tracker.view("nowhere").search(Wanted())
    with pytest.raises(Refused, match="UNKNOWN_JOB"):
        tracker.view("nowhere").survey(Surveyor())
