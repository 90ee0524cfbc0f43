"""The algebra of the accumulator: entries may be combined, split, ordered and repeated anywhere on the way.

What a producer reports of an epoch is a multiset of (substream, segment, label, direction). However it is cut into
units, combined inside a report, and ordered, the accounts come out the same; and what is revoked leaves no trace.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker.core import Tracker
from tracker.core.commands import Commit, DefineJob, Mode, OpenProducer, Outcome, Report, Reported, Spec

SEGMENTS = ("a", "b", "c")
SPEC = Spec("j", "d1", (("a", ("b",)), ("b", ("c", "b")), ("c", ())))


class Sighting(NamedTuple):
    """One element seen at one end of a segment."""

    name: str
    segment: str
    label: int
    sent: bool


sightings = st.lists(
    st.builds(
        Sighting,
        st.sampled_from(["s1", "s2", "s3"]),
        st.sampled_from(SEGMENTS),
        st.integers(0, 2**64 - 1),
        st.booleans(),
    ),
    max_size=40,
)


def report(seen: list[Sighting], unit: str, epoch: int = 0, combine: bool = False, commit: bool = False) -> Report:
    """A report of sightings: an entry each, or one for each (substream, segment)."""
    entries: list[tuple[str, str, int, int, int]] = [
        (one.name, one.segment, one.label, int(one.sent), int(not one.sent)) for one in seen
    ]
    if combine:
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for name, segment, xor, sent, received in entries:
            cell = sums[name, segment]
            cell[0] ^= xor
            cell[1] += sent
            cell[2] += received
        entries = [(name, segment, *cell) for (name, segment), cell in sums.items()]  # type: ignore[misc]
    names = sorted({entry[0] for entry in entries})
    return Report(
        "j",
        "p",
        "r",
        epoch,
        units=(unit,),
        scopes=("t",),
        names=names,
        scope_index=np.zeros(len(names), np.uint32),
        segments=SEGMENTS,
        substream_index=np.array([names.index(entry[0]) for entry in entries], np.uint32),
        segment_index=np.array([SEGMENTS.index(entry[1]) for entry in entries], np.uint32),
        xor=np.array([entry[2] for entry in entries], np.uint64),
        sent=np.array([entry[3] for entry in entries], np.uint32),
        received=np.array([entry[4] for entry in entries], np.uint32),
        entry_count=len(entries),
        commit=commit,
    )


def tracker(mode: Mode = Mode.STAGED) -> Tracker:
    """A tracker with the job and one open run."""
    made = Tracker("log")
    made.apply(DefineJob(SPEC), 1)
    made.apply(OpenProducer("j", "p", "r", mode), 1)
    return made


def outcome(made: Tracker, told: Report) -> Outcome:
    """What became of a report."""
    answer = made.apply(told, 1)
    assert isinstance(answer, Reported)
    return answer.outcome


def accounts(made: Tracker) -> dict[tuple[str, str], tuple[int, int, int]]:
    """The accumulators that are not empty, by (substream, segment)."""
    page, _ = made.substreams("j", limit=1000)
    return {
        (substream.name, segment.segment): (segment.xor, segment.sent, segment.received)
        for substream in page
        for segment in substream.segments
        if segment.sent or segment.received or segment.xor
    }


def expected(seen: list[Sighting]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """What the accumulators must be, element by element."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for name, segment, label, sent in seen:
        xor, out, taken = sums.get((name, segment), (0, 0, 0))
        sums[name, segment] = (xor ^ label, out + sent, taken + (not sent))
    return sums


def cut(seen: list[Sighting], where: list[int]) -> list[list[Sighting]]:
    """A list in pieces."""
    places = sorted({0, len(seen), *(place % (len(seen) + 1) for place in where)})
    return [seen[start:stop] for start, stop in itertools.pairwise(places)] or [[]]


@given(seen=sightings, where=st.lists(st.integers(0, 50), max_size=5), combine=st.booleans(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_combined_anywhere_and_in_any_order_it_is_the_same(
    seen: list[Sighting], where: list[int], combine: bool, data: Any
) -> None:
    made = tracker()
    units = list(enumerate(cut(seen, where)))
    for number, piece in data.draw(st.permutations(units)):
        outcome(made, report(piece, f"u{number}", combine=combine))
    made.apply(Commit("j", "p", "r", 0), 1)
    assert accounts(made) == expected(seen)


@given(seen=sightings, where=st.lists(st.integers(0, 50), max_size=4), again=st.lists(st.integers(0, 4), max_size=6))
@settings(max_examples=100, deadline=None)
def test_what_is_reported_again_changes_nothing(seen: list[Sighting], where: list[int], again: list[int]) -> None:
    made = tracker()
    pieces = cut(seen, where)
    for number, piece in enumerate(pieces):
        assert outcome(made, report(piece, f"u{number}")) is Outcome.APPLIED
    for number in again:
        # Another attempt of the same unit, which may even say something else.
        number %= len(pieces)
        assert outcome(made, report(seen, f"u{number}")) is Outcome.DUPLICATE
    made.apply(Commit("j", "p", "r", 0), 1)
    assert outcome(made, report(seen, "late")) is Outcome.ALREADY_COMMITTED
    assert accounts(made) == expected(seen)


@given(kept=sightings, revoked=sightings, where=st.lists(st.integers(0, 50), max_size=4))
@settings(max_examples=100, deadline=None)
def test_what_is_revoked_leaves_no_trace(kept: list[Sighting], revoked: list[Sighting], where: list[int]) -> None:
    for mode in Mode:
        made = tracker(mode)
        outcome(made, report(kept, "u", epoch=0, commit=True))
        for number, piece in enumerate(cut(revoked, where)):
            outcome(made, report(piece, f"u{number}", epoch=1))
        made.apply(OpenProducer("j", "p", "r2", mode, resume_epoch=1), 1)
        assert accounts(made) == expected(kept)


@given(seen=sightings, where=st.lists(st.integers(0, 50), max_size=3))
@settings(max_examples=60, deadline=None)
def test_both_modes_come_to_the_same(seen: list[Sighting], where: list[int]) -> None:
    staged, immediate = tracker(Mode.STAGED), tracker(Mode.IMMEDIATE)
    for made in (staged, immediate):
        for number, piece in enumerate(cut(seen, where)):
            outcome(made, report(piece, f"u{number}"))
        made.apply(Commit("j", "p", "r", 0), 1)
    assert accounts(staged) == accounts(immediate) == expected(seen)


@given(seen=sightings, repeats=st.integers(1, 2000))
@settings(max_examples=30, deadline=None)
def test_a_report_may_name_the_same_account_as_often_as_it_likes(seen: list[Sighting], repeats: int) -> None:
    made = tracker()
    many = (seen * repeats)[:4000]
    outcome(made, report(many, "u", commit=True))
    assert accounts(made) == expected(many)
