"""Shards of a job, and calls to all of them: what they do together, and refusals of what only some would accept.

A shard is a job of its own at its server, with the whole graph and all fronts, and its share of the substreams. Each of
the contract's rules concerns one substream, so each shard satisfies them by itself.

`Sharding` assigns each substream, and each part of a report, to a shard.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tracker.client.client import TrackerClient
from tracker.client.errors import TrackerError
from tracker.contract.commands import AboutSubstream, Contents, Promise
from tracker.contract.refusal import Refusal
from tracker.contract.spec import JobSpec
from tracker.contract.spec import OrderingWord as Ordering
from tracker.contract.status import DrainStatus, JobStatus, merged
from tracker.contract.values import DrainMode, DrainState

_SHARD: Final = re.compile(r"(?P<job>.+)\.\d+of\d+-(none|scope|global)-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Sharding:
    """A division into shards, which is fixed for the life of its jobs.

    Args:
        servers: the servers' names, sorted: the first has shard 1.
        ordering: of the jobs. With ``"scope"``, a scope is on one shard as a whole, so that its order is that of the
            server; else substreams are assigned one by one.
    """

    servers: tuple[str, ...]
    ordering: Ordering

    def jobs(self, job: str) -> tuple[str, ...]:
        """Return the names of a job's shards at their servers.

        A name has the number of shards and a digest of the servers. A client with another list makes other names, and
        finds nothing.

        >>> Sharding(("a:7654", "b:7654"), "none").jobs("shop")
        ('shop.1of2-none-b5bc81cc', 'shop.2of2-none-b5bc81cc')
        """
        digest = hashlib.blake2b("\n".join(self.servers).encode(), digest_size=4).hexdigest()
        count = len(self.servers)
        return tuple(f"{job}.{number}of{count}-{self.ordering}-{digest}" for number in range(1, count + 1))

    def shard(self, scope: str, name: str) -> int:
        """Return the number of a substream's shard, counted from 0. A call takes about a microsecond.

        >>> [Sharding(("a:7654", "b:7654"), "none").shard("JFK", f"day {day}") for day in range(8)]
        [1, 1, 1, 0, 1, 1, 0, 0]
        """
        key = scope if self.ordering == "scope" else f"{scope}\0{name}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % len(self.servers)

    def split(self, contents: Contents) -> list[Contents]:
        """Split a report: each shard gets its substreams with their entries, closes and expectations, and all other
        promises."""
        count = len(contents.substreams)
        shards = np.fromiter((self.shard(scope, name) for scope, name in contents.substreams), np.int64, count)
        return [_part(contents, shards == shard) for shard in range(len(self.servers))]


def base(shard: str) -> str | None:
    """Return the name of the job to which a shard belongs; None if the name is not that of a shard.

    >>> base("shop.1of2-none-b5bc81cc"), base("shop")
    ('shop', None)
    """
    found = _SHARD.fullmatch(shard)
    return None if found is None else found["job"]


def _part(contents: Contents, wanted: NDArray[np.bool_]) -> Contents:
    places = np.cumsum(wanted) - 1  # for each wanted substream, its position among the wanted ones
    entries = wanted[contents.substream_index]
    promises: list[Promise] = []
    for promise in contents.promises:
        if not isinstance(promise, AboutSubstream):
            promises.append(promise)
        elif wanted[promise.substream_index]:
            promises.append(replace(promise, substream_index=int(places[promise.substream_index])))
    return replace(
        contents,
        substreams=[substream for substream, here in zip(contents.substreams, wanted.tolist(), strict=True) if here],
        end_times=contents.end_times[wanted],
        substream_index=places[contents.substream_index[entries]].astype(np.uint32),
        segment_index=contents.segment_index[entries],
        xor=contents.xor[entries],
        sent=contents.sent[entries],
        received=contents.received[entries],
        promises=promises,
    )


Answer = TypeVar("Answer")


def at_once(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make all calls in parallel, waits for all, and return their results in order.

    Raises:
        Exception: that of the first call in order that failed; the other calls were made nevertheless.
    """
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(len(calls), "tracker-shard") as pool:
        answers = [pool.submit(call) for call in calls]
    return [answer.result() for answer in answers]


def first_decides(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make the first call and, if it succeeds, all others in parallel, and return their results in order.

    Some calls exclude each other: a run and its successor, a finish and the cancellation of a drain. This way the same
    one of them comes first at all servers: a caller that the first server refuses does not call the others.

    Raises:
        Exception: as `at_once`; if it is the first call's, the others were not made.
    """
    first, *others = calls
    answer = first()
    return [answer, *at_once(others)] if others else [answer]


_UNDER_WAY: Final = frozenset({DrainState.DRAINING, DrainState.TIMED_OUT})  #: of drains that may still be confirmed


def status_of(client: TrackerClient, job: str) -> JobStatus | None:
    """Return a shard's part of a job's status; None if it does not know the job."""
    try:
        return client.job(job)
    except TrackerError as refused:
        if refused.reason != Refusal.UNKNOWN_JOB:
            raise
        return None


def refuse_in_parts(spec: JobSpec, found: Sequence[JobStatus]) -> None:
    """Refuse a new deployment that only some shards could accept: the job's shards would differ afterwards."""
    left = [status for status in found if status.spec.deployment != spec.deployment]
    drained = sum(status.drain.state is DrainState.DRAINED for status in left)
    if any(status.drain.state in _UNDER_WAY for status in left) or 0 < drained < len(left):
        raise TrackerError(
            "FAILED_PRECONDITION",
            "DRAIN_IN_PROGRESS",
            f"DRAIN_IN_PROGRESS: {drained} of the {len(left)} shards of job {spec.job!r} that run another deployment "
            "are drained: wait until all are (tracker drain JOB DEPLOYMENT --wait), or force",
        )
    if not drained and any(_graph(status.spec) != _graph(spec) for status in left):
        raise TrackerError(
            "FAILED_PRECONDITION",
            "INCOMPATIBLE_GRAPH",
            f"INCOMPATIBLE_GRAPH: deployment {spec.deployment!r} of job {spec.job!r} has other segments or fronts than "
            f"{left[0].spec.deployment!r}: a sharded job changes them when it is drained. Drain it first, or force",
        )


def _graph(spec: JobSpec) -> object:
    return {segment: set(feeds) for segment, feeds in spec.segments.items()}, set(spec.fronts)


_ASKED_FOR: Final = _UNDER_WAY | {DrainState.PENDING}
_TOO_LATE: Final = ("DRAIN_IN_PROGRESS", "DRAINED")


def cancel_drain(job: str, shards: Sequence[tuple[TrackerClient, str]], drain_id: str, deployment: str) -> DrainStatus:
    """Cancel a drain on all shards, or on none.

    Args:
        shards: its trackers, each with the name of its shard there.
        drain_id: cancel only this drain; empty: the one that is under way.
        deployment: the deployment that is drained; empty: the current one.
    """
    before = at_once([partial(client.get_drain, name, deployment) for client, name in shards])
    _refuse_if_some_are_drained(job, before, drain_id)
    try:
        after = first_decides([partial(client.cancel_drain, name, drain_id, deployment) for client, name in shards])
        _refuse_if_some_are_drained(job, after, drain_id)
    except TrackerError as refused:
        if refused.reason in _TOO_LATE:  # a shard had come further meanwhile, or has a front that has finished
            at_once([partial(_ask_again, *shard, drain) for shard, drain in zip(shards, before, strict=True)])
        raise
    whole = merged(after)
    cancelled = any(drain.state is DrainState.CANCELLED for drain in after)
    return replace(whole, state=DrainState.CANCELLED) if cancelled else whole


def _refuse_if_some_are_drained(job: str, drains: Sequence[DrainStatus], drain_id: str) -> None:
    done = sum(drain.state is DrainState.DRAINED for drain in drains)
    if 0 < done < len(drains) and drain_id in ("", *(drain.drain_id for drain in drains)):
        raise TrackerError(
            "FAILED_PRECONDITION",
            "DRAINED",
            f"DRAINED: {done} of the {len(drains)} shards of job {job!r} are drained, so the drain can no longer be "
            f"cancelled: wait until all are (tracker drain {job} {drains[0].deployment} --wait), and define the next "
            "deployment",
        )


def _ask_again(client: TrackerClient, name: str, drain: DrainStatus) -> None:
    """Ask for a drain that was cancelled; one that was not goes on as it is."""
    if drain.state in _ASKED_FOR:
        hands_over = drain.mode is DrainMode.HAND_OVER
        client.drain(name, drain.deployment, drain.drain_id, hand_over=hands_over)
