"""The tracker's time never goes back and never stands, whatever the machine's clock does."""

from __future__ import annotations

from random import Random

import pytest

from tracker.server.sequencer import Clock

S = 10**9
DAY = 24 * 3600 * S


class Machine:
    """A machine's clocks: one that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000 * S
        self.elapsed = 0

    def passes(self, ns: int) -> None:
        self.wall += ns
        self.elapsed += ns

    def clock(self, last: int = 0) -> Clock:
        return Clock(last, lambda: self.wall, lambda: self.elapsed)


@pytest.mark.parametrize("seed", range(20))
def test_time_goes_on_by_at_least_what_elapses_and_never_back(seed: int) -> None:
    random = Random(seed)
    machine = Machine()
    clock = machine.clock()
    last, at = clock.now(), machine.elapsed
    for _ in range(300):
        machine.passes(random.choice([0, 1, S // 20, S, 90 * S]))
        if random.random() < 0.1:
            machine.wall += random.choice([-400 * DAY, -S, -1, 1, S, 30 * DAY])
        if random.random() < 0.05:  # a restart: what was elapsed is forgotten, and the machine may have been off
            machine.wall += random.choice([0, S, DAY])
            clock = machine.clock(last)
            at = machine.elapsed
        now = clock.now()
        assert now >= last + machine.elapsed - at
        last, at = now, machine.elapsed


def test_a_jump_that_does_not_last_moves_nothing() -> None:
    machine = Machine()
    clock = machine.clock()
    start = clock.now()
    machine.wall += 30 * DAY
    for _ in range(8):
        machine.passes(S // 2)
        assert clock.now() - start == machine.elapsed
    machine.wall -= 30 * DAY
    machine.passes(S)
    assert clock.now() - start == 5 * S


def test_a_jump_that_lasts_is_believed_and_time_goes_on_from_there() -> None:
    machine = Machine()
    clock = machine.clock()
    start = clock.now()
    machine.wall += 30 * DAY
    for _ in range(62):
        machine.passes(S)
        clock.now()
    assert clock.now() == machine.wall
    machine.wall -= 30 * DAY
    machine.passes(5 * S)
    assert clock.now() - start == 30 * DAY + 67 * S
    restarted = machine.clock(clock.now())
    machine.passes(5 * S)
    assert restarted.now() - start == 30 * DAY + 72 * S


def test_a_clock_that_runs_a_little_faster_is_followed() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(1000):
        machine.passes(S)
        machine.wall += S // 1000
        assert clock.now() == machine.wall
