"""The compiled loops give what numpy gives: the same answers, cells, dates and sums, whatever a report has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.core.layouts import accounts_of, small_pages
from tracker.core.accounts import Accounts
from tracker.core.cells import Entries
from tracker.core.codec import dump_accounts
from tracker.core.lifecycle import CLOSED, PARTLY_ENDED, STALLED

pytest.importorskip("numba", reason="needs the extra `fast`")

MOST = 2**64 - 1
numbers = st.integers(0, 40)
counts = st.one_of(st.integers(0, 2), st.just(2**32 - 1))
entries = st.lists(st.tuples(numbers, numbers, st.sampled_from([0, 1, MOST, 2**63]), counts, counts), max_size=20)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 9)),
        st.tuples(st.just("fold"), st.tuples(entries, st.booleans(), st.booleans())),
        st.tuples(st.sampled_from(["open", "mark", "stall", "end", "forget"]), st.lists(numbers, min_size=1)),
    ),
    max_size=30,
)


def as_read(column: NDArray[Any]) -> NDArray[Any]:
    """Return the column as a message has it: not to be written to, and at an odd address."""
    return np.frombuffer(b"\0" + column.tobytes(), column.dtype, offset=1)


@pytest.mark.parametrize(("segments", "layout"), [(1, small_pages), (3, nullcontext), (12, small_pages)])
@given(steps=steps)
@settings(max_examples=100)
def test_compiled_loops_give_what_numpy_gives(
    segments: int, layout: Callable[[], AbstractContextManager[None]], steps: list[tuple[str, Any]]
) -> None:
    with layout():
        both = [accounts_of(loops)(segments) for loops in ("numpy", "compiled")]
        given_ids = 0
        for now, (what, value) in enumerate(steps):
            assert alike(each.rows_of(ids_around(given_ids)) for each in both)
            if what == "add":
                names = [f"n{given_ids + i}" for i in range(value)]
                given_ids += value
                for accounts in both:
                    accounts.add(["t"] * value, names, np.zeros(value, np.int64), now)
            elif given_ids and what == "fold":
                assert alike(fold(accounts, value, given_ids, now) for accounts in both)
            elif given_ids:
                for accounts in both:
                    change(accounts, what, np.unique(np.array(value) % given_ids), now)
            assert alike([dump_accounts(each), each.cells.in_flight, each.cells.count] for each in both)


def alike(found: Any) -> bool:
    one, other = map(repr, found)
    return one == other


def ids_around(given_ids: int) -> NDArray[np.uint64]:
    """Return all ids that were given, and some that were not."""
    return as_read(np.array([*range(given_ids + 3), 2**31, 2**63, MOST], np.uint64))


def fold(accounts: Accounts, value: Any, given_ids: int, now: int) -> Any:
    said, stalls, some_closed = value
    ids = np.array([each[0] % given_ids for each in said], np.uint64)
    rows = accounts.rows_of(ids)
    kept = [each for each, row in zip(said, rows.tolist(), strict=True) if row >= 0]
    rows = rows[rows >= 0]
    unknown = accounts.unknown(rows)
    segments = np.array([each[1] % accounts.segments for each in kept], np.int64)
    columns = (as_read(np.array([each[i] for each in kept], np.uint64)) for i in (2, 3, 4))
    already_closed = np.array([each[0] % 3 == 0 for each in kept], np.bool_) if some_closed else None
    folded, late, closed = accounts.fold(Entries(rows, segments, *columns), 7, now, already_closed, stalls)
    return [unknown, np.unique(closed), closed, folded, late]


def change(accounts: Accounts, what: str, ids: NDArray[np.int64], now: int) -> None:
    """Move rows along their lives: those that can be."""
    life = accounts.life
    rows = accounts.rows_of(ids.astype(np.uint64))
    rows = rows[rows >= 0]
    is_open = life.is_open(rows)
    if what == "open":
        life.open_up(accounts.unknown(rows))
    elif what in ("mark", "stall"):
        life.mark(rows[is_open], CLOSED if what == "mark" else STALLED)
    elif what == "forget":
        gone = rows[~is_open]
        accounts.forget(gone)
    else:
        for row in rows[is_open].tolist():
            segment = now % accounts.segments
            if not accounts.reason(row, segment) and accounts.cells.mark(row, segment, 1):
                life.end(np.array([row]))
            life.mark(row, PARTLY_ENDED)


def test_loops_are_compiled_where_no_file_of_theirs_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = (
        "import numpy as np; from tracker.core.compiled import CompiledAccounts; accounts = CompiledAccounts(1); "
        "accounts.add(['t'], ['n'], np.zeros(1, np.int64), 1); print(accounts.rows_of(np.arange(2, dtype=np.uint64)))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "file" / "below")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[ 0 -1]\n", "")
