"""Log lines for operators: jobs that come and go, runs that are fenced, stalls, drains, and operators' own commands.

At most a few lines a second are written, whatever callers do. The next line has the number of those that were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from tracker.contract.commands import (
    Abandon,
    CancelDrain,
    Command,
    DefineJob,
    DeleteJob,
    Drain,
    FinishFront,
    ForgetProducer,
    OpenProducer,
)
from tracker.contract.events import Stalled
from tracker.contract.values import DrainState
from tracker.core import Tracker

log = logging.getLogger("tracker.jobs")

_BURST = 50  # lines that may be written at once
_RATE = 5.0  # lines a second, on average
_STALLS = 1_000  # events of one tick that are searched for stalls


class Notices:
    """Writer of the lines.

    Args:
        now: a monotonic clock, in seconds.
    """

    def __init__(self, tracker: Tracker, now: Callable[[], float] = time.monotonic) -> None:
        self._tracker = tracker
        self._now = now
        self._left = float(_BURST)
        self._counted = now()
        self._dropped = 0
        self._drains: dict[str, DrainState] = {}

    def about(self, command: Command) -> Callable[[Any], None]:
        """Return a function that logs a command; call it with the answer, once the command was carried out."""
        match command:
            case DefineJob(spec):
                view = self._tracker.find(spec.job)
                if view is not None and view.deployment == spec.deployment:
                    return _nothing  # the definition is repeated, or changes only durations
                return lambda answer: self._log(
                    "a job was defined" if answer.created else "a deployment was defined",
                    job=spec.job,
                    deployment=spec.deployment,
                    force=command.force,
                )
            case DeleteJob():
                return lambda _: self._log("a job was deleted", job=command.job, force=command.force)
            case OpenProducer():
                view = self._tracker.find(command.job)
                known = None if view is None else view.producers.get(command.producer)
                before = None if known is None else known.run
                if before is None or before == command.run:
                    return _nothing
                return lambda _: self._log(
                    "a run was fenced", job=command.job, producer=command.producer, run=before, by=command.run
                )
            case Drain():
                return lambda answer: self._log(
                    "a drain was asked for",
                    job=command.job,
                    deployment=command.deployment,
                    drain=answer.drain_id,
                    state=answer.state.name,
                )
            case CancelDrain():
                return lambda answer: self._log(
                    "a drain was cancelled", job=command.job, deployment=command.deployment, state=answer.state.name
                )
            case Abandon():
                return lambda _: self._log(
                    "a substream was abandoned", job=command.job, scope=command.scope, name=command.name
                )
            case FinishFront():
                return lambda _: self._log("a front was finished by hand", job=command.job, front=command.front)
            case ForgetProducer():
                return lambda _: self._log("a producer was forgotten", job=command.job, producer=command.producer)
        return _nothing

    def news(self, job: str) -> None:
        """Log the end of a job's drain, if it has ended. Call it when the job's log has grown."""
        view = self._tracker.find(job)
        if view is None:
            self._drains.pop(job, None)
        elif (state := view.drain_state) is not self._drains.get(job, DrainState.NOT_DRAINING):
            self._drains[job] = state
            if state is DrainState.DRAINED:
                self._log("a job has drained", job=job)
            elif state is DrainState.TIMED_OUT:
                self._log("a drain is late", job=job)

    def ticked(self, job: str, after_seq: int) -> None:
        """Log what a tick has found to be stalled. Call it in the job's lane.

        Args:
            after_seq: the number of the last event before the tick.
        """
        view = self._tracker.find(job)
        if view is None or view.last_seq == after_seq:
            return
        for event in view.events(after_seq, limit=_STALLS)[0]:
            if isinstance(event.kind, Stalled):
                stalled = event.kind
                self._log(
                    "a substream has stalled",
                    job=job,
                    scope=stalled.scope,
                    name=stalled.name,
                    segments=",".join(stalled.segments[:5]),
                    in_flight=stalled.in_flight,
                )

    def _log(self, message: str, **extra: object) -> None:
        now = self._now()
        self._left = min(float(_BURST), self._left + (now - self._counted) * _RATE)
        self._counted = now
        if self._left < 1:
            self._dropped += 1
            return
        self._left -= 1
        if self._dropped:
            extra["left_out_before"] = self._dropped
            self._dropped = 0
        # The logger uses `name` itself.
        log.info(message, extra={"substream" if key == "name" else key: value for key, value in extra.items()})


def _nothing(_: Any) -> None:
    """Log nothing."""
