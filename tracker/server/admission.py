"""Commands that enter the journal: only those that the core would accept and that exceed no limit.

A command that waits for the journal, or for its turn, counts as if it were carried out already. So the limits hold
however many callers come at once. A command that the core would refuse is refused here, before it leaves a record.
Only a command that loses a race against another one is journaled for nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tracker.contract.commands import (
    Command,
    Commit,
    DefineJob,
    Drain,
    Expect,
    Frontier,
    Identities,
    OpenProducer,
    Report,
    Subscribe,
)
from tracker.contract.refusal import Refusal
from tracker.contract.status import Counts
from tracker.core import Prepared, Refused, Tracker

from .lanes import Lanes
from .limits import Limits


@dataclass(slots=True)
class _Waiting:
    """The commands of a job that were accepted and are not carried out yet."""

    last: asyncio.Future[Any]
    count: int = 0
    names: int = 0  #: of substreams that these commands name for the first time, at most
    producers: Counter[str] = field(default_factory=Counter)
    subscriptions: Counter[str] = field(default_factory=Counter)


class Admission:
    """Checker of commands against the state and the pending commands."""

    def __init__(self, tracker: Tracker, lanes: Lanes, limits: Limits) -> None:
        self._tracker = tracker
        self._lanes = lanes
        self._limits = limits
        self._waiting: dict[str, _Waiting] = {}
        self._defining: Counter[str] = Counter()
        self._drains = 0

    async def prepare(self, command: Command) -> Prepared:
        """Prepare a command in its job's lane; refuse one that the core would refuse, or that would exceed a limit.

        Raises:
            Refused: for the core's reasons, and ``LIMIT``.
        """
        try:
            return await self._in_lane(command)
        except Refused as refused:
            # An earlier command of the same caller may change that, except if the message itself is wrong.
            if refused.reason == Refusal.MALFORMED or not await self._settled(command.job):
                raise
        return await self._in_lane(command)

    async def _in_lane(self, command: Command) -> Prepared:
        found = self._lanes.run(command.job, partial(self._prepare, command), partial(_size, command))
        return await found if isinstance(found, asyncio.Future) else found

    def _prepare(self, command: Command) -> Prepared:
        prepared = self._tracker.prepare(command)
        new = prepared.new
        check, job = self._limits.check, command.job
        waiting = self._waiting.get(job)
        named = new + waiting.names if new and waiting else new
        check_capacity(self._tracker, command, self._limits, named, self._drains)
        match command:
            case DefineJob() if self._tracker.find(job) is None and not self._defining[job]:
                jobs = self._tracker.count_jobs() + sum(self._tracker.find(each) is None for each in self._defining)
                check("max_jobs", jobs + 1, "delete jobs that have finished")
            case OpenProducer() if command.producer not in (known := self._tracker.view(job).producers):
                opening = {} if waiting is None else +waiting.producers
                if command.producer not in opening:
                    new_ones = sum(producer not in known for producer in opening)
                    producers = len(known) + new_ones
                    check("max_producers", producers + 1, "forget producers that will not return")
            case Subscribe():
                check(
                    "max_subscription_events",
                    command.max_events or 0,
                    "acknowledge more often, and ask for a smaller max_events",
                )
                view = self._tracker.view(job)
                names = {*view.subscription_names, *(+waiting.subscriptions if waiting else ())}
                check(
                    "max_subscriptions", len(names | {command.name}), "end subscriptions that have no reader any more"
                )
                asked = len(command.segments) + len(command.scopes)
                asked += view.names_subscribed_to(besides=command.name)
                check("max_subscribed_names", asked, "name fewer segments and scopes, or leave the filter out")
        return prepared

    def count_substreams(self, job: str) -> int:
        """Return how many substreams a job has open, with those that pending commands name for the first time."""
        view, waiting = self._tracker.find(job), self._waiting.get(job)
        pending = 0 if waiting is None else waiting.names
        if view is None:
            return pending
        counts = view.counts()
        return pending + counts.open_substreams + counts.staged_substreams

    def take(self, prepared: Prepared, answer: asyncio.Future[Any]) -> None:
        """Count an accepted command, which waits for its turn, as pending until it is answered."""
        command, new, _ = prepared
        waiting = self._waiting.get(command.job)
        if waiting is None:
            waiting = self._waiting[command.job] = _Waiting(answer)
        waiting.last = answer
        self._count(command, new, waiting, 1)
        answer.add_done_callback(lambda _: self._count(command, new, waiting, -1))

    def _count(self, command: Command, new: int, waiting: _Waiting, by: int) -> None:
        waiting.count += by
        waiting.names += by * new
        if isinstance(command, OpenProducer):
            waiting.producers[command.producer] += by
        elif isinstance(command, DefineJob):
            self._defining[command.job] += by
            if not self._defining[command.job]:
                del self._defining[command.job]
        elif isinstance(command, Drain):
            self._drains += by
        elif isinstance(command, Subscribe):
            waiting.subscriptions[command.name] += by
        if not waiting.count:
            del self._waiting[command.job]

    async def _settled(self, job: str) -> bool:
        """Wait until the commands that are pending for a job now are carried out; return False if there were none."""
        waiting = self._waiting.get(job)
        if waiting is None:
            return False
        await asyncio.wait([waiting.last])
        return True


def check_capacity(tracker: Tracker, command: Command, limits: Limits, new: int, drains: int = 0) -> None:
    """Refuse a command for which there is no room.

    Args:
        new: how many substreams the command names for the first time; 1 is enough for "some".
        drains: how many drains are pending commands, which the tracker does not have yet.

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
            wanted = waiting and waiting + drains
            limits.check("max_pending_drains", wanted, "cancel drains of deployments that will not be defined")


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
    expected = sum(isinstance(promise, Expect | Identities) for promise in command.promises)
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


def _size(command: Command) -> int:
    """Return the cost of checking a command, in rows."""
    if isinstance(command, Report):
        return len(command.xor) // 10 + len(command.names) + len(command.substream_ids) + len(command.promises)
    if isinstance(command, DefineJob):
        return 4 * len(command.spec.segments) + len(command.spec.fronts)
    return 0
