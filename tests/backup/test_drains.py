"""A backup that was made while a job came to rest restores to a job that still waits for those who had not closed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tracker.contract.commands import CloseProducer, DefineJob, Drain, OpenProducer
from tracker.contract.refusal import Refused
from tracker.contract.values import DrainMode, DrainState, Mode
from tracker.server.replayable import ReplayableState, Started
from tracker.wire.codec import Method, read_command
from tracker.wire.gen import tracker_pb2 as wire


def restored(state: ReplayableState) -> ReplayableState:
    """Return the state that a restore makes of a state."""
    again = ReplayableState(state.dump())
    again.renew_logs()
    return again


@pytest.mark.parametrize("fronts", [[], ["f"]], ids=["without fronts", "with fronts"])
@pytest.mark.parametrize("mode", list(DrainMode))
@pytest.mark.parametrize("closed", [[], ["p"]], ids=["both open", "one closed"])
def test_a_restored_drain_is_over_only_when_its_reporters_have_come_back(
    fronts: Sequence[str], mode: DrainMode, closed: Sequence[str]
) -> None:
    state = ReplayableState()
    state.start(Started("log", "", 10**18), 1)
    spec = wire.JobSpec(job="job", deployment="d", segments=[wire.Segment(name="a")], fronts=fronts)
    define = read_command(Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec).SerializeToString())
    assert isinstance(define, DefineJob)
    state.apply(define, 2)
    for producer in ("p", "q"):
        state.apply(OpenProducer("job", producer, f"{producer}.1", Mode.STAGED), 3)
    state.apply(Drain("job", "d", "drain", mode=mode), 4)
    for producer in closed:
        state.apply(CloseProducer("job", producer, f"{producer}.1"), 5)
    again = restored(restored(state))  # as often as wanted
    assert again.tracker.drain_status("job").state is DrainState.DRAINING
    for producer in {"p", "q"}.difference(closed):
        with pytest.raises(Refused, match=r"another run|closed|fenced"):
            again.apply(CloseProducer("job", producer, f"{producer}.1"), 6)
        again.apply(OpenProducer("job", producer, f"{producer}.2", Mode.STAGED), 6)
        assert again.tracker.drain_status("job").state is DrainState.DRAINING
        again.apply(CloseProducer("job", producer, f"{producer}.2"), 7)
    waits_for_fronts = bool(fronts) and mode is DrainMode.FINISH
    over = DrainState.DRAINING if waits_for_fronts else DrainState.DRAINED
    assert again.tracker.drain_status("job").state is over
