"""Decides which commands enter the journal: only those that the core would accept and that exceed no limit.

A command that waits for the journal, or for its turn, counts as if it were carried out already. So the limits hold
however many callers come at once. A command that the core would refuse is refused here, before it leaves a record.
Only a command that loses a race against another one is journaled for nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tracker.contract.commands import Command, DefineJob, Drain, OpenProducer, Subscribe
from tracker.core import Prepared, Tracker

from .capacity import check_capacity
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
    """Checks commands against the state and the pending commands. Check a job's commands in the job's lane.

    Args:
        tracker: the state.
        limits: the server's.
    """

    def __init__(self, tracker: Tracker, limits: Limits) -> None:
        self._tracker = tracker
        self._limits = limits
        self._waiting: dict[str, _Waiting] = {}
        self._defining: Counter[str] = Counter()
        self._drains = 0

    def prepare(self, command: Command) -> Prepared:
        """Refuse a command that the core would refuse, or that would exceed a limit.

        Args:
            command: what the caller asks for.

        Raises:
            Refused: for the core's reasons, and ``LIMIT``.
        """
        prepared = self._tracker.prepare(command)
        new = prepared.new
        check, job = self._limits.check, command.job
        waiting = self._waiting.get(job)
        named = new + waiting.names if new and waiting else new
        check_capacity(self._tracker, command, self._limits, named)
        match command:
            case DefineJob() if self._tracker.find(job) is None and not self._defining[job]:
                jobs = self._tracker.count_jobs() + sum(map(self._is_new, self._defining))
                check("max_jobs", jobs + 1, "delete jobs that have finished")
            case OpenProducer() if command.producer not in (known := self._tracker.view(job).producers):
                opening = {} if waiting is None else +waiting.producers
                if command.producer not in opening:
                    new_ones = sum(producer not in known for producer in opening)
                    producers = len(known) + new_ones
                    check("max_producers", producers + 1, "forget producers that will not return")
            case Drain() if self._drains:
                wanted = self._tracker.waiting_drains(job, command.deployment)
                check(
                    "max_pending_drains",
                    wanted and wanted + self._drains,
                    "cancel drains of deployments that will not be defined",
                )
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

    def _is_new(self, job: str) -> bool:
        return self._tracker.find(job) is None

    def take(self, prepared: Prepared, answer: asyncio.Future[Any]) -> None:
        """Count an accepted command, which waits for its turn, as pending until it is answered."""
        command, new, _ = prepared
        waiting = self._waiting.get(command.job)
        if waiting is None:
            waiting = self._waiting[command.job] = _Waiting(answer)
        waiting.last = answer
        waiting.count += 1
        waiting.names += new
        if isinstance(command, OpenProducer):
            waiting.producers[command.producer] += 1
        elif isinstance(command, DefineJob):
            self._defining[command.job] += 1
        elif isinstance(command, Drain):
            self._drains += 1
        elif isinstance(command, Subscribe):
            waiting.subscriptions[command.name] += 1
        answer.add_done_callback(lambda _: self._done(command, new, waiting))

    def _done(self, command: Command, new: int, waiting: _Waiting) -> None:
        waiting.count -= 1
        waiting.names -= new
        if isinstance(command, OpenProducer):
            waiting.producers[command.producer] -= 1
        elif isinstance(command, DefineJob):
            self._defining[command.job] -= 1
            if not self._defining[command.job]:
                del self._defining[command.job]
        elif isinstance(command, Drain):
            self._drains -= 1
        elif isinstance(command, Subscribe):
            waiting.subscriptions[command.name] -= 1
        if not waiting.count:
            del self._waiting[command.job]

    async def settled(self, job: str) -> bool:
        """Wait until the commands that are pending for a job now are carried out; return False if there were none."""
        waiting = self._waiting.get(job)
        if waiting is None:
            return False
        await asyncio.wait([waiting.last])
        return True
