"""Requests written byte by byte, for what no client makes."""

from __future__ import annotations


def field(number: int, content: bytes = b"") -> bytes:
    """Return a length-delimited field of a message, as it is on the wire."""
    head = b""
    for value in (number << 3 | 2, len(content)):
        while value > 127:
            head += bytes([value & 127 | 128])
            value >>= 7
        head += bytes([value])
    return head + content
