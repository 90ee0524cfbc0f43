"""Columns of numbers, to and from the wire, without touching each number.

Reading needs nothing special: the contract's own messages give their packed columns to numpy in one piece
(`unpack_u4` and its like). Filling such a column does cost a step for each number, 60 ns and more; so writers use the
messages of `columns_pb2`, which declare the packed columns as bytes and make the same wire form. They are for writing
only: a legal writer may split a column or not pack it at all, and read as bytes it would lose numbers.

This module must never give a meaning to what it carries.

    >>> from tracker.wire.gen import columns_pb2, tracker_pb2
    >>> data = columns_pb2.ReportRequest(job="flights", xor=pack_u8([5, 7])).SerializeToString()
    >>> unpack_u8(tracker_pb2.ReportRequest.FromString(data).xor)
    array([5, 7], dtype=uint64)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tracker.contract.values import I8, U4, U8

_FEW = 48  # up to so many numbers, one by one is quicker


def pack_u4(numbers: ArrayLike) -> bytes:
    """Return a column of 32-bit numbers for a field of `columns_pb2`."""
    return np.asarray(numbers, "<u4").tobytes()


def pack_u8(numbers: ArrayLike) -> bytes:
    """Return a column of 64-bit numbers for a field of `columns_pb2`."""
    return np.asarray(numbers, "<u8").tobytes()


def pack_i8(numbers: ArrayLike) -> bytes:
    """Return a column of signed 64-bit numbers for a field of `columns_pb2`."""
    return np.asarray(numbers, "<i8").tobytes()


def unpack_u4(field: Sequence[int]) -> U4:
    """Return the numbers of a packed 32-bit field of `tracker_pb2`, copied once."""
    return np.asarray(field, np.uint32) if len(field) > _FEW else np.fromiter(field, np.uint32, len(field))


def unpack_u8(field: Sequence[int]) -> U8:
    """Return the numbers of a packed 64-bit field of `tracker_pb2`, copied once."""
    return np.asarray(field, np.uint64) if len(field) > _FEW else np.fromiter(field, np.uint64, len(field))


def unpack_i8(field: Sequence[int]) -> I8:
    """Return the numbers of a packed signed 64-bit field of `tracker_pb2`, copied once."""
    return np.asarray(field, np.int64) if len(field) > _FEW else np.fromiter(field, np.int64, len(field))
