"""Accounts whose loops over a report's entries are compiled, in the place of many passes over columns by numpy.

`Accounts` is the reference and the fallback: each method here gives what the same method gives there, and the
differential tests hold one against the other. A loop asks for the cache lines of the entries ahead while it works on
one, so that it waits for memory once for many entries, and not once for each.

The loops are compiled when this module is imported. Numba keeps them in files, so that an import takes some tenths of
a second from the second one on. The import fails where numba, the extra `fast`, is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from . import accounts
from .accounts import Accounts
from .cells import RECEIVED, SENT, U8, WHO, XOR, Entries, Rows
from .lifecycle import CLOSED, KNOWN, NAMED, PARTLY_ENDED, STALLED

_AHEAD = 32  # entries between the one that is folded and the one that is fetched
_SENDER, _RECEIVER = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF << 32)
_SHIFT = np.uint64(32)


def _read(kind: types.Type) -> types.Array:
    """Return the type of a column that is only read: also a view, or a message's bytes, wherever they lie."""
    return types.Array(kind, 1, "A", readonly=True, aligned=False)


def _compiled(*signature: types.Type) -> Callable[[Any], Any]:
    """Return a decorator that compiles a loop now, or takes it from numba's files if any directory can be written."""

    def compiled(loop: Any) -> Any:
        try:
            return njit(*signature, cache=True)(loop)
        except RuntimeError:  # no directory can
            return njit(*signature)(loop)

    return compiled


@intrinsic  # type: ignore[untyped-decorator]
def _fetch(_: Any, column: types.Array, __: types.Integer) -> Any:
    """Have the processor fetch an element that will be written, and go on without it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        offset = builder.mul(builder.extract_value(array.strides, 0), values[1])
        address = builder.add(builder.ptrtoint(array.data, ir.IntType(64)), offset)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        to_write, stays, data = number(1), number(3), number(1)
        builder.call(prefetch, [builder.inttoptr(address, byte), to_write, stays, data])
        return context.get_dummy_value()

    return types.void(column, types.int64), generate


@_compiled(
    types.int64(types.int64[::1], _read(types.uint64), types.int64, types.int64[:], types.int32[::1], types.uint8[::1])
)
def _find(rows, ids, next_id, pages, slot_of_page, flags):  # type: ignore[no-untyped-def]
    """Write the rows of ids, -1 where there is none; `pages` has the bits of a page's number, and the first page."""
    bits, first = np.uint64(pages[0]), pages[1]
    within = (np.uint64(1) << bits) - np.uint64(1)
    for i in range(len(ids)):
        row = np.int64(-1)
        if ids[i] < np.uint64(next_id):
            page = np.int64(ids[i] >> bits) - first
            if 0 <= page < len(slot_of_page) and slot_of_page[page] >= 0:
                found = (np.int64(slot_of_page[page]) << np.int64(bits)) | np.int64(ids[i] & within)
                if flags[found] & NAMED:
                    row = found
        rows[i] = row
    return 0


@_compiled(types.UniTuple(types.int64, 2)(types.uint8[::1], _read(types.int64)))
def _flags_of(flags, rows):  # type: ignore[no-untyped-def]
    """Return the flags that all of some rows have, and those that any has."""
    every, some = 255, 0
    for i in range(len(rows)):
        every &= flags[rows[i]]
        some |= flags[rows[i]]
    return every, some


@_compiled(
    types.UniTuple(types.int64, 3)(
        types.uint64[:, ::1],
        types.int64[:],
        types.uint8[::1],
        types.int64[::1],
        _read(types.int64),
        _read(types.int64),
        _read(types.uint64),
        _read(types.uint64),
        _read(types.uint64),
        types.uint64,
        types.int64,
    )
)
def _fold(words, changed, flags, closed, places, rows, xor, sent, received, mark, now):  # type: ignore[no-untyped-def]
    """Fold entries into the cells at `places`, and date their rows.

    Returns:
        how many rows, written to `closed`, are; by how much the balance and the surplus of all cells have grown.
    """
    count, balance, surplus, last = 0, np.int64(0), np.int64(0), len(places) - 1
    for i in range(len(places)):
        ahead = min(i + _AHEAD, last)
        _fetch(words, places[ahead])
        _fetch(changed, rows[ahead])
        cell, row = words[places[i]], rows[i]
        before = np.int64(cell[SENT] - cell[RECEIVED])
        cell[XOR] ^= xor[i]
        cell[SENT] += sent[i]
        cell[RECEIVED] += received[i]
        after = np.int64(cell[SENT] - cell[RECEIVED])
        balance += np.int64(sent[i] - received[i])
        if before < 0:
            surplus += before
        if after < 0:
            surplus -= after
        who = cell[WHO]
        if sent[i]:
            who = (who & _RECEIVER) | mark
        if received[i]:
            who = (who & _SENDER) | (mark << _SHIFT)
        cell[WHO] = who
        changed[row] = now
        closed[count] = row
        if flags[row] & CLOSED:
            count += 1
    return count, balance, surplus


class CompiledAccounts(Accounts):
    """The substreams of a job, found and folded in by compiled loops."""

    def rows_of(self, ids: U8) -> Rows:
        rows = np.empty(len(ids), np.int64)
        pages = np.array([accounts.PAGE_BITS, self._first_page])
        _find(rows, ids, self.next_id, pages, self._slot_of_page, self.flags)
        return rows

    def unknown(self, rows: Rows) -> Rows:
        every, _ = _flags_of(self.flags, rows)
        return rows[:0] if every & KNOWN else super().unknown(rows)

    def _may_be_late(self, rows: Rows) -> bool:
        every, some = _flags_of(self.flags, rows)
        return not every & KNOWN or bool(some & PARTLY_ENDED)

    def _fold(self, entries: Entries, producer: int, now: int, stalls: bool) -> Rows:
        rows, segments, xor, sent, received = entries
        places = self.cells.places(rows, segments)  # which may make room in `words`
        closed = np.empty(len(rows), np.int64)
        count, balance, surplus = _fold(
            self.cells.words, self.changed, self.flags, closed, places, rows, xor, sent, received, producer + 1, now
        )
        self.cells.count_folded(balance, surplus)
        if stalls:
            self.life.unmark(rows, STALLED)
        return closed[:count]


def use() -> None:
    """Have jobs that are made or loaded from now on, in this process, use the compiled loops."""
    accounts.chosen = CompiledAccounts
