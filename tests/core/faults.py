"""A fault that only `invariants` can see: nothing that is answered or announced depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tracker.core.job import Job
from tracker.core.producers import Epoch, Producer


@contextmanager
def staged_is_miscounted() -> Iterator[None]:
    """Have commits and revocations still count as staged."""
    unstage = Job.unstage

    def without_counting(job: Job, producer: Producer, number: int) -> Epoch:
        units, entries = job.staged_units, job.staged_entries
        epoch = unstage(job, producer, number)
        job.staged_units, job.staged_entries = units, entries
        return epoch

    with mock.patch.object(Job, "unstage", without_counting):
        yield
