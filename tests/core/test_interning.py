"""Names, rows and ids: many at a time, forgotten and given again, also where hashes collide."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker.core.accounts import PAGE, Accounts
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
        loaded = Accounts.load(accounts.dump())
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
