"""Numbers beyond their bounds: refused before they are kept anywhere, and harmless where an old journal holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.lines import JOB, START, Driver, Line
from tracker.contract.bounds import MAX_DURATION, MAX_END_TIME, MAX_EPOCH, check_bounds
from tracker.contract.commands import CloseProducer, Command, Commit, Drain, OpenProducer, Recovered, Report
from tracker.contract.refusal import Refused
from tracker.contract.values import NO_END_TIME
from tracker.core import DefineJob, Spec, Tick, Tracker, timers
from tracker.core.job import Job
from tracker.journal.snapshots import decode, encode
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2 as wire

SECOND = 10**9
YEAR = 366 * 24 * 3600 * SECOND
SEGMENTS = (("a", ()),)


def report(epoch: int = 0, end_time: int = 0) -> Report:
    return Report("job", "p", "r", epoch, ["u"], ["t"], ["s"], np.zeros(1, np.uint32), np.array([end_time], np.int64))


def define(**durations: int) -> DefineJob:
    return DefineJob(Spec("job", "d1", SEGMENTS, **durations))  # type: ignore[arg-type]


BOUNDED: dict[str, tuple[Callable[[int], Command], int]] = {
    "stall_after": (lambda n: define(stall_after=n), MAX_DURATION),
    "expire_after": (lambda n: define(expire_after=n), MAX_DURATION),
    "idle_after": (lambda n: define(idle_after=n), MAX_DURATION),
    "retention": (lambda n: define(retention=n), MAX_DURATION),
    "remember": (lambda n: define(remember=n), MAX_DURATION),
    "timeout": (lambda n: Drain("job", "d1", "x", n), MAX_DURATION),
    "resume_epoch": (lambda n: OpenProducer("job", "p", "r", resume_epoch=n), MAX_EPOCH),
    "resume_epoch at closing": (lambda n: CloseProducer("job", "p", "r", n), MAX_EPOCH),
    "epoch": (lambda n: report(epoch=n), MAX_EPOCH),
    "epoch of a commit": (lambda n: Commit("job", "p", "r", n), MAX_EPOCH),
    "end time": (lambda n: report(end_time=n), MAX_END_TIME),
}


@pytest.mark.parametrize("field", BOUNDED)
def test_a_number_is_taken_up_to_its_bound_and_refused_beyond(field: str) -> None:
    make, bound = BOUNDED[field]
    for number in (1, bound - 1, bound):
        check_bounds(make(number))
    for number in (bound + 1, 2 * bound, 2**63 - 2, 2**64 - 1):
        if field == "end time" and number >= NO_END_TIME:
            continue
        with pytest.raises(Refused, match=r"^MALFORMED: .*; |^MALFORMED: .*: ") as refused:
            check_bounds(make(number))
        assert field.split(" at ")[0].split(" of ")[0] in str(refused.value)


def test_no_end_time_is_none_and_negative_end_times_are_bounded_alike() -> None:
    check_bounds(report(end_time=NO_END_TIME))
    check_bounds(report(end_time=-MAX_END_TIME))
    for number in (-MAX_END_TIME - 1, -(2**63)):
        with pytest.raises(Refused, match="MALFORMED"):
            check_bounds(report(end_time=number))


# ---------------------------------------------------------------- what an old journal may hold


def line(do: str, **more: Any) -> Line:
    return {"do": do} | more


DURATIONS = st.sampled_from([SECOND, 100 * YEAR, 293 * YEAR, 585 * YEAR, 10_000 * YEAR])
EXTREME = st.sampled_from([-(2**63), -(2**63) + 1, -(2**61), 0, 2**61, 2**63 - 2])
EPOCHS = st.sampled_from([0, 1, 2**62, 2**63, 2**64 - 1])


@given(
    durations=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("stall_after", "expire_after", "idle_after", "retention"), DURATIONS)
    ),
    end_times=st.lists(EXTREME, min_size=1, max_size=3),
    frontiers=st.lists(st.one_of(EXTREME, st.just(2**63 - 1)), max_size=3),
    epochs=st.lists(EPOCHS, min_size=1, max_size=3, unique=True).map(sorted),
    timeout=DURATIONS,
    balanced=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_time_goes_on_and_snapshots_work_whatever_a_journal_holds(
    durations: dict[str, int],
    end_times: list[int],
    frontiers: list[int],
    epochs: list[int],
    timeout: int,
    balanced: bool,
) -> None:
    """The core takes what no server lets in any more: a record of an older version was acknowledged once."""
    tracker = Tracker("log")
    driver = Driver(tracker, old_journal=True)
    driver.run(line("drain", deployment="d9", drain_id="early", timeout=timeout))
    driver.run(
        line(
            "define",
            deployment="d1",
            segments=[["a", []]],
            fronts=["f"],
            ordering="SCOPE",
            progress=True,
            durations=durations,
        )
    )
    driver.run(line("drain", deployment="d1", drain_id="x", timeout=timeout))
    driver.run(line("open", producer="p", run="p1", mode="STAGED"))
    entries = [["t", f"s{time}", time, "a", 7, 1, int(balanced)] for time in set(end_times)]
    promises = [["frontier", "f", None, time] for time in frontiers]
    for epoch in epochs:
        said = {"producer": "p", "run": "p1", "epoch": epoch, "units": ["u"], "commit": epoch % 2 == 0}
        driver.run(line("report", entries=entries, promises=promises, **said))
    for wait in (0, 1, 2 * SECOND, YEAR, 99 * YEAR):
        driver.run(line("tick", wait=wait))
        loaded = Tracker.load(decode(b"".join(encode(tracker.dump()))))
        assert [event.kind for event in loaded.view(JOB).events(0)[0]] == [
            e.kind for e in tracker.view(JOB).events(0)[0]
        ]
        loaded.apply(Tick(), driver.now)
        for event in tracker.view(JOB).events(0)[0]:
            wire.Event.FromString(codec.write_event(event).SerializeToString())
        codec.write(tracker.view(JOB).status(), wire.JobStatus).SerializeToString()


def test_a_tick_that_fails_in_one_job_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracker("log")
    for job in ("before", "evil", "after"):
        tracker.apply(DefineJob(Spec(job, "d1", SEGMENTS, fronts=("f", "g"), idle_after=SECOND)), START)
    real = timers.tick

    def tick(job: Job, retention: int) -> None:
        if job.spec.job == "evil":
            raise OverflowError("a fault of the program")
        real(job, retention)

    monkeypatch.setattr(timers, "tick", tick)
    with pytest.raises(ExceptionGroup) as failed:
        tracker.apply(Tick(), START + 2 * SECOND)
    assert "evil" in failed.value.exceptions[0].__notes__[0]
    assert [tracker.view(job).status().last_seq for job in ("before", "evil", "after")] == [2, 0, 2]
    assert tracker.pop_changed_jobs() == {"before", "after"}
    tracker.apply(Recovered(), START + 2 * SECOND)


def test_a_second_identical_definition_makes_no_second_graph() -> None:
    tracker = Tracker("log")
    names = tuple(f"s{i}" for i in range(50))
    spec = Spec("job", "d1", tuple((name, names) for name in names), fronts=names)
    tracker.apply(DefineJob(spec), START)
    graph = tracker._jobs["job"].graph
    assert not tracker.apply(DefineJob(spec), START).created  # type: ignore[union-attr]
    assert tracker._jobs["job"].graph is graph
