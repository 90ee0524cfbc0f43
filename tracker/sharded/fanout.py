"""One call to each of several servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Answer = TypeVar("Answer")


def at_once(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make all calls in parallel, waits for all, and return their results in order.

    Raises:
        Exception: that of the first call in order that failed; the other calls were made nevertheless.
    """
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(len(calls), "tracker-shard") as pool:
        answers = [pool.submit(call) for call in calls]
    return [answer.result() for answer in answers]


def first_decides(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make the first call and, if it succeeds, all others in parallel, and return their results in order.

    Some calls exclude each other: a run and its successor, a finish and the cancellation of a drain. This way the same
    one of them comes first at all servers: a caller that the first server refuses does not call the others.

    Raises:
        Exception: as `at_once`; if it is the first call's, the others were not made.
    """
    first, *others = calls
    answer = first()
    return [answer, *at_once(others)] if others else [answer]
