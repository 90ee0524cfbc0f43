"""A drain's certificate: what a pipeline keeps as the proof that a deployment has stopped, and with which counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracker.client.errors import TrackerError
from tracker.client.watch import pages
from tracker.contract.events import Drained, DrainRequested, Ended, Event
from tracker.contract.values import DrainState

if TYPE_CHECKING:
    from tracker.client.client import TrackerClient

KIND: Final = "substream-tracker/drain-certificate/1"
_NO_SEGMENT: Final = "\N{NULL}"  # of no job: a filter that no end passes, and every event of a drain does


def certificate(client: TrackerClient, job: str, deployment: str) -> dict[str, Any]:
    """Describe a deployment that has been drained, as values that JSON can hold.

    The answer depends only on the tracker's state: asked again before the next deployment, it is the same.

    Returns:
        ``kind``, ``job``, ``deployment``, ``drain_id``, ``mode`` (``FINISH``, ``HAND_OVER``), ``log_id`` and
        ``incarnation``; when it was ``requested`` and ``drained`` (``seq``, ``at``); the counts ``open_substreams``,
        ``in_flight`` and ``late_reports``; ``ended``: for each segment how many substreams have ended in the drain, by
        reason, and of how many only the drain closed them (``by_drain``); ``producers`` with their committed epochs;
        ``fronts`` with what they have promised. ``requested`` and ``ended`` are null if the events are not kept any
        more.

    Raises:
        TrackerError: ``NOT_DRAINED``: the deployment is not drained; ``DEPLOYMENT_MISMATCH``: the job has left it.

    >>> def keep(client, file):
    ...     json.dump(certificate(client, "flights", "d1"), file)
    """
    drain = client.get_drain(job, deployment)
    if drain.state is not DrainState.DRAINED or drain.mode is None:
        raise TrackerError(
            "FAILED_PRECONDITION",
            "NOT_DRAINED",
            f"NOT_DRAINED: deployment {deployment!r} of job {job!r} is {drain.state}; drain it first",
        )
    status = client.job(job)
    requested, drained = _bounds(client, job, drain.drain_id)
    return {
        "kind": KIND,
        "job": job,
        "deployment": deployment,
        "drain_id": drain.drain_id,
        "mode": drain.mode.value,
        "log_id": status.log_id,
        "incarnation": status.incarnation,
        "requested": _moment(requested),
        "drained": _moment(drained),
        "open_substreams": drain.open_substreams,
        "in_flight": drain.in_flight,
        "late_reports": status.late_reports,
        "ended": None if requested is None or drained is None else _ends(client, job, requested.seq, drained.seq),
        "producers": {each.producer: each.committed_epoch for each in status.producers},
        "fronts": {
            each.front: {
                "finished": each.finished,
                "frontiers": dict(each.frontiers),
                "more_frontiers": each.more_frontiers,
            }
            for each in status.fronts
        },
    }


def _bounds(client: TrackerClient, job: str, drain_id: str) -> tuple[Event | None, Event | None]:
    """Return the events with which the drain began and was over; None: not kept any more."""
    requested = drained = None
    for event in _events(client, job, segments=[_NO_SEGMENT]):
        match event.kind:
            case DrainRequested(named) if named == drain_id:
                requested = event
            case Drained(named) if named == drain_id:
                drained = event
    return requested, drained


def _ends(client: TrackerClient, job: str, after_seq: int, up_to_seq: int) -> dict[str, dict[str, int]]:
    """Return how many substreams have ended on each segment, by reason."""
    counts: dict[str, dict[str, int]] = {}
    for event in _events(client, job, after_seq=after_seq, up_to_seq=up_to_seq):
        if isinstance(event.kind, Ended):
            counted = counts.setdefault(event.kind.segment, {})
            for what in [event.kind.reason.value, *(["by_drain"] if event.kind.by_drain else [])]:
                counted[what] = counted.get(what, 0) + 1
    return counts


def _events(
    client: TrackerClient, job: str, after_seq: int = 0, up_to_seq: int | None = None, segments: Sequence[str] = ()
) -> Iterator[Event]:
    """Yield the kept events of a range."""
    for page in pages(partial(client.list_events, job, segments=segments), after_seq, up_to_seq):
        yield from page.events


def _moment(event: Event | None) -> dict[str, Any] | None:
    return None if event is None else {"seq": event.seq, "at": event.at.isoformat()}
