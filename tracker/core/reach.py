"""Upper bound, quick to find, on the rows of a job that a command may touch.

With it, a server can separate the many commands that take no time from the few that may take long. It decides nothing.
"""

from __future__ import annotations

from tracker.contract.commands import (
    Abandon,
    CancelDrain,
    Command,
    Commit,
    DefineJob,
    Drain,
    OpenProducer,
    Recovered,
    Report,
)
from tracker.contract.promises import Close as CloseByName
from tracker.contract.promises import Expect
from tracker.contract.values import Mode

from .job import Job
from .producers import Producer

_SCANNED = 50  # rows that a scan over columns passes in the time in which one is looked at by itself


def of_command(job: Job | None, command: Command) -> int:
    """Return how many rows of a job a command may touch, at most or nearly so."""
    if isinstance(command, Report):
        named = len(command.xor) + 2 * len(command.names) + len(command.substream_ids) + len(command.promises)
        if job is None:
            return named
        producer = job.producers.get(command.producer)
        if producer is None:
            return named
        at_once = command.commit or producer.mode is Mode.IMMEDIATE
        if at_once and any(not isinstance(promise, CloseByName | Expect) for promise in command.promises):
            named += job.accounts.open
        if producer.staged and (command.commit or not producer.settled):
            named += _staged(job, producer)
        return named * max(1, len(job.fronts.groups))  # what is new, and what is promised, is looked at in each
    if isinstance(command, DefineJob):
        spec = command.spec
        size = 4 * len(spec.segments) + len(spec.fronts) + len(spec.front_segments) * len(spec.segments) // _SCANNED
        return size if job is None or spec.deployment == job.spec.deployment else size + _all(job)
    if job is None or isinstance(command, Drain | CancelDrain | Recovered):
        return 0
    if isinstance(command, Commit):
        producer = job.producers.get(command.producer)
        if producer is None:
            return 0
        count = len(command.units or ()) + len(command.promises)
        moves = any(not isinstance(promise, Expect) for promise in command.promises)
        count *= max(1, len(job.fronts.groups))
        return count + _staged(job, producer) + (job.accounts.open if moves else 0)
    if isinstance(command, OpenProducer):
        producer = job.producers.get(command.producer)
        return _staged(job, producer) if producer is not None and command.resume_epoch is not None else 0
    if isinstance(command, Abandon):
        return 1
    return _all(job)


def of_scan(job: Job) -> int:
    """Return what it costs to pass over all that a job holds, in rows looked at one by one."""
    return len(job.accounts.flags) // _SCANNED + len(job.producers) + len(job.fronts.by_name)


def of_status(job: Job) -> int:
    """Return what it costs to describe a job, likewise: only in a hand-over are its substreams looked at."""
    fronts = len(job.fronts.by_name)
    size = len(job.producers) + fronts + fronts * len(job.fronts.scoped) // 20
    return size + of_scan(job) if job.drain.hands_over else size


def _all(job: Job) -> int:
    return job.accounts.open + sum(_staged(job, producer) for producer in job.producers.values())


def _staged(job: Job, producer: Producer) -> int:
    """Return the rows of staged epochs, and what their promises may end."""
    if not producer.staged:
        return 0
    pieces = [piece for epoch in producer.staged.values() for piece in epoch.pieces]
    count = len(pieces) + sum(len(piece.entries.rows) for piece in pieces)
    return count + (job.accounts.open if any(piece.pledges for piece in pieces) else 0)
