"""Names, rows and ids: many at a time, forgotten and given again, also where hashes collide."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.layouts import small_pages
from tracker.core.accounts import PAGE, Accounts
from tracker.core.cells import Entries, Rows
from tracker.core.codec import dump_accounts, load_accounts
from tracker.core.names import NameTable


class Colliding(str):
    """A name whose hash is one of two."""

    __slots__ = ()

    def __hash__(self) -> int:
        return len(self) % 2


names = st.text("ab", min_size=1, max_size=6)


@given(
    steps=st.lists(st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 2), names), max_size=30)), max_size=12),
    collide=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_name_is_found_in_its_scope_and_nowhere_else(
    steps: list[tuple[bool, list[tuple[int, str]]]], collide: bool
) -> None:
    stored: list[str] = []
    table = NameTable(stored)
    rows: dict[tuple[int, str], int] = {}
    kind = Colliding if collide else str
    for add, batch in steps:
        distinct = list(dict.fromkeys(batch))
        if add:
            new = [each for each in distinct if each not in rows]
            first = len(stored)
            stored.extend(kind(name) for _, name in new)
            scopes = np.array([scope for scope, _ in new], np.int64)
            table.add(scopes, [kind(name) for _, name in new], np.arange(first, len(stored)))
            rows.update((each, first + i) for i, each in enumerate(new))
        else:
            gone = [each for each in distinct if each in rows]
            table.remove(
                np.array([scope for scope, _ in gone], np.int64), np.array([rows.pop(each) for each in gone], np.int64)
            )
        asked = [(scope, name) for scope in range(3) for name in {name for _, name in batch} | {"none"}]
        found = table.find(np.array([scope for scope, _ in asked], np.int64), [kind(name) for _, name in asked])
        assert found.tolist() == [rows.get(each, -1) for each in asked]


@given(sizes=st.lists(st.integers(0, 3 * PAGE), min_size=1, max_size=6), data=st.data())
@settings(max_examples=40, deadline=None)
def test_ids_count_up_for_ever_and_rows_are_used_again(sizes: list[int], data: st.DataObject) -> None:
    accounts = Accounts(segments=2)
    remembered: dict[int, str] = {}
    given_ids = 0
    for size in sizes:
        fresh = [f"n{given_ids + i}" for i in range(size)]
        rows = accounts.add(["t"] * size, fresh, np.full(size, 7, np.int64), now=1)
        assert accounts.ids_of(rows).tolist() == list(range(given_ids, given_ids + size))
        remembered.update(zip(range(given_ids, given_ids + size), fresh, strict=True))
        given_ids += size
        if data.draw(st.booleans()) and remembered:
            keep = data.draw(st.sampled_from([0, 1, 7, 500]))
            gone = [id_ for id_ in remembered if not keep or id_ % keep]
            accounts.forget(accounts.rows_of(np.array(gone, np.uint64)))
            for id_ in gone:
                del remembered[id_]
        everything = np.arange(given_ids + 3, dtype=np.uint64)
        rows = accounts.rows_of(everything)
        assert [i for i, row in enumerate(rows.tolist()) if row >= 0] == sorted(remembered)
        assert {i: accounts.names[row] for i, row in enumerate(rows.tolist()) if row >= 0} == remembered
        loaded = load_accounts(dump_accounts(accounts))
        assert loaded.ids_of(loaded.rows_of(np.array(sorted(remembered), np.uint64))).tolist() == sorted(remembered)
        assert loaded.next_id == given_ids


def test_memory_does_not_grow_with_what_was_forgotten() -> None:
    accounts = Accounts(segments=2)
    for turn in range(200):
        rows = accounts.add(
            [f"tenant {turn}"] * PAGE, [f"{turn}/{i}" for i in range(PAGE)], np.zeros(PAGE, np.int64), 1
        )
        accounts.forget(rows)
    assert len(accounts.names) <= 4 * PAGE
    assert len(accounts.scope_names) <= 2


def test_numbers_of_scopes_that_are_gone_are_used_again_after_a_rebuild() -> None:
    accounts = Accounts(segments=2)
    for turn in range(20):
        scopes = [f"tenant {turn}/{i}" for i in range(3)]
        rows = accounts.add(scopes, ["name"] * 3, np.zeros(3, np.int64), 1)
        accounts = load_accounts(dump_accounts(accounts))
        assert list(accounts.named(rows)) == [(scope, "name") for scope in scopes]
        accounts.forget(rows)
        accounts = load_accounts(dump_accounts(accounts))
        assert accounts.find_one("", "name") == -1
        assert accounts.scope_number == {}
    assert len(accounts.scope_names) == 3


@given(steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.booleans()), max_size=20))
@settings(max_examples=30, deadline=None)
def test_a_row_that_is_used_again_knows_nothing_of_its_life_before(steps: list[tuple[int, int, bool]]) -> None:
    """Folded into and ended, forgotten, and given to another substream: on every layout."""
    for segments in (2, 12):
        with small_pages():
            accounts = Accounts(segments)
            given_ids = 0
            for count, keep, done in steps:
                names = [f"n{given_ids + i}" for i in range(count)]
                rows = accounts.add(["t"] * count, names, np.zeros(count, np.int64), 1)
                given_ids += count
                for row in rows.tolist():
                    for segment in range(segments):
                        assert accounts.cells.cell(row, segment) == (0, 0, 0, 0)
                        assert accounts.reason(row, segment) == 0
                ones = np.ones(count, np.uint64)
                for segment in (0, segments - 1):
                    accounts.cells.fold(Entries(rows, np.full(count, segment), ones, ones, ones), 3)
                    for row in rows.tolist():
                        assert accounts.cells.cell(row, segment) == (1, 1, 1, 4 << 32 | 4)
                        accounts.cells.mark(row, segment, 1)
                for row in rows.tolist():
                    ended = accounts.cells.has_ended(np.array([row]))[0]
                    assert np.flatnonzero(ended).tolist() == sorted({0, segments - 1})
                    between = [accounts.cells.cell(row, segment) for segment in range(1, segments - 1)]
                    assert set(between) <= {(0, 0, 0, 0)}
                if done:
                    accounts.cells.mark_each(rows, ~accounts.cells.has_ended(rows), 2)
                accounts.forget(rows[keep:])
            assert len(accounts.names) <= 4 * (9 + 3 * (len(steps) + 1))


def test_a_page_forgotten_whole_twice_is_given_to_one_later_page() -> None:
    """Once while ids were still given from it, once when it was full."""
    accounts = Accounts(segments=2)
    given_ids = 0

    def add(count: int) -> Rows:
        nonlocal given_ids
        names = [f"n{given_ids + i}" for i in range(count)]
        given_ids += count
        return accounts.add(["t"] * count, names, np.zeros(count, np.int64), 1)

    accounts.forget(add(10))
    accounts.forget(add(PAGE - 10))
    assert not np.intersect1d(add(PAGE), add(PAGE)).size
