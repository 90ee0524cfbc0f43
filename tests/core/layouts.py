"""The core with pages and blocks so small that short sequences recycle rows and spread over several blocks, and that
goes the ways that are meant for many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from tracker.core import accounts, cells, ends, log, sparsecells, views

#: The implementations of the loops over a report's entries; the compiled ones need the extra `fast`.
LOOPS = ("numpy", "compiled")


def accounts_of(loops: str) -> type[accounts.Accounts]:
    """Return the implementation of that name; skip the test if it is not installed."""
    if loops == "numpy":
        return accounts.Accounts
    pytest.importorskip("numba", reason="needs the extra `fast`")
    from tracker.core.compiled import CompiledAccounts

    return CompiledAccounts


@contextmanager
def small_pages() -> Iterator[None]:
    """Make pages of two rows, and cells in blocks of two, but for graphs of one segment, which have all.

    Whole columns and pieces of two are read wherever the core tells few from many.
    """
    with (
        mock.patch.object(accounts, "PAGE_BITS", 1),
        mock.patch.object(accounts, "PAGE", 2),
        mock.patch.object(accounts, "DENSE", 1),
        mock.patch.object(sparsecells, "BLOCK", 2),
        mock.patch.object(cells, "_FEW", 0),
        mock.patch.object(ends, "_FEW", 0),
        mock.patch.object(log, "_PIECE", 2),
        mock.patch.object(views, "_MOST_PAGES", 2),
    ):
        yield
