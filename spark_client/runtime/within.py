"""Which batch the caller is in: a function of ``foreachBatch`` must not wait for what needs its own batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchInHand:
    """A batch of a tracked query.

    Attributes:
        job: the query's.
        segment: that it reads.
        connected: that segment, those that lead there, and those that can be reached from it.
        epoch: the batch's number.
    """

    job: str
    segment: str
    connected: frozenset[str]
    epoch: int


_in_hand: ContextVar[BatchInHand | None] = ContextVar("batch_in_hand", default=None)


def batch_in_hand() -> BatchInHand | None:
    """Return the batch that this thread processes; None: it is in none."""
    return _in_hand.get()


@contextmanager
def within(batch: BatchInHand) -> Iterator[None]:
    """This thread processes a batch meanwhile."""
    token = _in_hand.set(batch)
    try:
        yield
    finally:
        _in_hand.reset(token)
