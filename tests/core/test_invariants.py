"""A core that loses count of anything is found out by `invariants`, also where the model sees nothing of it yet."""

from __future__ import annotations

import pytest

from tests.core.differential import difference
from tests.core.faults import staged_is_miscounted
from tests.core.layouts import small_pages
from tests.model.generate import generate
from tracker.core.accounts import Accounts
from tracker.core.cells import Cells
from tracker.core.closed import ClosedSet
from tracker.core.ends import Completion
from tracker.core.expectations import Expectations
from tracker.core.lifecycle import Lifecycle
from tracker.core.log import _Retained
from tracker.core.names import NameTable
from tracker.core.provisional import Provisional
from tracker.core.sparsecells import SparseCells

FAULTS = [
    (Lifecycle, "end"),
    (Accounts, "_count_scopes"),
    (Cells, "write_off"),
    (Cells, "clear"),
    (SparseCells, "clear"),
    (NameTable, "remove"),
    (ClosedSet, "_review"),
    (Completion, "_leave"),
    (Provisional, "commit"),
    (Expectations, "touched"),
    (_Retained, "join"),
]
SEEDS = (*range(5), 192, 96, *range(5, 200))  #: 192 is the first to show what names keep, 96 what subscriptions do


@pytest.mark.thorough
@pytest.mark.parametrize(("part", "method"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_core_that_leaves_something_out_is_found_out(
    monkeypatch: pytest.MonkeyPatch, part: type, method: str
) -> None:
    def half(*arguments: object) -> object:
        return [] if method == "_count_scopes" else None

    monkeypatch.setattr(part, method, half)
    with small_pages():
        assert any(difference(generate(seed)) for seed in SEEDS)


def test_a_core_that_miscounts_what_is_staged_is_found_out() -> None:
    with staged_is_miscounted():
        assert any(difference(generate(seed)) for seed in range(20))
