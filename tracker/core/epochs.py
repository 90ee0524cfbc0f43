"""Runs and epochs: who may report, and what becomes of an epoch when it is committed or revoked.

The first message that states where a run starts settles what the runs before it left: what lies before was committed,
the rest never will be. In STAGED mode an epoch takes effect when it is committed. In IMMEDIATE mode it has taken effect
already: a commit makes its promises final, and a revocation takes out what it did, and keeps what it touched from
ending until the epoch is made again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracker.contract.answers import Opened
from tracker.contract.commands import CloseProducer, OpenProducer
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import Mode

from .accounts import Entries
from .job import NO_ENTRIES, Job, or_none
from .producers import FinishOf, FrontierOf, Producer
from .validation import check_name


def open_producer(job: Job, command: OpenProducer) -> Opened:
    """Make a run current."""
    producer = check_open(job, command)
    if producer is None:
        producer = Producer(command.producer, job.numbers.of(command.producer), command.mode, job.now)
    elif command.run == producer.run:
        return Opened(or_none(producer.committed))
    job.producers[command.producer] = producer
    producer.open(command.run, command.seals)
    producer.last_contact = job.now
    if command.resume_epoch is not None:
        settle(job, producer, command.resume_epoch)
    return Opened(or_none(producer.committed))


def check_open(job: Job, command: OpenProducer) -> Producer | None:
    """Refuse a run that cannot be made current; return its producer, if it is known."""
    check_name("producer", command.producer)
    check_name("run", command.run)
    producer = job.producers.get(command.producer)
    if producer is not None:
        if command.run in producer.past:
            producer.check_current(command.run)
        if command.mode is not producer.mode:
            raise Refused(
                Refusal.MODE_CONFLICT,
                f"producer {producer.name!r} was opened with mode {producer.mode.name}; forget it first, or use "
                "another name",
            )
    if command.mode is Mode.IMMEDIATE and job.spec.committed_ends:
        raise Refused(
            Refusal.MODE_CONFLICT,
            f"job {job.spec.job!r} has committed_ends, so what is not committed may bring no end; open producer "
            f"{command.producer!r} with mode STAGED",
        )
    if producer is not None and command.run != producer.run:
        _check_resume(producer, command.resume_epoch)
    return producer


def _check_resume(producer: Producer, resume_epoch: int | None) -> None:
    if resume_epoch is not None and resume_epoch <= producer.committed:
        raise Refused(
            Refusal.EPOCH_REWOUND,
            f"the run is to resume at epoch {resume_epoch}, but producer {producer.name!r} has already committed "
            f"epoch {producer.committed}; if the engine lost its progress, report under a new producer name",
        )


def close_producer(job: Job, command: CloseProducer) -> None:
    """Close a run."""
    producer = check_close(job, command)
    producer.last_contact = job.now
    if command.resume_epoch is not None:
        settle(job, producer, command.resume_epoch)
    producer.fence()


def check_close(job: Job, command: CloseProducer) -> Producer:
    """Refuse to close a run that is not current; return its producer."""
    producer = job.producer(command.producer)
    producer.check_current(command.run)
    _check_resume(producer, command.resume_epoch)
    return producer


def fence_all(job: Job, stand_in: str) -> None:
    """Fence every open run, since its reporter was told that what is lost had taken effect.

    Args:
        stand_in: a run that nobody has. It takes the place of each, where a drain waits for runs, until the producer
            opens another.
    """
    waited_for = job.drain.under_way and (not job.fronts or job.drain.hands_over)
    for producer in job.producers.values():
        if producer.run is not None and waited_for:
            producer.open(stand_in, seals=False)
        else:
            producer.fence()


def forget_producer(job: Job, name: str) -> None:
    """Forget a producer, with what it has staged."""
    producer = job.producer(name)
    revoke(job, producer, sorted(producer.staged))
    for front in job.fronts:
        if front.owner == name:
            front.owner = None
    _look_at(job, job.provisional.release(name))
    del job.producers[name]
    job.evaluate()
    job.numbers.collect(job.producers, lambda: job.accounts.cells.used_producers(job.accounts.in_use(0)))


def settle(job: Job, producer: Producer, start: int) -> None:
    """Decide the epochs that earlier runs left: those before `start` were committed, the others never will be.

    Called when a run first reports where it starts, and when it closes if it reports where the next one will start.
    """
    producer.settled = True
    for number in sorted(producer.staged):
        epoch = producer.staged[number]
        if number < start and (epoch.sealed or not epoch.sealing):
            _commit_one(job, producer, number)
        else:
            revoke(job, producer, [number])
            if number < start:
                _count_as_committed(job, producer, number)
    _count_as_committed(job, producer, start - 1)


def _count_as_committed(job: Job, producer: Producer, number: int) -> None:
    producer.committed = max(number, producer.committed)
    _release_committed(job, producer)


def commit_up_to(job: Job, producer: Producer, number: int) -> None:
    """Commit what is staged up to an epoch, and count everything up to it as committed."""
    for each in sorted(staged for staged in producer.staged if staged <= number):
        _commit_one(job, producer, each)
    _count_as_committed(job, producer, number)


def _commit_one(job: Job, producer: Producer, number: int) -> None:
    epoch = job.unstage(producer, number)
    producer.committed = max(number, producer.committed)
    pledges = [pledge for piece in epoch.pieces for pledge in piece.pledges]
    if producer.mode is Mode.IMMEDIATE:
        job.keep_promises(pledge for pledge in pledges if isinstance(pledge, FrontierOf | FinishOf))
        job.provisional.commit((producer.name, number))
        _release_committed(job, producer)
    else:
        entries = [piece.entries for piece in epoch.pieces if len(piece.entries.rows)]
        job.apply(producer, Entries.concatenate(entries) if entries else NO_ENTRIES, pledges)


def revoke(job: Job, producer: Producer, numbers: Iterable[int]) -> None:
    """Revoke epochs. In IMMEDIATE mode their effects are undone, and what they touched awaits a recommit."""
    for number in numbers:
        epoch = job.unstage(producer, number)
        if producer.mode is Mode.IMMEDIATE:
            job.provisional.revoke((producer.name, number), epoch.folded, job.now)


def _release_committed(job: Job, producer: Producer) -> None:
    if _look_at(job, job.provisional.release(producer.name, producer.committed)):
        job.evaluate()


def _look_at(job: Job, rows: list[int]) -> bool:
    if rows:
        job.changes.look_at(np.array(rows))
    return bool(rows)
