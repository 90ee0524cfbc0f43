"""No end is false and none is missing, whatever fails, as long as those who report hold to the contract's rules.

Each seed is another dataflow: calls are lost, unanswered or arrive late and twice; tasks fail and are tried again;
drivers die before and after they commit and come back as another run; channels double and delay; deployments roll,
some hand over, some are drained; fronts come and go; the tracker is rebuilt from its dump. An oracle that knows where
every element is judges every event, and the core's invariants are checked after one command of four. That both can fail
is tested, too: each rule of those who report, broken, is found out.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest

from tests.core.faults import staged_is_miscounted
from tests.core.layouts import small_pages
from tests.simulation.dataflow import Dataflow
from tests.simulation.world import ALL_RULES, GRAPH, FoundOut, Kind
from tracker.contract.refusal import Refused
from tracker.contract.values import NO_END_TIME, Mode
from tracker.core import deployments
from tracker.core.cells import Cells
from tracker.core.closed import ClosedSet, Waiting
from tracker.core.expectations import Expectations
from tracker.core.fronts import Front
from tracker.core.sparsecells import SparseCells
from tracker.core.tombstones import Tombstones


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(10, 60, 10))]
)
def test_no_end_is_false_and_none_is_missing(first: int) -> None:
    _run(range(first, first + 10))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_no_end_is_false_and_none_is_missing_in_many(first: int) -> None:
    _run(range(first, first + 100))


def _run(seeds: range) -> None:
    """Play a run; two of three forget what has ended, every second one has pages of two rows, often recycled."""
    for seed in seeds:
        try:
            with small_pages() if seed % 2 else nullcontext():
                _watched(seed).run()
        except (FoundOut, Refused) as found:
            raise AssertionError(f"seed {seed}: {found}") from found


def _watched(seed: int) -> Dataflow:
    """Play a run after some of whose commands the core's invariants are checked."""
    dataflow = Dataflow(seed)
    dataflow.network.watching = Random(seed)
    return dataflow


def test_a_core_that_loses_count_is_found_out_by_its_invariants() -> None:
    """The oracle sees nothing of it."""
    with staged_is_miscounted(), pytest.raises(AssertionError, match="staged epochs count"):
        _run(range(100))


@pytest.mark.thorough
@pytest.mark.parametrize("rule", [rule.name for rule in fields(ALL_RULES)])
def test_a_broken_rule_is_found_out(rule: str) -> None:
    for seed in range(1000):  # most show within a few
        try:
            Dataflow(seed, replace(ALL_RULES, **{rule: False})).run()
        except (FoundOut, Refused):
            return
    pytest.fail(f"nobody noticed that {rule} was broken")


def _no_number_is_waited_for(self: Waiting, row: int, segment: int) -> bool:
    del self, row, segment
    return True


def _one_less(self: Expectations, id_: int, segment: int) -> int | None:
    numbers = self.on(id_, segment)
    return max(0, sum(numbers.values()) - 1) if numbers else None


def _frontiers_count(self: Waiting, front: Front, row: int) -> bool:
    end_time, scope = int(self._accounts.end_time[row]), int(self._accounts.scope[row])
    return end_time != NO_END_TIME and end_time <= front.time(self._accounts.scope_names[scope])


def _no_drain(self: ClosedSet, row: int, segment: int) -> bool:
    del self, row, segment
    return False


FAULTS = [
    (Waiting, "complete", _no_number_is_waited_for),
    (Expectations, "total", _one_less),
    (Waiting, "closes_without_finish", _frontiers_count),
    (ClosedSet, "closed_by_drain", _no_drain),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("part", "name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_tracker_that_is_wrong_about_numbers_is_found_out(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, fault: object
) -> None:
    monkeypatch.setattr(part, name, fault)
    for seed in range(100):
        try:
            Dataflow(seed).run()
        except (FoundOut, Refused):
            return
    pytest.fail(f"nobody noticed {fault}")


def test_a_tracker_wrong_about_a_fronts_segments_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told that a source feeds what lies downstream, so what lies between does not wait for it."""
    monkeypatch.setattr(Dataflow, "fed_as_told", lambda self, front: "a" if front == "f0" else "b")
    for seed in range(100):
        try:
            Dataflow(seed).run()
        except (FoundOut, Refused):
            return
    pytest.fail("nobody noticed that a front feeds another segment")


def test_a_tracker_that_takes_reports_for_through_too_early_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for cells in (Cells, SparseCells):
        monkeypatch.setattr(cells, "owing", lambda _, rows: np.zeros(len(rows), np.bool_))
    with pytest.raises(AssertionError, match="is through, but"):
        _run(range(100))


# All but a-b and r-r, which change no upstream: a reaches b through r as well, and r is upstream of itself.
EDGES = [("a", "r"), ("r", "b"), ("b", "st"), ("st", "c"), ("st", "d")]


@pytest.mark.parametrize("edge", EDGES, ids="-".join)
def test_a_tracker_that_does_not_know_an_edge_is_found_out(edge: tuple[str, str]) -> None:
    without = {name: tuple(fed for fed in feeds if (name, fed) != edge) for name, feeds in GRAPH.items()}
    for seed in range(100):
        try:
            Dataflow(seed, kinds=[Kind(Mode.STAGED)], told=without).run()
        except FoundOut:
            return
    pytest.fail(f"nobody noticed that the tracker knows nothing of {edge}")


def test_a_tracker_that_forgets_what_has_ended_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tombstones a replay of what had ended begins a second life."""
    monkeypatch.setattr(Tombstones, "add", lambda *_: None)
    for seed in range(100):
        try:
            Dataflow(seed).run()
        except FoundOut:
            return
    pytest.fail("nobody noticed that nothing was remembered")


@pytest.mark.thorough
def test_a_tracker_that_mixes_up_recycled_rows_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparseCells, "clear", lambda *_: None)
    for seed in range(100):
        try:
            with small_pages():
                Dataflow(seed).run()
        except (FoundOut, Refused):
            return
    pytest.fail("nobody noticed that rows began with the accumulators of others")


def test_a_tracker_that_hands_over_what_is_in_flight_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "unbalanced", lambda job: np.zeros(len(job.graph), np.bool_))
    for seed in range(100):
        try:
            Dataflow(seed).run()
        except (FoundOut, Refused):
            return
    pytest.fail("nobody noticed that elements were in flight")
