"""Labels for plain Python programs: 64-bit numbers that look random and depend on an element's lineage alone."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

Step: TypeAlias = str | bytes | int | float | bool | None


def label(*lineage: Step, seed: int = 0) -> int:
    """Return the label of one element on one hop.

    A label must be the same whenever the element is made again (only then does a replay cancel out) and different for
    every other element and hop. So give everything that leads to the element, including the hop: where it was read, at
    which position, which of its parent's children it is, and the segment that it travels now.

    The value is BLAKE2b (RFC 7693) with an 8-byte digest, taken little-endian, over the lineage's values, each
    preceded by its type and length, so that ``("ab", "c")`` and ``("a", "bc")`` differ, as do ``1``, ``True`` and
    ``"1"``. It does not depend on the process, the machine or `PYTHONHASHSEED`. A call takes about a microsecond.

    Args:
        lineage: at least one value.
        seed: distinguishes elements that would otherwise have the same lineage, such as those of two jobs that read the
            same topic; 0 to 2**64 - 1.

    Returns:
        A number from 0 to 2**64 - 1.

    Raises:
        TypeError: the lineage is empty, or a value has a type whose form could change between processes.

    >>> label("orders", 0, 4711, "parsed") == label("orders", 0, 4711, "parsed")
    True
    >>> label("orders", 0, 4711, "parsed") == label("orders", 0, 4711, "parsed", seed=1)
    False
    """
    if not lineage:
        raise TypeError("a label needs a lineage; give at least one value")
    form = b"".join([_form(step) for step in lineage])
    digest = hashlib.blake2b(form, digest_size=8, salt=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little")


def _form(step: Step) -> bytes:
    """Return a value's type, length and bytes."""
    match step:
        case str():
            value = step.encode()
            return b"s%d:%b" % (len(value), value)
        case bytes():
            return b"y%d:%b" % (len(step), step)
        case bool():
            return b"b1:%d" % step
        case int():
            value = b"%d" % step
            return b"i%d:%b" % (len(value), value)
        case float():
            value = step.hex().encode()
            return b"f%d:%b" % (len(value), value)
        case None:
            return b"n0:"
    raise TypeError(f"a label cannot be made of {type(step).__name__}; use str, bytes, int, float, bool or None")
