"""Count the messages of each protocol: the closed formulas of docs/design/papers.md, and what is linear in what."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import agent, punctuations, reports
from experiments.dataflow import BETWEEN_ELEMENTS, SECOND, Kind, Run, Shape, simulate
from experiments.reports import Phases

SHAPES = [Shape(size=size, machines=machines, elements=300) for size in (2, 9) for machines in (1, 4)]
LOOP = Shape(Kind.LOOP, 9, 4, elements=300)


@pytest.fixture(params=[*SHAPES, LOOP], ids=str)
def run(request: pytest.FixtureRequest) -> Run:
    return simulate(request.param)


def test_each_action_takes_two_messages_for_each_edge_that_an_element_goes(run: Run) -> None:
    shape = run.shape
    edges = int(run.travelled.sum())
    if shape.kind is Kind.LINE:
        assert edges == shape.size * shape.elements
    promises = shape.machines * shape.substreams
    assert len(reports.each_action(run)) == reports.count_each_action(run) == 2 * edges + promises


def test_each_step_takes_one_message_for_each_vertex_and_one_to_enter(run: Run) -> None:
    shape = run.shape
    handled = int(run.travelled.sum())
    promises = shape.machines * shape.substreams
    assert len(reports.each_step(run)) == reports.count_each_step(run) == handled + shape.elements + promises


@pytest.mark.parametrize("interval", [50.0, 150.0, SECOND])
def test_a_machine_sends_no_more_than_one_message_an_interval(run: Run, interval: float) -> None:
    messages = reports.each_interval(run, interval)
    # A machine whose intervals begin in the middle of the run has one more of them.
    assert len(messages) <= run.shape.machines * (int(run.over.max() // interval) + 2)
    assert len(set(zip(messages.machine.tolist(), messages.at.tolist(), strict=True))) == len(messages)


@pytest.mark.parametrize(("size", "machines", "per_substream"), [(3, 15, 10), (6, 5, 10), (6, 15, 1), (2, 20, 100)])
def test_short_intervals_save_what_elements_come_together(size: int, machines: int, per_substream: int) -> None:
    """If elements are quick, a machine is silent in an interval if none comes by, and none closes a substream."""
    interval = 150.0
    run = simulate(Shape(size=size, machines=machines, per_substream=per_substream, elements=10_000))
    comes_by = 1 - (1 - 1 / machines) ** size
    speaks = 1 / per_substream + (1 - 1 / per_substream) * comes_by
    expected = machines * run.over.max() / interval * (1 - np.exp(-interval / BETWEEN_ELEMENTS * speaks))
    assert len(reports.each_interval(run, interval)) == pytest.approx(expected, rel=0.05)


def test_aggregation_says_the_same_in_fewer_words(run: Run) -> None:
    """Labels cancel out and counts add up for each substream and segment, however they are put into messages."""
    for messages in (reports.each_action(run), reports.each_step(run), reports.each_interval(run, 150)):
        xor = np.zeros(run.shape.substreams, np.uint64)
        np.bitwise_xor.at(xor, messages.substream, messages.xor)
        assert not xor.any()
        assert messages.sent.sum() == messages.received.sum() == run.travelled.sum()


@pytest.mark.parametrize("phases", Phases)
def test_batching_sends_one_message_for_each_machine_and_interval(phases: Phases) -> None:
    """Linear in machines; whatever the graph, and however many substreams there are."""
    for size in (10, 30):
        for per_substream in (1, 10):
            for machines in (5, 10, 20):
                run = simulate(Shape(size=size, machines=machines, per_substream=per_substream, elements=1_000))
                seconds = int(run.over.max() // SECOND) + 1
                messages = len(reports.each_interval(run, SECOND, phases))
                # Out of step, a machine's intervals may begin in the middle of the run, and end after it.
                out_of_step = 0 if phases is Phases.IN_STEP else machines
                assert machines * seconds <= messages <= machines * seconds + out_of_step


def test_entries_and_bytes_of_batching_are_linear_in_machines_times_substreams() -> None:
    """An entry for each machine that saw something of a substream in an interval; few substreams see two intervals."""
    each = {}
    for machines in (5, 10, 20):
        for per_substream in (5, 10):
            shape = Shape(machines=machines, per_substream=per_substream, elements=1_000)
            run = simulate(shape)
            followed = agent.follow(run, reports.each_interval(run, SECOND))
            each[machines, per_substream] = (
                followed.entries / (machines * shape.substreams),
                followed.bytes / (machines * shape.substreams),
            )
    entries, size = np.array(list(each.values())).T
    assert (entries > 0.95).all()
    assert (entries < 1.25).all()
    assert size.max() < 1.25 * size.min()


def test_punctuations_are_quadratic_in_machines() -> None:
    for size in (2, 9):
        for machines in (1, 4):
            channels = [(i, j) for _ in range(1, size) for i in range(machines) for j in range(machines)]
            channels += [(i, i) for i in range(machines)]  # from the sources to the first vertex
            between, within = punctuations.count(size, machines, substreams=7)
            assert between == 7 * sum(i != j for i, j in channels)
            assert within == 7 * sum(i == j for i, j in channels)


def test_punctuations_come_after_every_element_and_cannot_go_round_a_loop() -> None:
    shape = SHAPES[-1]
    punctuated = punctuations.follow(simulate(shape), most=10**6)  # raises if an element comes later
    assert len(punctuated.delay) == shape.substreams
    assert (punctuated.delay > 0).all()
    with pytest.raises(punctuations.NoProtocolError):
        punctuations.follow(simulate(LOOP), most=10**6)
