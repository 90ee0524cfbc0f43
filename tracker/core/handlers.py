"""The handlers of commands for an existing job: how each is checked, and how it is carried out.

A check refuses what carrying out would refuse, as far as that can be seen without changing anything, and is what
carrying out begins with. Commands that make, replace or delete a job, or drain one that may not exist yet, are the
tracker's own (`tracker`, `checking`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tracker.contract.answers import Answer
from tracker.contract.commands import (
    Abandon,
    Ack,
    CloseProducer,
    Commit,
    FinishFront,
    ForgetProducer,
    OpenProducer,
    Report,
    Subscribe,
    Unsubscribe,
)

from . import epochs, promises, reporting
from .job import Job


class Handler(NamedTuple):
    """How commands of one kind are checked and carried out."""

    check: Callable[[Job, Any], int]  #: refuses it, or counts the substreams that it names for the first time
    carry_out: Callable[[Job, Any, int], Answer]  #: at a time (ns)


def _naming_none(check: Callable[[Job, Any], object], carry_out: Callable[[Job, Any, int], Answer]) -> Handler:
    """Return what is done with a command that names no substream for the first time."""

    def checked(job: Job, command: Any) -> int:
        check(job, command)
        return 0

    return Handler(checked, carry_out)


HANDLERS: Final[dict[type[Any], Handler]] = {
    Report: Handler(
        lambda job, command: len(reporting.check_report(job, command).new),
        lambda job, command, _: reporting.report(job, command),
    ),
    Commit: Handler(reporting.check_commit, lambda job, command, _: reporting.commit(job, command)),
    OpenProducer: _naming_none(epochs.check_open, lambda job, command, _: epochs.open_producer(job, command)),
    CloseProducer: _naming_none(epochs.check_close, lambda job, command, _: epochs.close_producer(job, command)),
    ForgetProducer: _naming_none(
        lambda job, command: job.producer(command.producer),
        lambda job, command, _: epochs.forget_producer(job, command.producer),
    ),
    FinishFront: _naming_none(
        lambda job, command: promises.check_finish_front(job, command.front),
        lambda job, command, _: promises.finish_front(job, command.front),
    ),
    Abandon: _naming_none(
        lambda job, command: job.known_row(command.scope, command.name),
        lambda job, command, _: job.abandon(command.scope, command.name),
    ),
    Subscribe: _naming_none(
        lambda job, command: job.subscriptions.check_subscribe(command, job.graph),
        lambda job, command, now: job.subscriptions.subscribe(command, job.graph, now),
    ),
    Ack: _naming_none(
        lambda job, command: job.subscriptions.check_acknowledge(command),
        lambda job, command, now: job.subscriptions.acknowledge(command, now),
    ),
    Unsubscribe: _naming_none(
        lambda job, command: job.subscriptions.check_unsubscribe(command.name),
        lambda job, command, _: job.subscriptions.unsubscribe(command.name),
    ),
}
