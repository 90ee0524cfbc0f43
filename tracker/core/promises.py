"""Incoming promises: who owns the front, what they contradict, and their form once names are resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tracker.contract.commands import Report
from tracker.contract.promises import Close, Expect, Finish, Frontier, Promise
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import Mode

from .accounts import Rows
from .fronts import Front
from .job import Job
from .producers import CloseOf, ExpectOf, FinishOf, FrontierOf, Pledge, Producer, StagedReport
from .validation import Resolved, end_time_conflict

Kept: TypeAlias = tuple[int, list[StagedReport]]  #: an epoch, and those of its reports that its manifest keeps


def check_promise(
    job: Job, producer: Producer, promise: Promise, report: Report | None = None, resolved: Resolved | None = None
) -> None:
    """A promise's front, its owner, and the end time of what it closes."""
    if promise_front := promise.front:
        front = job.fronts.by_name.get(promise_front)
        if front is None:
            fronts = ", ".join(job.fronts.by_name) or "none"
            raise Refused(Refusal.UNKNOWN_FRONT, f"{promise_front!r} is not one of the job's fronts: {fronts}")
        if front.owner is not None and front.owner != producer.name:
            if front.owned_in == job.spec.deployment:
                raise Refused(
                    Refusal.FRONT_OWNED,
                    f"front {front.name!r} belongs to producer {front.owner!r}; only its owner may promise for it",
                )
            if (owner := job.producers.get(front.owner)) is not None and owner.staged:
                raise Refused(
                    Refusal.EPOCH_STAGED,
                    f"front {front.name!r} belonged to producer {owner.name!r} of an earlier deployment, which has "
                    f"epochs {sorted(owner.staged)} staged; commit or revoke them first",
                )
    elif isinstance(promise, Close) and promise.only_without_fronts and job.fronts:
        raise Refused(
            Refusal.UNKNOWN_FRONT,
            "a close without a front would close the substream for all of the job's fronts; name one of: "
            f"{', '.join(job.fronts.by_name)}. The only source of the substream may close it for all "
            "(only_without_fronts = false; front=None in Python)",
        )
    if isinstance(promise, Expect):
        if promise.segment not in job.graph.number:
            segments = ", ".join(job.graph.names)
            raise Refused(Refusal.UNKNOWN_SEGMENT, f"segment {promise.segment!r} is not one of the job's: {segments}")
        if not job.fronts.by_name[promise.front].feeds(job.graph.number[promise.segment]):
            raise Refused(
                Refusal.MALFORMED,
                f"front {promise.front!r} does not feed segment {promise.segment!r}; name one that it feeds",
            )
    if (
        isinstance(promise, Close | Expect)
        and report is not None
        and resolved is not None
        and promise.substream_index in resolved.conflicts
    ):
        raise end_time_conflict(report, promise.substream_index, resolved, job.accounts)


def check_not_handed_over(job: Job) -> None:
    """Refuse a promise between a deployment that was handed over and the next one."""
    if job.drain.handed_over:
        raise Refused(
            Refusal.DRAINED,
            f"deployment {job.spec.deployment!r} was handed over and takes no more promises; define the next "
            "deployment, and promise there",
        )


def check_expectations(
    job: Job, producer: Producer, promises: Sequence[Promise], resolved: Resolved, keep: Kept | None = None
) -> None:
    """Refuse a number that differs from the last accepted one, unless it revises a number that may still change.

    Args:
        producer: whose promises these are.
        promises: of a report or a commit.
        resolved: the names in it.
        keep: an epoch, and the only reports of it that will count.
    """
    expects = [promise for promise in promises if isinstance(promise, Expect)]
    if not expects:
        return
    new = {place: -1 - at for at, place in enumerate(resolved.new)} | {p: -1 - at for p, at in resolved.again}
    recorded: dict[tuple[int, int, str], int] = {}
    if producer.mode is Mode.STAGED:
        for number in sorted(producer.staged):
            pieces = keep[1] if keep is not None and keep[0] == number else producer.staged[number].pieces
            for pledge in (pledge for piece in pieces for pledge in piece.pledges):
                if isinstance(pledge, ExpectOf):
                    recorded[pledge.row, pledge.segment, pledge.front] = pledge.elements
    for promise in expects:
        row = new.get(promise.substream_index, int(resolved.rows[promise.substream_index]))
        segment = job.graph.number[promise.segment]
        last, has_ended = recorded.get((row, segment, promise.front)), False
        if row >= 0:
            has_ended = bool(job.accounts.reason(row, segment))
            if last is None:
                last = job.closing.expectations.of(job.accounts.id_of(row)).get((segment, promise.front))
        if last is not None and last != promise.elements and (has_ended or not promise.revise):
            why = "the substream has ended there" if has_ended else "set revise if the number has changed"
            raise Refused(
                Refusal.EXPECT_CONFLICT,
                f"front {promise.front!r} expects {last} elements of a substream on segment {promise.segment!r}, "
                f"not {promise.elements}; {why}",
            )
        recorded[row, segment, promise.front] = promise.elements


def pledge_of(job: Job, promise: Promise, rows: Rows) -> Pledge:
    """Return a promise with its names resolved.

    Args:
        rows: of the substreams that its report or commit names.
    """
    if isinstance(promise, Frontier):
        return FrontierOf(promise.front, promise.scope, promise.time)
    if isinstance(promise, Finish):
        return FinishOf(promise.front)
    if isinstance(promise, Expect):
        segment, row = job.graph.number[promise.segment], int(rows[promise.substream_index])
        return ExpectOf(promise.front, row, segment, promise.elements, promise.revise)
    return CloseOf(promise.front, int(rows[promise.substream_index]))


def finish_front(job: Job, name: str) -> None:
    """An operator finishes a front whose owner will never report again."""
    front = check_finish_front(job, name)
    job.wake([front])
    job.keep_promises([FinishOf(name)])
    job.evaluate()


def check_finish_front(job: Job, name: str) -> Front:
    """Refuse to finish an unknown front, one that was handed over, or one whose owner has an epoch staged."""
    front = job.fronts.by_name.get(name)
    if front is None:
        fronts = ", ".join(job.fronts.by_name) or "none"
        raise Refused(Refusal.UNKNOWN_FRONT, f"{name!r} is not one of the job's fronts: {fronts}", code="NOT_FOUND")
    check_not_handed_over(job)
    owner = job.producers.get(front.owner) if front.owner is not None else None
    if owner is not None and owner.staged:
        raise Refused(
            Refusal.EPOCH_STAGED,
            f"the owner {owner.name!r} of front {name!r} has epochs {sorted(owner.staged)} staged; commit or "
            "forget them first",
        )
    return front
