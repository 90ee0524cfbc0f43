"""Compares the state's counts with the limits, before a command is journaled: is there room for it?

If a count is at its limit, the server refuses the command; it does not forget anything to make room, since each of
these things is needed to find the exact end of something. The message names the limit and what to do. What a job
remembers beyond that, fenced runs and past deployments, is bounded in the core, which forgets the oldest
(`tracker.core.remembered`).
"""

from __future__ import annotations

from tracker.contract.commands import Command, Commit, DefineJob, Drain, Report
from tracker.contract.promises import Expect, Frontier
from tracker.contract.status import Counts
from tracker.core import Tracker

from .limits import Limits


def check_capacity(tracker: Tracker, command: Command, limits: Limits, new: int) -> None:
    """Refuse a command for which there is no room.

    Args:
        tracker: the state.
        command: what the caller asks for.
        limits: the server's.
        new: how many substreams the command names for the first time; 1 is enough for "some".

    Raises:
        Refused: ``LIMIT``; the message names the limit and what to do.
    """
    match command:
        case DefineJob(spec):
            wanted = sum(bool(fed) for _, fed in spec.front_segments) * len(spec.segments)
            limits.check(
                "max_front_segments", wanted, "let fronts feed all segments, combine fronts, or use several jobs"
            )
        case Report():
            _check_report(tracker, command, limits, new)
            _check_promises(tracker, command, limits)
        case Commit():
            _check_named(tracker.view(command.job).counts() if new else None, limits, new)
            _check_promises(tracker, command, limits)
        case Drain():
            waiting = tracker.waiting_drains(command.job, command.deployment)
            limits.check("max_pending_drains", waiting, "cancel drains of deployments that will not be defined")


def _check_report(tracker: Tracker, report: Report, limits: Limits, new: int) -> None:
    job = tracker.view(report.job).counts()
    check = limits.check
    _check_named(job, limits, new, stages=not report.commit)
    if report.entry_count:
        check(
            "max_events",
            job.events + 1,
            "wait until retention drops events, or define the job with a shorter retention",
        )
    if not report.commit:
        check("max_staged_units", job.staged_units + len(report.units), "commit or revoke staged epochs")
        entries = job.staged_entries + report.entry_count + len(report.promises)
        check("max_staged_entries", entries, "commit or revoke staged epochs")


def _check_named(job: Counts | None, limits: Limits, new: int, stages: bool = False) -> None:
    """Refuse new substreams for which there is no room."""
    check = limits.check
    if new and job is not None:
        there = job.open_substreams + new
        check(
            "max_open_substreams", there, "report known substreams by id, and close or abandon those that are complete"
        )
        staged = job.staged_substreams + new
        if stages:
            check(
                "max_staged_substreams",
                staged,
                "commit or revoke staged epochs; retention removes names of late substreams",
            )
        cells = (job.open_substreams + staged) * job.segments
        check("max_cells", cells, "close or abandon substreams that are complete, or combine segments")
        check("max_tombstones", job.tombstones + new, "define the job with `remember`, so that it forgets old names")


def _check_promises(tracker: Tracker, command: Report | Commit, limits: Limits) -> None:
    """Refuse expected numbers and scopes' frontiers for which there is no room."""
    expected = sum(isinstance(promise, Expect) for promise in command.promises)
    if expected:
        there = tracker.view(command.job).counts().expected
        limits.check("max_expected", there + expected, "give counts for fewer substreams at a time, or close by name")
    scopes = {promise.scope for promise in command.promises if isinstance(promise, Frontier)} - {None}
    if scopes:
        view = tracker.view(command.job)
        job, new = view.counts(), view.new_scopes(scope for scope in scopes if scope is not None)
        if new:
            wanted = (job.scopes + new) * max(1, job.fronts)
            limits.check("max_scope_frontiers", wanted, "promise frontiers for every scope")
