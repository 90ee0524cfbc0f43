"""The check can fail: an announcement that is broken on purpose is found, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tracker.load.board import Board
from tracker.load.plan import Plan
from tracker.load.scenario import read
from tracker.load.verdict import judge, needed


@pytest.fixture
def plan() -> Plan:
    said = {"rate": 40, "duration": 3, "producers": 2, "processes": 1, "open": 40, "lifetime": 1, "segments": 2}
    return Plan(read(said))


@pytest.fixture
def board(plan: Plan, tmp_path: Path) -> Board:
    """What is written down when everything goes well: each report answered at once, each end seen right after."""
    board = Board(tmp_path, plan, create=True)
    board.start = 1_000.0
    board.sent[:] = board.start + plan.due
    board.answered[:] = board.sent + 0.001
    for source in range(plan.producers):
        expected = plan.expected(source)
        for number in range(plan.scenario.segments):
            places = np.flatnonzero(plan.exists)
            board.ended[source, places, number] = needed(plan, source, expected, number, board.answered)[places]
            board.elements[source, places, number] = expected.elements[places]
            board.times[source, places, number] = 1
    return board


def test_what_is_right_is_found_right(plan: Plan, board: Board) -> None:
    verdict = judge(plan, board)
    assert verdict.right
    assert verdict.checked == plan.ends == board.times.sum()


def _lost(board: Board, place: tuple[int, int, int]) -> None:
    board.times[place] = board.ended[place] = board.elements[place] = 0


def _twice(board: Board, place: tuple[int, int, int]) -> None:
    board.times[place] += 1


def _too_few(board: Board, place: tuple[int, int, int]) -> None:
    board.elements[place] -= 10


def _early(board: Board, place: tuple[int, int, int]) -> None:
    board.ended[place] -= 0.002


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (_lost, "1 did not end, though all of it was reported and answered: tenant-3/1-3-1 on segment-02"),
        (_twice, "1 ended more than once: tenant-3/1-3-1 on segment-02"),
        (_too_few, "1 ended with a wrong number of elements: tenant-3/1-3-1 on segment-02 "),
        (_early, "1 ended before all of it was reported: tenant-3/1-3-1 on segment-02"),
    ],
)
def test_one_wrong_announcement_is_found(
    plan: Plan, board: Board, broken: Callable[[Board, tuple[int, int, int]], None], told: str
) -> None:
    broken(board, (1, 3 * plan.generations + 1, 1))
    verdict = judge(plan, board)
    assert not verdict.right
    [fault] = verdict.faults
    assert fault.startswith(told)


def test_what_the_load_did_not_finish_is_not_the_trackers_fault(plan: Plan, board: Board) -> None:
    """A report without an answer makes the run incomplete; the ends that hang on it may or may not have come."""
    board.answered[1, -1] = 0
    for place in np.argwhere(board.ended >= board.sent[1, -1]):
        _lost(board, tuple(place))
    verdict = judge(plan, board)
    assert verdict.faults == ()
    assert verdict.unanswered == 1
    assert not verdict.right


def test_an_end_whose_report_was_never_sent_came_too_early(plan: Plan, board: Board) -> None:
    tick = int(plan.close_ticks[0])
    board.sent[0, tick] = board.answered[0, tick] = 0
    assert any("ended before all of it was reported: tenant-0/0-0-0" in fault for fault in judge(plan, board).faults)


def test_many_faults_are_counted_and_a_few_shown(plan: Plan, board: Board) -> None:
    board.times[0, :, 0] *= 2
    [fault] = judge(plan, board).faults
    assert fault.startswith(f"{plan.exists.sum():,} ended more than once: tenant-0/0-0-0 on segment-01, ")
    assert fault.endswith(f", and {plan.exists.sum() - 3:,} more")


def test_what_others_wrote_down_counts(plan: Plan, board: Board) -> None:
    board.fault("something\nstrange")
    assert judge(plan, board).faults == ("something strange",)
