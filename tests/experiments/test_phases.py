"""Machines that are out of step: the tracker stays right, and what is published holds for them and not only in step."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import agent, punctuations, reports
from experiments.dataflow import SECOND, Kind, Shape, simulate
from experiments.reports import Phases


@pytest.mark.parametrize("phases", Phases)
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("interval", [150.0, SECOND])
def test_every_substream_ends_once_and_not_early(kind: Kind, phases: Phases, interval: float) -> None:
    run = simulate(Shape(kind, 6, 4, 7, elements=400))
    followed = agent.follow(run, reports.each_interval(run, interval, phases))  # raises if an end is wrong
    assert followed.ends == run.shape.substreams


@pytest.mark.parametrize("phases", Phases)
def test_each_machine_keeps_its_own_moments_an_interval_apart(phases: Phases) -> None:
    run = simulate(Shape(size=6, machines=5, elements=1_000))
    messages = reports.each_interval(run, SECOND, phases)
    offsets = [np.unique(np.round(messages.at[messages.machine == machine] % SECOND, 6)) for machine in range(5)]
    assert all(len(own) == 1 for own in offsets)
    assert len({float(own[0]) for own in offsets}) == (1 if phases is Phases.IN_STEP else 5)
    # Nothing is reported before it has happened, nor later than an interval after.
    received = np.zeros(run.shape.substreams)
    np.maximum.at(received, messages.substream, np.repeat(messages.at, np.diff(messages.begin)))
    last = run.out[:, -1]
    assert (received >= last).all()
    assert (received <= last + SECOND + 1e-6).all()


def test_machines_out_of_step_make_the_last_ones_reader_wait_longer() -> None:
    run = simulate(Shape(size=6, machines=10, elements=4_000))
    delay = {
        phases: agent.follow(run, reports.each_interval(run, SECOND, phases)).delay.mean()
        for phases in (Phases.IN_STEP, Phases.SPREAD)
    }
    assert delay[Phases.SPREAD] > 1.5 * delay[Phases.IN_STEP]  # the last of ten: 0.95 of an interval instead of 0.5


def test_gathered_punctuations_are_one_message_a_pair_and_interval() -> None:
    shape = Shape(size=6, machines=4, elements=2_000)
    run = simulate(shape)
    phase = Phases.RANDOM.of(shape.machines, SECOND, shape.seed)
    at_once = punctuations.follow(run, most=10**6)
    gathered = punctuations.follow(run, most=10**6, gathering=punctuations.Gathering(SECOND, phase))
    intervals = int(run.over.max() // SECOND) + shape.size + 1
    assert gathered.messages <= shape.machines * (shape.machines - 1) * intervals
    assert gathered.messages < at_once.messages / 5
    # Every vertex but the last passes it on at its machine's next moment.
    assert gathered.delay.mean() > at_once.delay.mean() + (shape.size - 2) * SECOND / 2
