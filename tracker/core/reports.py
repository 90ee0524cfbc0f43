"""Calls of producers: open and close runs, report, commit, and promise.

Each call is checked, settles what earlier runs left, and is kept or takes effect. A call that a `check_…` function
refuses has changed nothing, so it need not be journaled.

The first message that states where a run starts settles what the runs before it left: what lies before was committed,
the rest never will be. In STAGED mode an epoch takes effect when it is committed. In IMMEDIATE mode it has taken effect
already: a commit makes its promises final, and a revocation takes out what it did, and keeps what it touched from
ending until the epoch is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from tracker.contract.commands import (
    AboutSubstream,
    Close,
    CloseProducer,
    Commit,
    Committed,
    Expect,
    Finish,
    FinishFront,
    ForgetProducer,
    Frontier,
    Identities,
    Opened,
    OpenProducer,
    Promise,
    Report,
    Reported,
)
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import DrainState, Mode, Outcome

from .cells import Entries, Rows
from .fronts import Front
from .job import NO_ENTRIES, Job, or_none
from .producers import (
    CloseOf,
    ExpectOf,
    FinishOf,
    FrontierOf,
    IdentitiesOf,
    Number,
    Pledge,
    Producer,
    StagedReport,
    missing_units,
)
from .validation import Resolved, check_name, end_time_conflict, report_of, resolve

Kept: TypeAlias = tuple[int, list[StagedReport]]  #: an epoch, and those of its reports that its manifest keeps


# ---------------------------------------------------------------- reports and commits


def report(job: Job, report: Report, found: Resolved | None = None) -> Reported:
    """Carry out a report of one or more units of an epoch.

    Args:
        found: what a check has looked up: most of the work, which is done again only if rows were given or taken.
    """
    producer, resolved = _check_report(job, report, found)
    if not producer.settled:
        job.contacted(producer)
        _settle(job, producer, report.epoch)
    outcome, duplicates = _outcome(job, producer, report)
    if outcome is Outcome.APPLIED:
        _check_expectations(job, producer, report.promises, resolved)
    job.contacted(producer)
    ids = None
    if outcome is Outcome.APPLIED:
        rows = _enter(job, report, resolved)
        if report.want_ids:
            ids = job.accounts.ids_of(rows[: len(report.names)]).astype(np.uint64)
        _accept(job, producer, report, resolved.segments, rows)
    if report.commit and outcome in (Outcome.APPLIED, Outcome.DUPLICATE):
        _commit_up_to(job, producer, report.epoch)
    return Reported(outcome, duplicates, job.log.last_seq, ids, job.log.log_id)


def check_report(job: Job, report: Report) -> Resolved:
    """Refuse what `report` would refuse without having settled anything; return the report's names, looked up."""
    producer, resolved = _check_report(job, report, None)
    if producer.settled and _outcome(job, producer, report)[0] is Outcome.APPLIED:
        _check_expectations(job, producer, report.promises, resolved)
    return resolved


def _check_report(job: Job, report: Report, found: Resolved | None) -> tuple[Producer, Resolved]:
    producer = job.producer(report.producer)
    producer.check_current(report.run)
    resolved = found
    if resolved is None or not resolved.holds(job.accounts, job.graph, job.log.log_id):
        resolved = resolve(report, job.graph, job.accounts, job.log.log_id)
    for promise in report.promises:
        _check_promise(job, producer, promise, report, resolved)
    return producer, resolved


def _outcome(job: Job, producer: Producer, report: Report) -> tuple[Outcome, tuple[str, ...]]:
    if report.epoch <= producer.committed:
        return Outcome.ALREADY_COMMITTED, ()
    if job.drain.state is DrainState.DRAINED and (report.entry_count or report.promises):
        raise Refused(
            Refusal.DRAINED,
            f"deployment {job.spec.deployment!r} is drained and takes no more entries or promises; define a new "
            "deployment",
        )
    epoch = producer.staged.get(report.epoch)
    if epoch is not None:
        duplicates = tuple(unit for unit in report.units if unit in epoch.units)
        if duplicates:
            everything = len(duplicates) == len(report.units)
            return (Outcome.DUPLICATE, ()) if everything else (Outcome.PARTIAL_DUPLICATE, duplicates)
        if epoch.sealed:
            raise Refused(
                Refusal.SEALED,
                f"epoch {report.epoch} is sealed, and units {list(report.units)} are not in its manifest; "
                "discard the report: the engine has dropped this attempt",
            )
    return Outcome.APPLIED, ()


def _enter(job: Job, report: Report, resolved: Resolved) -> Rows:
    """Give rows to the names that are new; the rows of all substreams of the report."""
    rows = resolved.rows
    if resolved.new:
        new = resolved.new
        scopes = [report.scopes[place] for place in report.scope_index[new].tolist()]
        names = [report.names[place] for place in new]
        added = job.accounts.add(scopes, names, resolved.end_times[new], job.now)
        rows[new] = added
        for place, at in resolved.again:
            rows[place] = added[at]
        job.to_forget.append((job.now, added))
    return rows


def _accept(job: Job, producer: Producer, report: Report, segments: Rows, rows: Rows) -> None:
    entries = Entries(
        rows.take(report.substream_index),  # half the time of `rows[…]`
        segments,
        report.xor,
        report.sent.astype(np.uint64),
        report.received.astype(np.uint64),
    )
    pledges = tuple(_pledge_of(job, promise, rows) for promise in report.promises)
    job.claim(producer, report.promises)
    if producer.mode is Mode.STAGED:
        if report.commit and not any(staged <= report.epoch for staged in producer.staged):
            # The usual case of a plain client: the commit comes with the report, so nothing has to be kept.
            producer.committed = report.epoch
            job.apply(producer, entries, pledges)
            return
        job.stage(producer, report.epoch, StagedReport(tuple(report.units), entries, pledges))
        return
    epoch = job.stage(producer, report.epoch, StagedReport(tuple(report.units), NO_ENTRIES, pledges))
    folded = job.apply(producer, entries, pledges, (producer.name, report.epoch))
    if len(folded.rows):
        epoch.folded.append(folded)
        job.staged_entries += len(folded.rows)


def commit(job: Job, command: Commit) -> Committed:
    """Commit or seal an epoch, and keep a driver's promises."""
    producer, naming, resolved = _check_commit(job, command)
    number = command.epoch
    if number is not None and not producer.settled:
        if command.promises:
            job.contacted(producer)
        _settle(job, producer, number if command.seal else number + 1)
    keep = _check_promises_of_commit(job, producer, command, resolved)
    if resolved is not None:
        job.contacted(producer)
    producer.last_contact = job.now
    if number is not None and number > producer.committed:
        if keep is not None:
            job.keep_only(producer, number, keep)
        if command.seal:
            job.stage(producer, number).sealed = True
        else:
            _commit_up_to(job, producer, number)
    if resolved is not None:
        rows = _enter(job, naming, resolved)
        job.claim(producer, command.promises)
        pledges = [_pledge_of(job, promise, rows) for promise in command.promises]
        job.apply(producer, NO_ENTRIES, pledges)
    return Committed(job.log.last_seq)


def check_commit(job: Job, command: Commit) -> int:
    """Refuse what `commit` would refuse without having settled anything; how many new substreams it names."""
    producer, _, resolved = _check_commit(job, command)
    if producer.settled or command.epoch is None:
        _check_promises_of_commit(job, producer, command, resolved)
    return 0 if resolved is None else len(resolved.new)


def _check_commit(job: Job, command: Commit) -> tuple[Producer, Report, Resolved | None]:
    producer = job.producer(command.producer)
    producer.check_current(command.run)
    _check_commit_message(command)
    naming = report_of(command)
    if not command.promises:
        return producer, naming, None
    resolved = resolve(naming, job.graph, job.accounts, job.log.log_id)
    for promise in command.promises:
        _check_promise(job, producer, promise, naming, resolved)
    _check_not_handed_over(job)
    return producer, naming, resolved


def _check_promises_of_commit(
    job: Job, producer: Producer, command: Commit, resolved: Resolved | None
) -> list[StagedReport] | None:
    """Check the reports and the promises; return the reports that the manifest keeps (None: all)."""
    keep = _check_manifest(producer, command)
    if resolved is not None:
        _check_nothing_later_staged(job, producer, command, keep)
        kept = None if keep is None or command.epoch is None else (command.epoch, keep)
        _check_expectations(job, producer, command.promises, resolved, kept)
    return keep


def _check_commit_message(command: Commit) -> None:
    if command.seal and command.promises:
        raise Refused(
            Refusal.MALFORMED, "a commit that seals cannot make promises; make them with the commit of the epoch"
        )
    if command.epoch is None and (command.seal or command.units is not None):
        raise Refused(Refusal.MALFORMED, "a commit that seals or has a manifest must name its epoch")
    if any(isinstance(promise, Close) for promise in command.promises):
        raise Refused(
            Refusal.MALFORMED, "a commit cannot close substreams by name; report the close as a unit of an epoch"
        )


def _check_manifest(producer: Producer, command: Commit) -> list[StagedReport] | None:
    """Return the reports that the manifest keeps; None if there is none, or the epoch was committed before."""
    number = command.epoch
    if number is None or command.units is None or number <= producer.committed:
        return None
    epoch = producer.staged.get(number)
    if epoch is None:
        if command.units:
            raise missing_units(command.units, number)
        return None
    return epoch.check_manifest(command.units, number, producer.mode)


def _check_nothing_later_staged(job: Job, producer: Producer, command: Commit, keep: list[StagedReport] | None) -> None:
    """Refuse a driver's promise that overtakes what is staged after the epoch that it commits."""
    reach = producer.committed if command.epoch is None else max(command.epoch, producer.committed)
    later = sorted(number for number in producer.staged if number > reach)
    if not later:
        return
    before = [
        (pledge.front, *((pledge.scope, pledge.time) if isinstance(pledge, FrontierOf) else (None, None)))
        for number, epoch in producer.staged.items()
        if number <= reach
        for piece in (epoch.pieces if keep is None or number != command.epoch else keep)
        for pledge in piece.pledges
        if isinstance(pledge, FrontierOf | FinishOf)
    ]
    for promise in command.promises:
        if isinstance(promise, Expect):
            continue
        scope, time = (promise.scope, promise.time) if isinstance(promise, Frontier) else (None, None)
        if job.fronts.would_change(promise.front, scope, time, before):
            raise Refused(
                Refusal.EPOCH_STAGED,
                f"a promise for front {promise.front!r} would overtake the staged epochs {later}; commit them first",
            )


# ---------------------------------------------------------------- runs, and what becomes of their epochs


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
        _settle(job, producer, command.resume_epoch)
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
    producer = check_close(job, command)
    producer.last_contact = job.now
    if command.resume_epoch is not None:
        _settle(job, producer, command.resume_epoch)
    producer.fence()


def check_close(job: Job, command: CloseProducer) -> Producer:
    """Refuse to close a run that is not current; return its producer."""
    producer = job.producer(command.producer)
    producer.check_current(command.run)
    _check_resume(producer, command.resume_epoch)
    return producer


def fence_all(job: Job, stand_in: str) -> None:
    """Fence every open run, since its reporter got the answer that what is lost had taken effect.

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


def forget_producer(job: Job, command: ForgetProducer) -> None:
    """Forget a producer, with what it has staged."""
    producer = job.producer(command.producer)
    revoke(job, producer, sorted(producer.staged))
    for front in job.fronts:
        if front.owner == producer.name:
            front.owner = None
    _look_at(job, job.provisional.release(producer.name))
    del job.producers[producer.name]
    job.evaluate()
    job.numbers.collect(job.producers, lambda: job.accounts.cells.used_producers(job.accounts.in_use(0)))


def _settle(job: Job, producer: Producer, start: int) -> None:
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


def _commit_up_to(job: Job, producer: Producer, number: int) -> None:
    """Commit what is staged up to an epoch, and count everything up to it as committed."""
    for each in sorted(staged for staged in producer.staged if staged <= number):
        _commit_one(job, producer, each)
    _count_as_committed(job, producer, number)


def _commit_one(job: Job, producer: Producer, number: int) -> None:
    epoch = job.unstage(producer, number)
    producer.committed = max(number, producer.committed)
    pledges = epoch.pledges
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


# ---------------------------------------------------------------- promises


def _check_promise(job: Job, producer: Producer, promise: Promise, report: Report, resolved: Resolved) -> None:
    """Check a promise's front, its owner, and the end time of what it closes."""
    if promise.front:
        front = job.fronts.find(promise.front)
        if front.owner is not None and front.owner != producer.name:
            if front.owned_in == job.spec.deployment:
                raise Refused(
                    Refusal.FRONT_OWNED,
                    f"front {front.name!r} belongs to producer {front.owner!r}; only its owner may promise for it",
                )
            if (owner := job.owner(front)) is not None and owner.staged:
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
    if isinstance(promise, Expect | Identities) and not job.fronts.by_name[promise.front].feeds(
        job.graph.place(promise.segment)
    ):
        raise Refused(
            Refusal.MALFORMED,
            f"front {promise.front!r} does not feed segment {promise.segment!r}; name one that it feeds",
        )
    if isinstance(promise, AboutSubstream) and promise.substream_index in resolved.conflicts:
        raise end_time_conflict(report, promise.substream_index, resolved, job.accounts)


def _check_not_handed_over(job: Job) -> None:
    """Refuse a promise between a deployment that was handed over and the next one."""
    if job.drain.handed_over:
        raise Refused(
            Refusal.DRAINED,
            f"deployment {job.spec.deployment!r} was handed over and takes no more promises; define the next "
            "deployment, and promise there",
        )


def _check_expectations(
    job: Job, producer: Producer, promises: Sequence[Promise], resolved: Resolved, keep: Kept | None = None
) -> None:
    """Refuse a number that differs from the last accepted one, unless it revises a number that may still change.

    Args:
        producer: whose promises these are.
        keep: an epoch, and the only reports of it that will count.
    """
    expects = [promise for promise in promises if isinstance(promise, Expect)]
    if not expects:
        return
    new = {place: -1 - at for at, place in enumerate(resolved.new)} | {p: -1 - at for p, at in resolved.again}
    recorded: dict[tuple[int, int, str], Number] = {}
    if producer.mode is Mode.STAGED:
        for number in sorted(producer.staged):
            pieces = keep[1] if keep is not None and keep[0] == number else producer.staged[number].pieces
            for pledge in (pledge for piece in pieces for pledge in piece.pledges):
                if isinstance(pledge, ExpectOf):
                    recorded[pledge.row, pledge.segment, pledge.front] = pledge.number
    for promise in expects:
        row = new.get(promise.substream_index, int(resolved.rows[promise.substream_index]))
        segment = job.graph.number[promise.segment]
        last, has_ended = recorded.get((row, segment, promise.front)), False
        if row >= 0:
            has_ended = bool(job.accounts.reason(row, segment))
            if last is None:
                last = job.closing.expectations.of(job.accounts.id_of(row)).get((segment, promise.front))
        promised = Number.of(promise.elements, promise.xor)
        if last is not None and last != promised and (has_ended or not promise.revise):
            why = "the substream has ended there" if has_ended else "set revise if the number has changed"
            others = " and others" if last.elements == promised.elements else ""
            raise Refused(
                Refusal.EXPECT_CONFLICT,
                f"front {promise.front!r} expects {last.elements} elements of a substream on segment "
                f"{promise.segment!r}, not {promised.elements}{others}; {why}",
            )
        recorded[row, segment, promise.front] = promised


def _pledge_of(job: Job, promise: Promise, rows: Rows) -> Pledge:
    """Return a promise with its names resolved."""
    if isinstance(promise, Frontier):
        return FrontierOf(promise.front, promise.scope, promise.time)
    if isinstance(promise, Finish):
        return FinishOf(promise.front)
    if isinstance(promise, Expect):
        segment, row = job.graph.number[promise.segment], int(rows[promise.substream_index])
        return ExpectOf(promise.front, row, segment, promise.elements, promise.revise, promise.xor)
    if isinstance(promise, Identities):
        segment, row = job.graph.number[promise.segment], int(rows[promise.substream_index])
        return IdentitiesOf(promise.front, row, segment, promise.xor)
    return CloseOf(promise.front, int(rows[promise.substream_index]))


def finish_front(job: Job, command: FinishFront) -> None:
    """Finish a front, for an operator, whose owner will never report again."""
    front = check_finish_front(job, command)
    job.wake([front])
    job.break_silence(front)
    job.keep_promises([FinishOf(front.name)])
    job.evaluate()


def check_finish_front(job: Job, command: FinishFront) -> Front:
    """Refuse to finish an unknown front, one that was handed over, or one whose owner has an epoch staged."""
    front = job.fronts.find(command.front, code="NOT_FOUND")
    _check_not_handed_over(job)
    owner = job.owner(front)
    if owner is not None and owner.staged:
        raise Refused(
            Refusal.EPOCH_STAGED,
            f"the owner {owner.name!r} of front {front.name!r} has epochs {sorted(owner.staged)} staged; commit or "
            "forget them first",
        )
    return front
