"""Merges the states of a job's shards into that of one job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Final, TypeVar

from tracker.contract.answers import JobDefined, Reported
from tracker.contract.status import DrainStatus, FrontStatus, JobStatus, ProducerStatus
from tracker.contract.values import DrainState, Outcome

Named = TypeVar("Named", ProducerStatus, FrontStatus)

#: The whole job is as far as its slowest shard; the first of these states is the slowest.
_FAR: Final = (
    DrainState.NOT_DRAINING,
    DrainState.CANCELLED,
    DrainState.PENDING,
    DrainState.TIMED_OUT,
    DrainState.DRAINING,
    DrainState.DRAINED,
)

#: The counts of a job, each of which is the sum of its shards'.
_COUNTS: Final = tuple(each.name for each in fields(JobStatus) if each.type == "int" and each.name != "incarnation")


def job_status(job: str, shards: Sequence[JobStatus]) -> JobStatus:
    """Merge the shards' descriptions of a job.

    Counts are sums, even those of events, so `first_seq` and `last_seq` are not positions. `log_id` names all logs.

    Args:
        job: the name of the whole job.
        shards: at least one.
    """
    first = shards[0]
    sums = {name: sum(getattr(shard, name) for shard in shards) for name in _COUNTS}
    return replace(
        first,
        **sums,
        spec=replace(first.spec, job=job),
        producers=tuple(map(_producer, _by_name(chain.from_iterable(shard.producers for shard in shards)))),
        fronts=tuple(map(_front, _by_name(chain.from_iterable(shard.fronts for shard in shards)))),
        drain=drain_status([shard.drain for shard in shards]),
        log_id=log_id(shard.log_id for shard in shards),
        incarnation=max(shard.incarnation for shard in shards),
        unread_segments=tuple(
            segment for segment in first.unread_segments if all(segment in shard.unread_segments for shard in shards)
        ),
        advanced={
            segment: min(shard.advanced[segment] for shard in shards)
            for segment in first.advanced
            if all(segment in shard.advanced for shard in shards)
        },
    )


def job_defined(job: str, shards: Sequence[JobDefined]) -> JobDefined:
    """Merge the shards' answers to a definition: the job is new if every shard is. The rest is as in `job_status`."""
    return JobDefined(
        created=all(shard.created for shard in shards),
        last_seq=sum(shard.last_seq for shard in shards),
        log_id=log_id(shard.log_id for shard in shards),
        incarnation=max(shard.incarnation for shard in shards),
        drain=drain_status([shard.drain for shard in shards]),
        spec=replace(shards[0].spec, job=job),
    )


def drain_status(shards: Sequence[DrainStatus]) -> DrainStatus:
    """Merge the shards' drains: the whole is as far as its slowest shard."""
    return DrainStatus(
        state=min((shard.state for shard in shards), key=_FAR.index),
        drain_id=shards[0].drain_id,
        deployment=shards[0].deployment,
        unfinished_fronts=_all(shard.unfinished_fronts for shard in shards),
        open_substreams=sum(shard.open_substreams for shard in shards),
        in_flight=sum(shard.in_flight for shard in shards),
        uncommitted_producers=_all(shard.uncommitted_producers for shard in shards),
        open_producers=_all(shard.open_producers for shard in shards),
        mode=shards[0].mode,
        unbalanced_segments=_all(shard.unbalanced_segments for shard in shards),
    )


def reported(shards: Sequence[Reported]) -> Reported:
    """Merge the shards' answers to the parts of a report.

    APPLIED means that all shards have the report now, and it was new to some of them. PARTIAL_DUPLICATE names the units
    that every shard has; it names none if the shards have different units.
    """
    last_seq = sum(shard.last_seq for shard in shards)
    partial = [set(shard.duplicate_units) for shard in shards if shard.outcome is Outcome.PARTIAL_DUPLICATE]
    if partial:
        return Reported(Outcome.PARTIAL_DUPLICATE, tuple(sorted(set.intersection(*partial))), last_seq)
    outcomes = {shard.outcome for shard in shards}
    return Reported(outcomes.pop() if len(outcomes) == 1 else Outcome.APPLIED, (), last_seq)


def log_id(shards: Iterable[str]) -> str:
    """Return one id for the logs of all shards."""
    return "+".join(shards)


def _by_name(statuses: Iterable[Named]) -> Iterator[list[Named]]:
    found: dict[str, list[Named]] = {}
    for status in statuses:
        name = status.producer if isinstance(status, ProducerStatus) else status.front
        found.setdefault(name, []).append(status)
    return iter(found.values())


def _producer(shards: Sequence[ProducerStatus]) -> ProducerStatus:
    committed = [shard.committed_epoch for shard in shards if shard.committed_epoch is not None]
    return replace(
        shards[0],
        committed_epoch=min(committed) if len(committed) == len(shards) else None,
        staged_epochs=tuple(sorted({epoch for shard in shards for epoch in shard.staged_epochs})),
        closed=all(shard.closed for shard in shards),
        last_heard_ns=max(shard.last_heard_ns for shard in shards),
    )


def _front(shards: Sequence[FrontStatus]) -> FrontStatus:
    scopes = set.intersection(*(set(shard.frontiers) for shard in shards))
    promises = [shard.last_promise_ns for shard in shards if shard.last_promise_ns is not None]
    return FrontStatus(
        front=shards[0].front,
        finished=all(shard.finished for shard in shards),
        idle=all(shard.idle for shard in shards),
        frontiers={scope: min(shard.frontiers[scope] for shard in shards) for scope in sorted(scopes)},
        producer=next((shard.producer for shard in shards if shard.producer), ""),
        last_promise_ns=max(promises, default=None),
        segments=shards[0].segments,
        more_frontiers=max(shard.more_frontiers for shard in shards),
    )


def _all(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted(set(chain.from_iterable(names))))
