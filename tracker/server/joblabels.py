"""The labels of jobs in metrics: a bounded number, whatever jobs there are and whatever they are called.

Each series costs memory in whoever scrapes, for as long as it keeps data. So only so many jobs have series of their
own: the first that there are. What the others count is summed under one label. A job keeps its label until it is
deleted, so a counter never changes its label, and never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

OTHERS = "(other)"  #: for what has no label of its own; no job can be called so


class JobLabels:
    """Labels of jobs.

    Args:
        most: how many jobs get one of their own.
        exists: whether there is a job; callers may name others, which get none.

    >>> labels = JobLabels(1, lambda job: job != "unknown")
    >>> labels.of("unknown"), labels.of("a"), labels.of("b"), labels.of("a")
    ('(other)', 'a', '(other)', 'a')
    >>> labels.keep(["b"])
    ['a']
    >>> labels.of("b")
    'b'
    """

    def __init__(self, most: int, exists: Callable[[str], bool]) -> None:
        self._most = most
        self._exists = exists
        self._own: set[str] = set()

    def of(self, job: str) -> str:
        """Return a job's label."""
        if job in self._own:
            return job
        if len(self._own) < self._most and self._exists(job):
            self._own.add(job)
            return job
        return OTHERS

    def keep(self, jobs: Iterable[str]) -> list[str]:
        """Take the labels of all jobs but these, and return them."""
        gone = self._own.difference(jobs)
        self._own -= gone
        return list(gone)


def escaped(name: str) -> str:
    """Return the label of a segment or a front, which must not be taken for the sum of the others.

    >>> escaped("orders"), escaped("(other)"), escaped("((other))")
    ('orders', '((other))', '(((other)))')
    """
    return f"({name})" if name.strip("()") == "other" and name.startswith("(") and name.endswith(")") else name
