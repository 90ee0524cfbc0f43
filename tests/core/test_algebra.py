"""Promises of the accumulators: the order, the grouping and the repetition of reports change nothing.

Everything is reported to a tracker and read back from it; nothing here knows how it keeps its books.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TypeAlias

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker.contract.commands import Close, Commit, DefineJob, OpenProducer, Report, Reported
from tracker.contract.events import Ended
from tracker.contract.spec import Spec
from tracker.contract.values import Mode, Outcome
from tracker.core import Tracker

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True, database=None)
SUBSTREAMS = ["s0", "s1", "s2"]
SEGMENTS = ["a", "b", "c"]
GRAPH = (("a", ("b",)), ("b", ("b", "c")), ("c", ()))


@dataclass(frozen=True)
class Entry:
    substream: int
    segment: int
    xor: int
    sent: int
    received: int


ENTRIES = st.lists(
    st.builds(
        Entry,
        st.integers(0, 2),
        st.integers(0, 2),
        # Small labels too, so that much cancels out by accident.
        st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=12,
)
State: TypeAlias = list[tuple[str, list[tuple[bool, int, int, int]]]]


class Job:
    """A tracker with one job, one producer, and all substreams named, so that ids depend on nothing else."""

    def __init__(self, mode: Mode = Mode.STAGED) -> None:
        self.tracker = Tracker("log")
        self.tracker.apply(DefineJob(Spec("j", "d", GRAPH)), 1)
        self.tracker.apply(OpenProducer("j", "p", "r1", mode), 1)
        self.runs = 1
        self.report(["names"], [], 0, commit=True)

    def report(
        self, units: Sequence[str], entries: Sequence[Entry], epoch: int, commit: bool = False, close: bool = False
    ) -> Outcome:
        answer = self.tracker.apply(
            Report(
                "j",
                "p",
                f"r{self.runs}",
                epoch,
                units=units,
                scopes=["t"],
                names=SUBSTREAMS,
                scope_index=np.zeros(len(SUBSTREAMS), np.uint32),
                segments=SEGMENTS,
                substream_index=np.array([entry.substream for entry in entries], np.uint32),
                segment_index=np.array([entry.segment for entry in entries], np.uint32),
                xor=np.array([entry.xor for entry in entries], np.uint64),
                sent=np.array([entry.sent for entry in entries], np.uint32),
                received=np.array([entry.received for entry in entries], np.uint32),
                entry_count=len(entries),
                promises=[Close("", number) for number in range(len(SUBSTREAMS))] if close else [],
                commit=commit,
            ),
            1,
        )
        assert isinstance(answer, Reported)
        return answer.outcome

    def commit(self, epoch: int) -> None:
        self.tracker.apply(Commit("j", "p", f"r{self.runs}", epoch), 1)

    def restart(self, resume_epoch: int) -> None:
        self.runs += 1
        self.tracker.apply(OpenProducer("j", "p", f"r{self.runs}", Mode.IMMEDIATE, resume_epoch), 1)

    @property
    def state(self) -> State:
        listed, _ = self.tracker.view("j").substreams(include_ended=True)
        return [(s.name, [(g.ended, g.xor, g.sent, g.received) for g in s.segments]) for s in listed]

    @property
    def ends(self) -> list[Ended]:
        events, _ = self.tracker.view("j").events(0)
        return [event.kind for event in events if isinstance(event.kind, Ended)]


def combined(entries: Sequence[Entry]) -> list[Entry]:
    """Combine entries into one for each substream and segment, as a worker, a node or a relay would."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for entry in entries:
        each = sums[entry.substream, entry.segment]
        each[0] ^= entry.xor
        each[1] += entry.sent
        each[2] += entry.received
    return [Entry(*place, *values) for place, values in sums.items()]


def told(reports: Sequence[Sequence[Entry]], mode: Mode = Mode.STAGED) -> Job:
    """Return a job that got these reports, one a unit, and in which then everything is closed."""
    job = Job(mode)
    for number, entries in enumerate(reports):
        assert job.report([f"u{number}"], entries, epoch=1) is Outcome.APPLIED
    job.report(["close"], [], epoch=1, close=True)
    job.commit(1)
    return job


@SETTINGS
@given(st.lists(ENTRIES, max_size=5), st.randoms(use_true_random=False), st.sampled_from(Mode))
def test_reports_may_come_in_any_order(reports: list[list[Entry]], random: Random, mode: Mode) -> None:
    one = told(reports, mode)
    shuffled = list(reports)
    random.shuffle(shuffled)
    other = told(shuffled, mode)
    assert one.state == other.state
    assert one.ends == other.ends


@SETTINGS
@given(ENTRIES, st.lists(st.integers(0, 12), max_size=4))
def test_entries_may_be_combined_anywhere_on_the_way(entries: list[Entry], cuts: list[int]) -> None:
    each_alone = told([[entry] for entry in entries])
    at_once = told([entries])
    at_the_node = told([combined(entries)])
    bounds = [0, *sorted(min(cut, len(entries)) for cut in cuts), len(entries)]
    by_parts = told([combined(entries[low:high]) for low, high in pairwise(bounds)])
    assert each_alone.state == at_once.state == at_the_node.state == by_parts.state
    assert each_alone.ends == at_once.ends == at_the_node.ends == by_parts.ends


@SETTINGS
@given(ENTRIES, ENTRIES, st.integers(1, 3))
def test_revoking_takes_out_what_was_folded_in(before: list[Entry], revoked: list[Entry], reports: int) -> None:
    job = Job(Mode.IMMEDIATE)
    job.report(["u"], [*before, *(Entry(s, 0, 0, 0, 0) for s in range(3))], epoch=1, commit=True)
    state = job.state
    for number in range(reports):
        job.report([f"v{number}"], revoked[number::reports], epoch=2)
    job.restart(resume_epoch=2)
    assert job.state == state


@SETTINGS
@given(st.lists(ENTRIES, min_size=1, max_size=4), st.data(), st.sampled_from(Mode))
def test_what_is_said_twice_changes_nothing(reports: list[list[Entry]], data: st.DataObject, mode: Mode) -> None:
    job = Job(mode)
    for number, entries in enumerate(reports):
        job.report([f"u{number}"], entries, epoch=1)
        again = data.draw(st.integers(0, number))
        state = job.state
        assert job.report([f"u{again}"], reports[again], epoch=1) is Outcome.DUPLICATE
        assert job.report([f"u{again}", "new"], reports[again], epoch=1) is Outcome.PARTIAL_DUPLICATE
        assert job.state == state
    job.commit(1)
    state = job.state
    assert job.report(["u0"], reports[0], epoch=1) is Outcome.ALREADY_COMMITTED
    assert job.state == state
    once = Job(mode)
    once.report(["all"], [entry for entries in reports for entry in entries], epoch=1, commit=True)
    assert once.state == job.state


LABELS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2**64 - 1)), max_size=8)


def sent_and_received(elements: Sequence[tuple[int, int, int]]) -> list[Entry]:
    sent = [Entry(s, g, label, 1, 0) for s, g, label in elements]
    return sent + [Entry(s, g, label, 0, 1) for s, g, label in elements]


@SETTINGS
@given(LABELS, st.data())
def test_all_that_is_sent_and_received_ends_and_nothing_else(
    elements: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    entries = data.draw(st.permutations(sent_and_received(elements)))
    assert {(end.name, end.segment) for end in told([entries]).ends} == {(s, g) for s in SUBSTREAMS for g in SEGMENTS}
    if not entries:
        return
    lost = data.draw(st.integers(0, len(entries) - 1))
    missing = entries[lost]
    ends = {(end.name, end.segment) for end in told([entries[:lost] + entries[lost + 1 :]]).ends}
    blocked = {(SUBSTREAMS[missing.substream], segment) for segment in SEGMENTS[missing.segment :]}
    assert ends == {(s, g) for s in SUBSTREAMS for g in SEGMENTS} - blocked


@SETTINGS
@given(LABELS, st.integers(0, 2), st.integers(0, 2**64 - 1))
def test_neither_counts_nor_labels_balance_alone(
    elements: list[tuple[int, int, int]], segment: int, label: int
) -> None:
    entries = sent_and_received(elements)
    cancelled = [Entry(0, segment, label, 1, 0), Entry(0, segment, label, 1, 0)]  # sent twice: the labels cancel out
    mistaken = [Entry(0, segment, label, 1, 0), Entry(0, segment, label ^ 1, 0, 1)]  # one comes, another was sent
    for wrong in (cancelled, mistaken):
        ended = {end.segment for end in told([entries, wrong]).ends if end.name == SUBSTREAMS[0]}
        assert ended == set(SEGMENTS[:segment])
