"""Contradictions in a history."""

from __future__ import annotations

from dataclasses import dataclass

from tests.checker.history import Operation


@dataclass(frozen=True)
class Finding:
    """Something that must not be.

    Args:
        kind: in a few words, the same for all of its kind.
        text: what it is, for people.
        operations: that show it.
    """

    kind: str
    text: str
    operations: tuple[Operation, ...] = ()
