"""A snapshot's form: what is encoded comes back, and an array has the same bytes whether it was copied or not."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tracker.journal import snapshots
from tracker.journal.snapshots import decode, encode

SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9)


@given(arrays.arrays(st.sampled_from([np.uint64, np.int32, np.bool_]), SHAPES), st.booleans(), st.booleans())
def test_an_array_comes_back_whether_it_is_copied_or_not(array: Any, transposed: bool, copied: bool) -> None:
    array = array.T if transposed else array
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "_LARGE", 1 << 16 if copied else 0)
        back = decode(b"".join(encode({"column": array, "among": [1, array]})))
    for found in (back["column"], back["among"][1]):
        assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
        assert found.flags.writeable


def test_a_large_array_has_the_bytes_that_msgpack_would_give_it() -> None:
    state = {"column": np.arange(1 << 16).reshape(256, 256).T}
    assert b"".join(encode(state)) == msgpack.packb(state, default=snapshots._encode_array)


def test_a_large_array_is_not_copied() -> None:
    column = np.arange(1 << 16)
    pieces = list(encode({"column": column}))
    assert any(isinstance(piece, memoryview) and np.shares_memory(np.frombuffer(piece), column) for piece in pieces)


def test_what_no_snapshot_can_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="a state holds a set"):
        list(encode({"names": {1}}))
    with pytest.raises(TypeError, match="a state holds a ndarray"):
        list(encode({"names": np.array([object()] * (1 << 16))}))
