"""Both layouts of the accumulators against plain dicts, through everything that happens to rows, recycling included."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.layouts import small_pages
from tracker.contract.commands import FinishFront
from tracker.core import DefineJob, OpenProducer, Report, Spec, Tracker
from tracker.core.accounts import DENSE, cells_for, relaid
from tracker.core.cells import Cells, Entries
from tracker.core.codec import dump_accounts
from tracker.core.ends import NONE_OPEN, OpenTimes
from tracker.core.graph import Graph
from tracker.core.sparsecells import BLOCK, SparseCells
from tracker.journal.snapshots import decode, encode

ROWS = 6
SEGMENTS = 20
GRAPH = Graph([(f"s{i:02}", [f"s{i // 2:02}"] if i else []) for i in range(SEGMENTS)])

pairs = st.tuples(st.integers(0, ROWS - 1), st.integers(0, SEGMENTS - 1))
entries = st.lists(st.tuples(pairs, st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("fold"), entries),
        st.tuples(st.just("unfold"), st.just(None)),
        st.tuples(st.just("mark"), st.tuples(pairs, st.integers(1, 3))),
        st.tuples(st.just("mark_each"), st.tuples(st.integers(0, ROWS - 1), st.integers(1, 3))),
        st.tuples(st.just("clear"), st.lists(st.integers(0, ROWS - 1), min_size=1, unique=True)),
        st.tuples(st.just("load"), st.just(None)),
    ),
    max_size=25,
)


class Plain:
    """The right content of the layouts, in plain dictionaries."""

    def __init__(self) -> None:
        self.words: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
        self.ended: dict[tuple[int, int], int] = {}

    def may_end(self, row: int) -> list[bool]:
        def blocked(segment: int) -> bool:
            upstream = np.flatnonzero(GRAPH.upstream[segment]).tolist()
            return any(self.words[row, u][0] or self.words[row, u][1] != self.words[row, u][2] for u in upstream)

        return [not blocked(segment) and (row, segment) not in self.ended for segment in range(SEGMENTS)]


def columns(said: list[tuple[tuple[int, int], int, int, int]]) -> Entries:
    return Entries(
        np.array([pair[0] for pair, *_ in said], np.int64),
        np.array([pair[1] for pair, *_ in said], np.int64),
        *(np.array([each[i] for each in said], np.uint64) for i in (1, 2, 3)),
    )


@pytest.mark.parametrize("layout", [Cells, SparseCells])
@given(steps=steps)
@settings(max_examples=60, deadline=None)
def test_a_layout_keeps_what_plain_dicts_keep(layout: type[Cells], steps: list[tuple[str, Any]]) -> None:
    cells, plain = layout(SEGMENTS), Plain()
    cells.grow(ROWS)
    last: list[Any] = []
    rows = np.arange(ROWS)
    for producer, (what, value) in enumerate(steps):
        if what == "fold":
            cells.fold(columns(value), producer)
            for pair, xor, sent, received in value:
                words = plain.words[pair]
                words[:3] = words[0] ^ xor, words[1] + sent, words[2] + received
                if sent:
                    words[3] = producer + 1
                if received:
                    words[4] = producer + 1
            last = value
        elif what == "unfold":
            cells.unfold(columns(last)) if last else None
            for pair, xor, sent, received in last:
                words = plain.words[pair]
                words[:3] = words[0] ^ xor, words[1] - sent, words[2] - received
            last = []
        elif what == "mark":
            (row, segment), reason = value
            if (row, segment) in plain.ended:
                continue
            plain.ended[row, segment] = reason
            everywhere = cells.mark(row, segment, reason)
            assert everywhere == all((row, segment) in plain.ended for segment in range(SEGMENTS))
        elif what == "mark_each":
            first, reason = value
            ending, endable = cells.endable(rows[first:], GRAPH)
            expected = {row: plain.may_end(row) for row in range(first, ROWS) if any(plain.may_end(row))}
            assert dict(zip(ending.tolist(), endable.tolist(), strict=True)) == expected
            everywhere_each = cells.mark_each(ending, endable, reason)
            for row, may in expected.items():
                plain.ended |= {(row, segment): reason for segment, can in enumerate(may) if can}
            assert everywhere_each.tolist() == [
                all((row, segment) in plain.ended for segment in range(SEGMENTS)) for row in expected
            ]
        elif what == "clear":
            cells.write_off(np.array(value))
            cells.clear(np.array(value))
            for place in [place for place in plain.words if place[0] in value]:
                del plain.words[place]
            plain.ended = {pair: reason for pair, reason in plain.ended.items() if pair[0] not in value}
            last = [each for each in last if each[0][0] not in value]
        else:
            dump = cells.dump(rows)
            cells = layout(SEGMENTS)
            cells.grow(ROWS)
            cells.load(rows, dump)
            cells.count_in_flight(rows)
    check(cells, plain)
    # A new graph, on whose new segments all but every third have ended: some segments go, some come.
    reasons = np.array([9 if row % 3 else 0 for row in range(ROWS)], np.uint8)
    kept = [(old, (old * 7) % 31) for old in range(0, SEGMENTS, 2)]
    fresh = relaid(cells, rows, reasons, ROWS, 31, kept)
    for row in range(ROWS):
        for old, new in kept:
            assert fresh.cell(row, new) == cells.cell(row, old)
            assert fresh.reason(row, new) == cells.reason(row, old)
        for new in set(range(31)) - {new for _, new in kept}:
            assert (fresh.cell(row, new), fresh.reason(row, new)) == ((0, 0, 0, 0), reasons[row])


def check(cells: Cells, plain: Plain) -> None:
    rows = np.arange(ROWS)
    everywhere = [(row, segment) for row in range(ROWS) for segment in range(SEGMENTS)]
    row_each, segment_each = np.array(everywhere).T
    expected = [plain.words[pair] for pair in everywhere]
    assert [cells.cell(*pair)[:3] for pair in everywhere] == [tuple(w % 2**64 for w in words[:3]) for words in expected]
    assert [cells.cell(*pair)[3] for pair in everywhere] == [words[4] << 32 | words[3] for words in expected]
    assert cells.sent_each(row_each, segment_each).tolist() == [words[1] % 2**64 for words in expected]
    assert cells.reasons(row_each, segment_each).tolist() == [plain.ended.get(pair, 0) for pair in everywhere]
    assert [cells.reason(*pair) for pair in everywhere] == [plain.ended.get(pair, 0) for pair in everywhere]
    assert cells.has_ended(rows).ravel().tolist() == [pair in plain.ended for pair in everywhere]
    unequal = [bool(words[0]) or words[1] != words[2] for words in expected]
    assert cells.unbalanced(rows).ravel().tolist() == unequal
    assert cells.in_flight_each(rows).ravel().tolist() == [words[1] - words[2] for words in expected]
    assert cells.in_flight == sum(max(0, words[1] - words[2]) for words in expected)
    owing = {pair[0] for pair, each in zip(everywhere, unequal, strict=True) if each and pair not in plain.ended}
    assert np.flatnonzero(cells.owing(rows)).tolist() == sorted(owing)
    used = {number - 1 for words in expected for number in words[3:] if number}
    assert cells.used_producers(rows) == used
    ending, endable = cells.endable(rows, GRAPH)
    may = {row: plain.may_end(row) for row in range(ROWS) if any(plain.may_end(row))}
    assert dict(zip(ending.tolist(), endable.tolist(), strict=True)) == may


def test_a_dump_of_all_cells_can_be_read_by_the_sparse_layout() -> None:
    """A snapshot of a version that kept a cell for each segment."""
    rows = np.arange(ROWS)
    dense, sparse = Cells(SEGMENTS), SparseCells(SEGMENTS)
    dense.grow(ROWS)
    sparse.grow(ROWS)
    dense.fold(columns([((0, 3), 1, 2, 1), ((0, 17), 2, 1, 1), ((4, 9), 0, 1, 1)]), 5)
    dense.mark(0, 4, 1)
    dense.mark_each(np.array([2, 4]), np.ones((2, SEGMENTS), np.bool_), 2)
    sparse.load(rows, dense.dump(rows))
    for row in range(ROWS):
        for segment in range(SEGMENTS):
            assert sparse.cell(row, segment) == dense.cell(row, segment)
            assert sparse.reason(row, segment) == dense.reason(row, segment)


def test_memory_depends_on_what_was_touched_and_not_on_the_segments() -> None:
    few, many = tracker_of(DENSE + 1), tracker_of(1000)
    for tracker in (few, many):
        cells = tracker._jobs["job"].accounts.cells
        assert cells.count <= 2 * BLOCK * 3_000
        assert len(cells.words) <= 2 * 2 * BLOCK * 3_000
    accounts = many._jobs["job"].accounts
    assert many.view("job").counts().cells == accounts.cells.count
    for name in dir(accounts.cells):
        column = getattr(accounts.cells, name)
        if isinstance(column, np.ndarray) and name != "words":
            assert column.nbytes < 3_000 * 1_000, name
    dump = dump_accounts(accounts)
    assert sum(c.nbytes for c in [*dump["touched"], dump["done"], *dump["marked"]]) < 2 * 60 * 3_000


def tracker_of(segments: int) -> Tracker:
    """Return a tracker of 3,000 substreams that have touched the first segment and the last."""
    graph = tuple((f"s{i:04}", ()) for i in range(segments))
    tracker = Tracker("log")
    tracker.apply(DefineJob(Spec("job", "d1", graph, fronts=("f",))), 1)
    tracker.apply(OpenProducer("job", "p", "r"), 1)
    count = 3_000
    report = Report(
        "job",
        "p",
        "r",
        0,
        ["u"],
        ["t"],
        [f"n{i}" for i in range(count)],
        np.zeros(count, np.uint32),
        segments=[graph[0][0], graph[-1][0]],
        substream_index=np.tile(np.arange(count, dtype=np.uint32), 2),
        segment_index=np.repeat(np.arange(2, dtype=np.uint32), count),
        xor=np.zeros(2 * count, np.uint64),
        sent=np.ones(2 * count, np.uint32),
        received=np.ones(2 * count, np.uint32),
        entry_count=2 * count,
        commit=True,
    )
    tracker.apply(report, 1)
    return tracker


def test_many_segments_end_as_few_do() -> None:
    tracker = tracker_of(12)
    tracker.apply(FinishFront("job", "f"), 2)
    assert tracker.view("job").status().ended_substreams == 3_000
    assert tracker.view("job").status().last_seq == 12 * 3_000


def test_the_layout_follows_the_number_of_segments() -> None:
    assert type(cells_for(DENSE)) is Cells
    assert isinstance(cells_for(DENSE + 1), SparseCells)
    with small_pages():
        assert isinstance(cells_for(2), SparseCells)


@given(steps=st.lists(st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 6), st.integers(0, 3)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_the_least_open_time_is_that_of_a_plain_multiset(steps: list[tuple[str, int, int]]) -> None:
    times = OpenTimes(4)
    open_on: list[list[int]] = [[] for _ in range(4)]
    for what, time, segment in steps:
        if what == "join":
            times.join(time)
            for each in open_on:
                each.append(time)
        elif time in open_on[segment]:
            open_on[segment].remove(time)
            times.leave(segment, time)
        assert [times.least(i) for i in range(4)] == [min(each, default=NONE_OPEN) for each in open_on]
        assert bool(times) == any(open_on)


def test_many_open_times_stay_in_order() -> None:
    times = OpenTimes(1)
    order = np.random.default_rng(1).permutation(10_000).tolist()
    for time in order:
        times.join(time)
    for time in range(10_000):
        assert times.least(0) == time
        times.leave(0, time)
    assert not times


def test_a_sparse_state_goes_through_a_snapshot() -> None:
    tracker = tracker_of(12)
    loaded = Tracker.load(decode(b"".join(encode(tracker.dump()))))
    for each in (tracker, loaded):
        each.apply(FinishFront("job", "f"), 2)
    assert loaded.view("job").status() == tracker.view("job").status()
    again = Tracker.load(decode(b"".join(encode(loaded.dump()))))
    assert again.view("job").substreams(include_ended=True) == tracker.view("job").substreams(include_ended=True)


def test_a_directory_that_is_used_again_lists_nothing_of_the_row_before() -> None:
    cells = SparseCells(40)
    cells.grow(3)
    cells.fold(columns([((0, segment), 1, 1, 0) for segment in (0, 10, 20)]), 1)
    cells.clear(np.array([0]))
    cells.fold(columns([((1, segment), 1, 1, 0) for segment in (0, 30)]), 1)
    cells.fold(columns([((2, segment), 1, 1, 0) for segment in (10, 20)]), 1)
    assert np.flatnonzero(cells.unbalanced(np.array([1]))[0]).tolist() == [0, 30]
    assert cells.find(np.array([1, 1]), np.array([10, 20])).tolist() == [-1, -1]
