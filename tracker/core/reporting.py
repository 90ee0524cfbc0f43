"""Reports and commits: each is checked, settles what earlier runs left, and is kept or takes effect.

What a `check_…` function refuses has changed nothing, so it need not be journaled.
"""

from __future__ import annotations

import numpy as np

from tracker.contract.answers import Committed, Reported
from tracker.contract.commands import Commit, Report
from tracker.contract.promises import Close, Expect, Frontier
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import DrainState, Mode, Outcome

from . import epochs, promises
from .accounts import Entries, Rows
from .job import NO_ENTRIES, Job
from .producers import FinishOf, FrontierOf, Producer, StagedReport, check_absent
from .validation import Naming, Resolved, report_of, resolve


def report(job: Job, report: Report, naming: Naming | None = None) -> Reported:
    """Carry out a report of one or more units of an epoch.

    Args:
        naming: what a check has looked up: most of the work, which is done again only if rows were given or taken.
    """
    producer, resolved = _check_report(job, report, naming)
    if not producer.settled:
        job.contacted(producer)
        epochs.settle(job, producer, report.epoch)
    outcome, duplicates = _outcome(job, producer, report)
    if outcome is Outcome.APPLIED:
        promises.check_expectations(job, producer, report.promises, resolved)
    job.contacted(producer)
    ids = None
    if outcome is Outcome.APPLIED:
        rows = _enter(job, report, resolved)
        if report.want_ids:
            ids = job.accounts.ids_of(rows[: len(report.names)]).astype(np.uint64)
        _accept(job, producer, report, resolved.segments, rows)
    if report.commit and outcome in (Outcome.APPLIED, Outcome.DUPLICATE):
        epochs.commit_up_to(job, producer, report.epoch)
    return Reported(outcome, duplicates, job.log.last_seq, ids, job.log.log_id)


def check_report(job: Job, report: Report) -> Naming:
    """Refuse what `report` would refuse without having settled anything; return the report's names, looked up."""
    producer, resolved = _check_report(job, report, None)
    if producer.settled and _outcome(job, producer, report)[0] is Outcome.APPLIED:
        promises.check_expectations(job, producer, report.promises, resolved)
    return Naming(resolved, job.accounts, job.accounts.version, job.graph, job.log.log_id)


def _check_report(job: Job, report: Report, naming: Naming | None) -> tuple[Producer, Resolved]:
    producer = job.producer(report.producer)
    producer.check_current(report.run)
    if naming is not None and naming.holds(job.accounts, job.graph, job.log.log_id):
        resolved = naming.resolved
    else:
        resolved = resolve(report, job.graph, job.accounts, job.log.log_id)
    for promise in report.promises:
        promises.check_promise(job, producer, promise, report, resolved)
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
        rows[report.substream_index],
        segments,
        report.xor,
        report.sent.astype(np.uint64),
        report.received.astype(np.uint64),
    )
    pledges = tuple(promises.pledge_of(job, promise, rows) for promise in report.promises)
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
        epochs.settle(job, producer, number if command.seal else number + 1)
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
            epochs.commit_up_to(job, producer, number)
    if resolved is not None:
        rows = _enter(job, naming, resolved)
        job.claim(producer, command.promises)
        pledges = [promises.pledge_of(job, promise, rows) for promise in command.promises]
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
    resolved = resolve(naming, job.graph, job.accounts, job.log.log_id) if command.promises else None
    for promise in command.promises:
        promises.check_promise(job, producer, promise, naming, resolved)
    if command.promises:
        promises.check_not_handed_over(job)
    return producer, naming, resolved


def _check_promises_of_commit(
    job: Job, producer: Producer, command: Commit, resolved: Resolved | None
) -> list[StagedReport] | None:
    """Check the reports and the promises; return the reports that the manifest keeps (None: all)."""
    keep = _check_manifest(producer, command)
    if resolved is not None:
        _check_nothing_later_staged(job, producer, command, keep)
        kept = None if keep is None or command.epoch is None else (command.epoch, keep)
        promises.check_expectations(job, producer, command.promises, resolved, kept)
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
        check_absent(command.units, number)
        return None
    return epoch.check_manifest(command.units, number, producer.mode)


def _check_nothing_later_staged(job: Job, producer: Producer, command: Commit, keep: list[StagedReport] | None) -> None:
    """A driver's promise must not overtake what is staged after the epoch that it commits."""
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
        if isinstance(promise, Frontier):
            scope, time = promise.scope, promise.time
        else:
            scope, time = None, None
        if job.fronts.would_change(promise.front, scope, time, before):
            raise Refused(
                Refusal.EPOCH_STAGED,
                f"a promise for front {promise.front!r} would overtake the staged epochs {later}; commit them first",
            )
