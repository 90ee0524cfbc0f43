"""`Tracker.prepare`: what it refuses is refused, and what it prepares is carried out; preparing changes nothing.

A server prepares a command before it journals it. So that must find each refusal that would change nothing, refuse
nothing that would be taken, and let a command pass that settles what earlier runs left.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tests.model.generate import generate
from tests.model.lines import Driver
from tracker.contract.commands import CancelDrain, Command, Commit, DefineJob, DeleteJob, Drain, Recovered, Report, Tick
from tracker.contract.refusal import Refused
from tracker.core import Tracker
from tracker.core.tracker import HANDLERS
from tracker.journal.snapshots import encode


def state(tracker: Tracker) -> bytes:
    """Return the whole state but the time of the last command, which a refusal moves."""
    dump = tracker.dump()
    for job in dump["jobs"]:
        del job["now"]
    return b"".join(map(bytes, encode(dump)))


class Checked(Tracker):
    """A tracker that compares, at each command, the check's result with what becomes of the command."""

    found = taken = settled = 0

    def apply(self, command: Any, now: int) -> Any:
        before, prepared = state(self), None
        try:
            prepared = self.prepare(command)
            checked = None
        except Refused as error:
            checked = str(error)
        assert state(self) == before, f"the check of {command} changed something"
        refused, answer = None, None
        try:
            answer = super().apply(prepared or command, now)
        except Refused as error:
            refused = error
        if refused is None:
            assert checked is None, f"{command} was found to be refused, and was taken: {checked}"
            Checked.taken += 1
            return answer
        if checked is None:
            assert state(self) != before, f"{command} was not found to be refused: {refused}"
            Checked.settled += 1
        else:
            assert (checked, state(self)) == (str(refused), before)
            Checked.found += 1
        raise refused


def agree(seeds: range) -> None:
    for seed in seeds:
        driver = Driver(Checked("log"))
        for line in generate(seed):
            driver.run(line)


@pytest.mark.thorough
def test_the_check_is_right() -> None:
    agree(range(40))
    assert Checked.found > 100
    assert Checked.taken > 500


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_check_is_right_on_many() -> None:
    agree(range(1000, 3000))
    assert Checked.settled > 0


def test_every_command_is_handled_once() -> None:
    own = {DefineJob, DeleteJob, Drain, CancelDrain}  # the tracker's: they make, replace or end a job
    naming = {Report, Commit}  # they may name substreams for the first time
    timed = {Tick, Recovered}  # no caller's
    assert {*HANDLERS} | own | naming | timed == set(get_args(Command))
    assert not {*HANDLERS} & (own | naming | timed)
