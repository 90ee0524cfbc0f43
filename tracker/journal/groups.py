"""A group of records as bytes, with a checksum that covers its place in the log."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from .interface import Record

_HEAD = struct.Struct("<HqI")  # of a record: method, time, length


def pack(records: Sequence[Record]) -> bytes:
    """Return the records of a group as bytes.

    >>> list(unpack(pack([Record(1, 5, b"a"), Record(2, 6, b"")])))
    [Record(method=1, at=5, payload=b'a'), Record(method=2, at=6, payload=b'')]
    """
    return b"".join(part for method, at, payload in records for part in (_HEAD.pack(method, at, len(payload)), payload))


def unpack(data: bytes) -> Iterator[Record]:
    """Return the records of a group, in order."""
    at = 0
    while at < len(data):
        method, time_ns, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Record(method, time_ns, data[at : at + length])
        at += length


def checksum(first: int, count: int, data: bytes) -> int:
    """Return the checksum of a group.

    Args:
        first: the number of its first record.
        count: how many records it has.
        data: what `pack` made of them.
    """
    return zlib.crc32(data, zlib.crc32(f"{first},{count}".encode()))
