"""What a job can be asked. Reads only; what it costs may grow with the job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .accounts import CLOSED, DONE, KNOWN, STALLED
from .commands import NO_END_TIME, DrainStatus
from .events import Ended, Reason
from .job import NO_ROWS, Job, or_none
from .messages import check_name
from .refusal import Refused
from .status import FrontStatus, JobStatus, ProducerStatus, SegmentStatus, SubstreamStatus


def drain_status(job: Job) -> DrainStatus:
    """How far the current deployment's drain is."""
    open_rows = job.accounts.in_use(int(KNOWN), int(KNOWN | DONE))
    return DrainStatus(
        job.drain.state,
        job.drain.drain_id,
        job.spec.deployment,
        tuple(front.name for front in job.fronts.unfinished()),
        job.accounts.open,
        job.accounts.in_flight_in_all(open_rows),
        tuple(producer.name for producer in job.producers.values() if producer.staged),
        tuple(job.has_open_producers()),
    )


def status(job: Job) -> JobStatus:
    """The job at a glance."""
    drain = drain_status(job)
    return JobStatus(
        spec=job.spec,
        first_seq=job.log.first_seq,
        last_seq=job.log.last_seq,
        open_substreams=job.accounts.open,
        ended_substreams=job.accounts.done,
        in_flight=drain.in_flight,
        late_reports=job.late_reports,
        producers=tuple(
            ProducerStatus(
                producer.name,
                producer.last_run,
                producer.mode,
                or_none(producer.committed),
                tuple(sorted(producer.staged)),
                producer.run is None,
                producer.heard_at,
            )
            for producer in job.producers.values()
        ),
        fronts=tuple(
            FrontStatus(
                front.name,
                front.finished,
                front.idle,
                {"*" if scope is None else scope: time for scope, time in front.frontiers().items()},
                front.owner or "",
                front.last_promise,
            )
            for front in job.fronts
        ),
        drain=drain,
        log_id=job.log.log_id,
        incarnation=job.incarnation,
    )


def ended(job: Job, segment: str, scope: str, name: str, end_time: int | None) -> Ended | None:
    """The end of a substream on a segment; None if it has not come.

    Raises:
        Refused: ``UNKNOWN_SEGMENT``; ``EVENTS_EXPIRED`` if it is forgotten, so that its end will not come again.
    """
    if segment not in job.graph.number:
        raise Refused.invalid(
            "UNKNOWN_SEGMENT", f"segment {segment!r} is not one of the job's: {', '.join(job.graph.names)}"
        )
    check_name("substream", name)
    number = job.graph.number[segment]
    accounts = job.accounts
    row = accounts.find_one(scope, name)
    if row < 0 or not accounts.flags[row] & KNOWN:
        if end_time is not None and job.closing.shut(scope, end_time):
            raise Refused(
                "OUT_OF_RANGE",
                "EVENTS_EXPIRED",
                f"substream {name!r} of scope {scope!r} is closed and not known any more; its end will not come again",
            )
        return None
    reason = int(accounts.ended[row * accounts.segments + number])
    if not reason:
        return None
    bound = int(accounts.end_time[row])
    return Ended(
        segment,
        scope,
        name,
        None if bound == NO_END_TIME else bound,
        accounts.sent(row, number),
        Reason(reason),
        max(0, accounts.in_flight(row, number)),
    )


def substreams(
    job: Job, scopes: Sequence[str], include_ended: bool, only_stalled: bool, limit: int, after: int
) -> tuple[list[SubstreamStatus], int | None]:
    """A page of the known substreams, by creation; and where the next one starts."""
    accounts = job.accounts
    rows = accounts.in_use(int(KNOWN), int(KNOWN if include_ended else KNOWN | DONE))
    if only_stalled:
        rows = rows[(accounts.flags[rows] & STALLED) != 0]
    if scopes:
        numbers = [accounts.scope_number[scope] for scope in scopes if scope in accounts.scope_number]
        rows = rows[np.isin(accounts.scope[rows], numbers)]
    ids = accounts.ids_of(rows) if rows.size else NO_ROWS
    later = ids > after
    rows, ids = rows[later], ids[later]
    order = np.argsort(ids)[:limit]
    page = [_substream_status(job, row) for row in rows[order].tolist()]
    return page, int(ids[order[-1]]) if len(rows) > limit else None


def _substream_status(job: Job, row: int) -> SubstreamStatus:
    accounts = job.accounts
    end_time = int(accounts.end_time[row])
    segments = []
    for number, name in enumerate(job.graph.names):
        xor, sent, received, sender, receiver = accounts.cell(row, number)
        segments.append(
            SegmentStatus(
                name,
                bool(accounts.ended[row * accounts.segments + number]),
                xor,
                sent,
                received,
                job.producer_names[sender] if sender >= 0 else "",
                job.producer_names[receiver] if receiver >= 0 else "",
            )
        )
    done = bool(accounts.flags[row] & DONE)
    return SubstreamStatus(
        scope=accounts.scope_names[int(accounts.scope[row])],
        name=accounts.names[row],
        end_time=None if end_time == NO_END_TIME else end_time,
        closed=done or bool(accounts.flags[row] & CLOSED),
        waiting_for=() if done else tuple(job.closing.waiting_for(row)),
        segments=tuple(segments),
        late_reports=job.late_by_id.get(accounts.id_of(row), 0),
        created=int(accounts.created[row]),
        changed=int(accounts.changed[row]),
        held_by=tuple(producer.name for producer in job.producers.values() if row in producer.holds),
    )
