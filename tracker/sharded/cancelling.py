"""A drain that all trackers of a sharded job cancel, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tracker.client.client import TrackerClient
from tracker.client.errors import TrackerError
from tracker.contract.merging import merged
from tracker.contract.status import DrainStatus
from tracker.contract.values import DrainMode, DrainState
from tracker.sharded.fanout import at_once, first_decides
from tracker.sharded.redefining import UNDER_WAY

_ASKED_FOR: Final = UNDER_WAY | {DrainState.PENDING}
_TOO_LATE: Final = ("DRAIN_IN_PROGRESS", "DRAINED")


def cancel_drain(job: str, shards: Sequence[tuple[TrackerClient, str]], drain_id: str, deployment: str) -> DrainStatus:
    """Cancel a drain on all shards, or on none.

    Args:
        job: the name of the whole job.
        shards: its trackers, each with the name of its shard there.
        drain_id: cancel only this drain; empty: the one that is under way.
        deployment: the deployment that is drained; empty: the current one.
    """
    before = at_once([partial(client.get_drain, name, deployment) for client, name in shards])
    _refuse_in_parts(job, before, drain_id)
    try:
        after = first_decides([partial(client.cancel_drain, name, drain_id, deployment) for client, name in shards])
        _refuse_in_parts(job, after, drain_id)
    except TrackerError as refused:
        if refused.reason in _TOO_LATE:  # a shard had come further meanwhile, or has a front that has finished
            at_once([partial(_ask_again, *shard, drain) for shard, drain in zip(shards, before, strict=True)])
        raise
    whole = merged(after)
    cancelled = any(drain.state is DrainState.CANCELLED for drain in after)
    return replace(whole, state=DrainState.CANCELLED) if cancelled else whole


def _refuse_in_parts(job: str, drains: Sequence[DrainStatus], drain_id: str) -> None:
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
