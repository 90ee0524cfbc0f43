"""A job in numbers that are at hand, however many substreams it has."""

from __future__ import annotations

import heapq

from tracker.contract.figures import FrontAge, JobFigures, Tally
from tracker.contract.values import Reason

from .frontgroups import Front
from .job import Job


def tally_of(job: Job) -> Tally:
    """Return what the job has announced since the process started, and how much was late in all."""
    ends = job.ends_announced
    return Tally(
        ends[Reason.COMPLETE.number], ends[Reason.EXPIRED.number], ends[Reason.ABANDONED.number], job.late_reports
    )


def figures_of(job: Job, most_fronts: int) -> JobFigures:
    """Return a job's numbers, with the ages of at most so many fronts."""
    accounts = job.accounts
    unfinished = job.fronts.unfinished()
    oldest = heapq.nsmallest(most_fronts, unfinished, key=_since)
    return JobFigures(
        open_substreams=accounts.open,
        incomplete_substreams=job.closing.expectations.shortfall()[0] if job.closing.expectations else 0,
        staged_substreams=accounts.staged,
        staged_epochs=job.count_staged(),
        cells=accounts.cell_count,
        tombstones=len(job.tombstones),
        events=job.log.kept,
        retained_events=len(job.log.retained),
        last_seq=job.log.last_seq,
        segments=job.graph.names,
        drain=job.drain.state,
        producers=len(job.producers),
        idle_fronts=sum(front.idle for front in unfinished),
        fronts=tuple(FrontAge(front.name, _since(front)) for front in oldest),
        other_fronts=len(unfinished) - len(oldest),
    )


def _since(front: Front) -> int:
    return front.last_contact if front.last_promise is None else front.last_promise
