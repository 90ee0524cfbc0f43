"""In every experiment the tracker is right: each end once, complete, and not before the substream was over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from experiments import agent, relayed, reports
from experiments.agent import WrongEndError
from experiments.dataflow import SECOND, Kind, Run, Shape, simulate
from experiments.reports import Messages

WAYS: dict[str, Callable[[Run], Messages]] = {
    "each action": reports.each_action,
    "each step": reports.each_step,
    "each 15 ms": lambda run: reports.each_interval(run, 150),
    "each second": lambda run: reports.each_interval(run, 10_000),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("segments_apart", [False, True], ids=["one segment", "a segment for each edge"])
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("per_substream", [1, 7, 100])
def test_every_substream_ends_once_and_not_early(
    kind: Kind, segments_apart: bool, way: Callable[[Run], Messages], per_substream: int
) -> None:
    shape = Shape(kind, 6, 4, per_substream, elements=400, segments_apart=segments_apart)
    run = simulate(shape)
    followed = agent.follow(run, way(run))  # raises if an end is wrong
    assert followed.ends == shape.substreams * len(shape.segments())
    assert (followed.delay >= 1).all()  # a report and a notice have to travel, each half a hop at least


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_lost_element_is_never_taken_for_an_end(kind: Kind, way: Callable[[Run], Messages]) -> None:
    run = simulate(Shape(kind, 6, 4, elements=100))
    messages = way(run)
    received = messages.received.copy()
    received[np.flatnonzero(received)[-1]] -= 1  # its label is folded in all the same, so only the count betrays it
    with pytest.raises(WrongEndError, match="1 ends did not come"):
        agent.follow(run, replace(messages, received=received))


def test_a_source_that_promises_too_early_is_found_out() -> None:
    """The check itself: had the tracker announced ends early, it would have been seen."""
    shape = Shape(size=6, machines=1, elements=100)
    run = simulate(shape)
    messages = reports.each_step(run)
    promise = messages.promise.copy()
    promise[20] = shape.substreams - 1  # before most of its elements
    with pytest.raises(WrongEndError):
        agent.follow(run, replace(messages, promise=promise))


def test_the_start_of_a_run_is_followed_as_if_it_were_all() -> None:
    run = simulate(Shape(size=6, machines=4, elements=400))
    start = run.start(100)
    assert start.shape.elements == 100
    assert agent.follow(start, reports.each_step(start)).ends == 10
    np.testing.assert_array_equal(start.over, run.over[:10])


@pytest.mark.parametrize("segments_apart", [False, True], ids=["one segment", "a segment for each edge"])
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("per_substream", [1, 7])
def test_epochs_through_relays_end_every_substream_once_and_not_early(
    kind: Kind, segments_apart: bool, per_substream: int
) -> None:
    shape = Shape(kind, 6, 4, per_substream, elements=400, segments_apart=segments_apart)
    run = simulate(shape)
    followed, local = relayed.follow(run, SECOND)
    assert followed.ends == shape.substreams * len(shape.segments())
    epochs = int(run.over.max() // SECOND) + 1
    reports_of_workers = len(reports.each_worker(run, SECOND))
    assert local == reports_of_workers
    assert epochs < followed.messages <= reports_of_workers + epochs  # a commit for each epoch
    if kind is Kind.LINE:  # seven processes on a machine
        assert followed.messages < 0.7 * reports_of_workers
