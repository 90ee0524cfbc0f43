"""Messages that one end writes the other end reads, every field of them: the codec in both directions."""

from __future__ import annotations

import pickle
from dataclasses import fields
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from tracker.contract import commands, events, spec, status
from tracker.contract.values import NO_END_TIME, DrainMode, DrainState, Mode, Numbered, Ordering, Outcome, Reason
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2 as wire

AT = 1_700_000_000_123_456_000  # ns, exact to the microsecond as a caller's moments are
SECOND = 10**9

SPEC = spec.Spec(
    job="shop",
    deployment="d1",
    segments=(("raw", ("clean", "raw")), ("clean", ())),
    fronts=("till", "schedule"),
    ordering=Ordering.SCOPE,
    progress=True,
    stall_after=1 * SECOND,
    expire_after=2 * SECOND,
    idle_after=3 * SECOND,
    retention=4 * SECOND,
    remember=5 * SECOND + 6000,
    front_segments=(("till", ("raw",)),),
    state_segments=("clean",),
    committed_ends=True,
    expire_expected=True,
    deadline=6 * SECOND,
    deadline_by_event_time=True,
    threshold_ppm=950_000,
    threshold_after=7 * SECOND,
    scope_idle_after=8 * SECOND,
    front_idle_after=9 * SECOND,
)
JOB_SPEC = spec.JobSpec(
    job="shop",
    deployment="d1",
    segments={"raw": ("clean", "raw"), "clean": ()},
    fronts={"till": ("raw",), "schedule": ()},
    ordering="scope",
    progress=True,
    stall_after=timedelta(seconds=1),
    expire_after=timedelta(seconds=2),
    idle_after=timedelta(seconds=3),
    retention=timedelta(seconds=4),
    remember=timedelta(seconds=5, microseconds=6),
    state_segments=("clean",),
    committed_ends=True,
    deadline=timedelta(seconds=6),
    deadline_by_event_time=True,
    threshold=0.95,
    threshold_after=timedelta(seconds=7),
    scope_idle_after=timedelta(seconds=8),
    front_idle_after=timedelta(seconds=9),
)
DRAIN = status.DrainStatus(
    DrainState.TIMED_OUT, "drain", "d0", ("till",), 1, 2, ("p",), ("q", "r"), DrainMode.HAND_OVER, ("raw",)
)
PRODUCER = status.ProducerStatus("p", "run", Mode.IMMEDIATE, 7, (8, 9), True, AT)
FRONT = status.FrontStatus("till", True, True, {"*": -3, "berlin": 4}, "p", AT, ("raw",), 5)
JOB = status.JobStatus(
    JOB_SPEC, 1, 2, 3, 4, 5, 6, (PRODUCER,), (FRONT,), DRAIN, "log", 7, 8, 9, 10, 11, 12, 13, 14, 15, ("clean",)
)
SEGMENT = status.SegmentStatus("raw", True, 1, 2, 3, "p", "q", 9, {"till": 4, "": 5}, True, True, True)
SUBSTREAM = status.SubstreamStatus(
    "berlin", "monday", -24, True, ("till",), (SEGMENT,), 1, AT, AT + SECOND, ("p",), True
)
STAGED = status.StagedStatus("p", 3, Mode.IMMEDIATE, True, (status.StagedCount("raw", 1, 2),), ("till",), ("schedule",))
SUBSCRIPTION = status.SubscriptionStatus(
    "reader", ("raw",), ("berlin",), 1, 2 * SECOND, 3, 4, AT, AT + 1000, AT + 2000, AT + 3000, "too old"
)
BODIES: list[events.Body] = [
    events.Ended("raw", "berlin", "monday", -24, 3, Reason.EXPIRED, 2, True, 5),
    events.Ended("raw", "", "monday", None, 3, Reason.COMPLETE, 0),
    events.Late("raw", "berlin", "monday", "p", 1, 2),
    events.Stalled("berlin", "monday", ("raw", "clean"), -3, 5, 4),
    events.Excess("raw", "berlin", "monday", 1, 2),
    events.FrontIdle("till", True),
    events.DrainRequested("drain"),
    events.Drained("drain"),
    events.DrainRequested("drain", DrainMode.HAND_OVER),
    events.Drained("drain", DrainMode.HAND_OVER),
    events.DrainTimedOut("drain"),
    events.DrainCancelled("drain"),
    events.Advanced("raw", -7),
]


def test_no_field_of_the_values_below_is_its_default() -> None:
    """Else a field that one direction forgets would not show."""
    for value in (SPEC, DRAIN, PRODUCER, FRONT, JOB, SEGMENT, SUBSTREAM, STAGED, SUBSCRIPTION, JOB_SPEC, BODIES[0]):
        for field in fields(value):
            if field.name == "expire_expected":  # a caller's default is another than the wire's
                continue
            assert getattr(value, field.name) not in (field.default, 0, "", (), None), (type(value), field.name)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_events(body: events.Body) -> None:
    message = wire.Event.FromString(codec.write_event(events.Event(7, AT, "d1", body)).SerializeToString())
    assert codec.read_event(message) == events.Event(7, AT, "d1", body)


def test_every_kind_of_event_is_there() -> None:
    assert {type(body) for body in BODIES} == set(events.Body.__args__)


def test_a_bookmark_is_no_event() -> None:
    message = codec.write_bookmark(events.Event(7, AT, "d1", BODIES[0]))
    assert message.WhichOneof("kind") == "bookmark"
    assert (message.seq, message.at.ToNanoseconds()) == (7, AT)
    assert codec.read_event(wire.Event.FromString(message.SerializeToString())) is None


def test_how_a_job_stands() -> None:
    assert codec.read(codec.write(JOB, wire.JobStatus), status.JobStatus) == JOB
    assert codec.read(codec.write(DRAIN, wire.DrainStatus), status.DrainStatus) == DRAIN


def test_how_a_substream_stands() -> None:
    assert codec.read(codec.write(SUBSTREAM, wire.SubstreamStatus), status.SubstreamStatus) == SUBSTREAM
    for explained in (status.Explained(SUBSTREAM, (STAGED,), (SUBSTREAM,), 1), status.Explained(None, ())):
        assert codec.read(codec.write(explained, wire.ExplainResponse), status.Explained) == explained


def test_how_a_subscription_stands() -> None:
    assert codec.read(codec.write(SUBSCRIPTION, wire.SubscriptionStatus), status.SubscriptionStatus) == SUBSCRIPTION


def test_what_defining_a_job_answers() -> None:
    defined = commands.JobDefined(True, 3, "log", 4, DRAIN, JOB_SPEC)
    assert codec.read(codec.write(defined, wire.DefineJobResponse), commands.JobDefined) == defined


def test_callers_read_a_spec_as_they_gave_it() -> None:
    assert spec.JobSpec.of(SPEC) == JOB_SPEC
    assert codec.read(codec.write_job_spec(JOB_SPEC), spec.JobSpec) == JOB_SPEC


def test_a_caller_specifies_what_the_core_reads() -> None:
    request = wire.DefineJobRequest(spec=codec.write_job_spec(JOB_SPEC), force=True)
    read = codec.read_command(codec.Method.DEFINE_JOB, request.SerializeToString())
    assert read == commands.DefineJob(SPEC, force=True)


def test_a_report() -> None:
    given: list[commands.Promise] = [
        commands.Frontier("till", 24, "berlin"),
        commands.Frontier("till", 24),
        commands.Close("till", 1),
        commands.Finish("till"),
        commands.Expect("till", "raw", 2, 5, True),
        commands.Expect("till", "raw", 1, 5, False, 2**64 - 1),
        commands.Identities("till", "raw", 1, 2**63),
    ]
    contents = commands.Contents(
        [("berlin", "monday"), ("bonn", "monday"), ("berlin", "tuesday")],
        np.array([24, NO_END_TIME, 48], np.int64),
        ["raw", "clean"],
        np.array([0, 1, 2], np.uint32),
        np.array([0, 1, 1], np.uint32),
        np.array([1, 2, 2**64 - 1], np.uint64),
        np.array([3, 4, 5], np.uint32),
        np.array([6, 7, 8], np.uint32),
        given,
    )
    message, named = codec.write_report(contents, "log", [None, 77, None], want_ids=True)
    message.job, message.producer, message.run, message.epoch = "shop", "p", "run", 3
    message.units.append("u")
    message.commit = True
    read = codec.read_command(codec.Method.REPORT, message.SerializeToString())
    assert isinstance(read, commands.Report)
    assert (read.job, read.producer, read.run, read.epoch, read.units) == ("shop", "p", "run", 3, ("u",))
    assert (read.scopes, read.names, read.substream_ids.tolist()) == (("berlin",), ("monday", "tuesday"), [77])
    assert (read.scope_index.tolist(), read.end_times.tolist()) == ([0, 0], [24, 48])
    assert (read.log_id, read.want_ids, read.commit, read.segments) == ("log", True, True, ("raw", "clean"))
    # Those that are named come first: the second of the caller's substreams is the third on the wire.
    place = {0: 0, 1: 2, 2: 1}
    assert named == [0, 2]
    assert read.substream_index.tolist() == [place[each] for each in (0, 1, 2)]
    assert read.segment_index.tolist() == [0, 1, 1]
    assert (read.xor.tolist(), read.entry_count) == ([1, 2, 2**64 - 1], 3)
    assert (read.sent.tolist(), read.received.tolist()) == ([3, 4, 5], [6, 7, 8])
    assert read.promises == (
        *given[:2],
        commands.Close("till", place[1]),
        given[3],
        commands.Expect("till", "raw", place[2], 5, True),
        commands.Expect("till", "raw", place[1], 5, False, 2**64 - 1),
        commands.Identities("till", "raw", place[1], 2**63),
    )


def test_the_promises_of_a_commit() -> None:
    expected = commands.Expected("till", "raw", "berlin", "monday", 5, end_time=24, revise=True, xor=7)
    frontier = commands.Frontier("till", 24)
    request = wire.CommitRequest(job="shop", promises=codec.write_promises([frontier, expected]))
    read = codec.read_command(codec.Method.COMMIT, request.SerializeToString())
    assert isinstance(read, commands.Commit)
    assert read.promises == (frontier, commands.Expect("till", "raw", 0, 5, True, 7))
    assert read.substreams == (("berlin", "monday", 24),)


def test_what_a_report_is_answered() -> None:
    for outcome in Outcome:
        message = codec.write_reported(commands.Reported(outcome, ("u",), 7))
        read = codec.read_reported(wire.ReportResponse.FromString(message.SerializeToString()))
        assert read == commands.Reported(outcome, ("u",), 7)


@pytest.mark.parametrize(
    ("kind", "on_the_wire"),
    [(Reason, wire.Reason), (DrainState, wire.DrainState), (Outcome, wire.ReportResponse.Outcome)],
)
def test_words_have_the_numbers_that_the_wire_gives_them(kind: type[Numbered], on_the_wire: Any) -> None:
    # A stream of reports answers REJECTED where a call would be refused.
    named = {word: number for word, number in on_the_wire.items() if number and word != "REJECTED"}
    assert {member.value: member.number for member in kind} == named
    assert [kind.of(member.number) for member in kind] == list(kind)
    assert [pickle.loads(pickle.dumps(member)) for member in kind] == list(kind)
    with pytest.raises(ValueError, match="0 is not the number"):
        kind.of(0)


def test_a_sum_that_the_wire_cannot_carry_is_written_as_the_most() -> None:
    segment = status.SegmentStatus("raw", False, 1, 2, 3, "p", "q", expected=2**64 + 7)
    assert codec.write(segment, wire.SegmentStatus).expected == 2**64 - 1


def test_a_server_older_than_modes_of_drains_has_only_drains_that_finish() -> None:
    asked = wire.DrainStatus(state=wire.DRAINING)
    assert codec.read(asked, status.DrainStatus).mode is DrainMode.FINISH
    assert codec.read(wire.DrainStatus(state=wire.NOT_DRAINING), status.DrainStatus).mode is None
