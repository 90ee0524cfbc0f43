"""One call to each of several servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Answer = TypeVar("Answer")


def at_once(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Makes all calls side by side and waits for all.

    Raises:
        Exception: what the first of those that failed has raised; the others were made nevertheless.
    """
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(len(calls), "tracker-shard") as pool:
        answers = [pool.submit(call) for call in calls]
    return [answer.result() for answer in answers]


def first_decides(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Makes the first call and, when it has succeeded, all others side by side.

    So of two callers that exclude each other (a run and the one that supersedes it, a finish and a drain's
    cancellation) the same one comes first for all servers: who was refused by the first asks no other.

    Raises:
        Exception: as `at_once`; if it is the first call's, the others were not made.
    """
    first, *others = calls
    answer = first()
    return [answer, *at_once(others)] if others else [answer]
