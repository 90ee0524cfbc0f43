"""Jobs, substreams, durable readers and events for people. It is loaded when a command runs: it needs the client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, get_args

from tracker.cli.output import Column, Form, print_json, print_line, print_pairs, print_rows
from tracker.client import (
    DrainMode,
    DrainState,
    FrontStatus,
    JobSpec,
    JobStatus,
    ProducerStatus,
    SegmentStatus,
    SubscriptionStatus,
    SubstreamStatus,
    TrackerClient,
    TrackerError,
)
from tracker.client.ledger import Entry
from tracker.client.texts import ago, text, time_text
from tracker.contract.events import Advanced, Drained, DrainRequested, Ended, Event, Excess, FrontIdle, Late, Stalled
from tracker.contract.events import Body as Kind
from tracker.contract.refusal import Refusal

if TYPE_CHECKING:
    from tracker.sharded import ShardedClient

_MOST_SCOPES: Final = 4  # the most scopes of a front's frontiers that are shown
_DRAIN_STYLES: Final = {
    DrainState.PENDING: "yellow",
    DrainState.DRAINING: "yellow",
    DrainState.TIMED_OUT: "red",
    DrainState.DRAINED: "green",
}

JOBS: Final[Sequence[Column[JobStatus]]] = [
    Column("JOB", lambda job: job.spec.job),
    Column("DEPLOYMENT", lambda job: job.spec.deployment),
    Column("OPEN", lambda job: job.open_substreams),
    Column("IN FLIGHT", lambda job: job.in_flight),
    Column("ENDED", lambda job: job.ended_substreams),
    Column("LATE", lambda job: job.late_reports, style=lambda job: "yellow" if job.late_reports else ""),
    Column("LAST EVENT", lambda job: job.last_seq),
    Column("DRAIN", lambda job: job.drain.state, style=lambda job: _DRAIN_STYLES.get(job.drain.state, "")),
    Column("SEGMENTS", lambda job: len(job.spec.segments), wide=True),
    Column("FRONTS", lambda job: _unfinished(job), wide=True),
    Column("PRODUCERS", lambda job: sum(not each.closed for each in job.producers), wide=True),
    Column("STAGED UNITS", lambda job: job.staged_units, wide=True),
    Column("INCOMPLETE", lambda job: job.incomplete_substreams, wide=True),
    Column("ORDERING", lambda job: job.spec.ordering, wide=True),
    Column("RETENTION", lambda job: job.spec.retention, wide=True),
    Column("LOG", lambda job: job.log_id, wide=True),
]

_PRODUCERS: Final[Sequence[Column[ProducerStatus]]] = [
    Column("PRODUCER", lambda each: each.producer),
    Column("RUN", lambda each: each.run),
    Column("MODE", lambda each: each.mode),
    Column("COMMITTED", lambda each: each.committed_epoch),
    Column("STAGED", lambda each: _staged(each), style=lambda each: "yellow" if each.staged_epochs else ""),
    Column("STATE", lambda each: "closed" if each.closed else "open"),
    Column("LAST REPORT", lambda each: ago(each.last_heard)),
    Column("AT", lambda each: each.last_heard, wide=True),
]

_FRONTS: Final[Sequence[Column[FrontStatus]]] = [
    Column("FRONT", lambda each: each.front),
    Column(
        "STATE",
        lambda each: "finished" if each.finished else "idle" if each.idle else "running",
        style=lambda each: "yellow" if each.idle and not each.finished else "",
    ),
    Column("FRONTIERS", lambda each: _frontiers(each.frontiers, each.more_frontiers)),
    Column("OWNER", lambda each: each.producer or None),
    Column("LAST PROMISE", lambda each: ago(each.last_promise)),
    Column("FEEDS", lambda each: list(each.segments) or "every segment"),
    Column("AT", lambda each: each.last_promise, wide=True),
]


def read_statuses(client: TrackerClient | ShardedClient) -> Iterator[JobStatus]:
    """Yield the states of all jobs, one call each; a job that is deleted meanwhile is left out."""
    for job in client.jobs():
        try:
            yield client.job(job)
        except TrackerError as refused:
            if refused.reason != Refusal.UNKNOWN_JOB:
                raise


def print_job(status: JobStatus, oldest: SubstreamStatus | None, form: Form) -> None:
    """Print everything about one job."""
    _print_pairs(status, oldest)
    if status.producers:
        print_line()
        print_rows(_PRODUCERS, status.producers, form)
    if status.fronts:
        print_line()
        print_rows(_FRONTS, status.fronts, form)


def _without_promise(spec: JobSpec) -> Iterator[str]:
    if spec.deadline is not None:
        yield f"{spec.deadline} after its end{' in event time' * spec.deadline_by_event_time}"
    if spec.threshold is not None:
        yield f"{spec.threshold:.6g} of what is expected, quiet for {spec.threshold_after}"
    if spec.scope_idle_after is not None:
        yield f"its scope silent for {spec.scope_idle_after}"
    if spec.front_idle_after is not None:
        yield f"the fronts that it waits for silent for {spec.front_idle_after}"


def _print_pairs(status: JobStatus, oldest: SubstreamStatus | None) -> None:
    spec = status.spec
    graph = [f"{segment} -> {' + '.join(feeds)}" if feeds else segment for segment, feeds in spec.segments.items()]
    drain = status.drain
    hands_over = drain.mode is DrainMode.HAND_OVER
    print_pairs(
        [
            ("job", spec.job),
            ("deployment", f"{spec.deployment} (incarnation {status.incarnation})"),
            ("segments", graph),
            ("ordering", spec.ordering),
            ("progress", "announced" if spec.progress else "not announced"),
            ("ends", "of what is committed" if spec.committed_ends else "as each producer's mode allows"),
            ("stall after", spec.stall_after or "never"),
            ("expire after", spec.expire_after or "never"),
            ("idle after", spec.idle_after or "never"),
            ("given up", [*_without_promise(spec)] or "never"),
            ("retention", spec.retention),
            ("remember", spec.remember or "as long as the job exists"),
            ("open", f"{status.open_substreams} substreams, {status.in_flight} elements in flight"),
            ("oldest open", _oldest(oldest)),
            ("never read", status.unread_segments),
            ("expected", _expected(status)),
            ("ended", f"{status.ended_substreams} substreams kept, {status.tombstones} more names remembered"),
            (
                "staged",
                f"{status.staged_units} epochs and units, {status.staged_entries} entries and promises, "
                f"{status.staged_substreams} substreams that are only named",
            ),
            ("late", f"{status.late_reports} reports"),
            ("events", f"{status.first_seq} to {status.last_seq} kept, log {status.log_id}"),
            ("drain", f"{drain.state} {drain.drain_id}{' (hand-over)' if hands_over else ''}".rstrip()),
        ]
    )


def _oldest(one: SubstreamStatus | None) -> str | None:
    if one is None:
        return None
    return f"{substream(one.scope, one.name)}, known since {text(one.created)} ({ago(one.created)})"


def _expected(status: JobStatus) -> str:
    if not status.incomplete_substreams:
        return "nothing is missing"
    sent = f"{status.expected_sent} of {status.expected} elements sent"
    return f"{status.incomplete_substreams} substreams incomplete, {sent}"


def _unfinished(job: JobStatus) -> str:
    running = sum(not front.finished for front in job.fronts)
    return f"{running} of {len(job.fronts)} running" if job.fronts else "-"


def _frontiers(frontiers: Mapping[str, int], left_out: int) -> str | None:
    """Format the frontier for all scopes, and those of the scopes that are furthest behind.

    >>> _frontiers({"b": 7, "*": 3, "c": 4, "a": 7, "d": 9}, left_out=0)
    '*: 3, c: 4, a: 7, b: 7, d: 9'
    """
    scopes = sorted((time, scope) for scope, time in frontiers.items() if scope != "*")
    shown = [f"{scope or repr(scope)}: {time_text(time)}" for time, scope in scopes[:_MOST_SCOPES]]
    if "*" in frontiers:
        shown.insert(0, f"*: {time_text(frontiers['*'])}")
    if more := max(0, len(scopes) - _MOST_SCOPES) + left_out:
        shown.append(f"{more} more")
    return ", ".join(shown) or None


def _staged(producer: ProducerStatus) -> str | None:
    epochs = producer.staged_epochs
    if len(epochs) > 3:
        return f"{epochs[0]} … {epochs[-1]} ({len(epochs)})"
    return ", ".join(map(str, epochs)) or None


SUBSTREAMS: Final[Sequence[Column[SubstreamStatus]]] = [
    Column("SCOPE", lambda each: each.scope),
    Column("NAME", lambda each: each.name),
    Column("END TIME", lambda each: time_text(each.end_time)),
    Column("STATE", lambda each: _state(each)),
    Column("IN FLIGHT", lambda each: each.in_flight, style=lambda each: "yellow" if each.in_flight else ""),
    Column("WAITS FOR", lambda each: waits_for(each)),
    Column("SEGMENTS (RECEIVED/SENT)", lambda each: [_account(segment) for segment in each.segments]),
    Column("CHANGED", lambda each: ago(each.changed)),
    Column("LATE", lambda each: each.late_reports, wide=True),
    Column("LAST SENDERS", lambda each: _names(segment.last_sender for segment in each.segments), wide=True),
    Column("LAST RECEIVERS", lambda each: _names(segment.last_receiver for segment in each.segments), wide=True),
    Column("CREATED", lambda each: each.created, wide=True),
]


def waits_for(substream: SubstreamStatus) -> list[str]:
    """Return what a substream waits for: fronts that have not closed it, elements, and commits that producers owe."""
    return [
        *substream.waiting_for,
        *(f"elements on {segment}" for segment in uneven(substream)),
        *(f"a commit of {producer}" for producer in substream.held_by),
    ]


def uneven(substream: SubstreamStatus) -> list[str]:
    """Return the segments on which a substream has not ended, and not all that was sent or is expected was received."""
    return [
        each.segment
        for each in substream.segments
        if not each.ended and (each.sent != each.received or each.xor or each.missing)
    ]


def _names(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name})


def _state(substream: SubstreamStatus) -> str:
    if all(segment.ended for segment in substream.segments):
        return "ended by a drain" if substream.by_drain else "ended"
    return "closed" if substream.closed else "open"


def _account(segment: SegmentStatus) -> str:
    note = (" ended by a drain" if segment.by_drain else " ended") if segment.ended else ""
    if segment.xor and segment.sent == segment.received:
        note = " other elements were received than were sent"
    of = "" if segment.expected is None else f" of {segment.expected}"
    return f"{segment.segment} {segment.received}/{segment.sent}{of}{note}"


SUBSCRIPTIONS: Final[Sequence[Column[SubscriptionStatus]]] = [
    Column("NAME", lambda each: each.name),
    Column("SEGMENTS", lambda each: each.segments or "all"),
    Column("SCOPES", lambda each: each.scopes or "all"),
    Column("ACKNOWLEDGED", lambda each: each.acknowledged),
    Column("KEPT", lambda each: each.retained),
    Column("OLDEST KEPT", lambda each: each.oldest_retained),
    Column("MAX AGE", lambda each: each.max_age),
    Column("LAST ACK", lambda each: each.last_ack),
    Column("STATE", lambda each: _state_subscriptions(each), style=lambda each: "red" if each.expired else ""),
    Column("MAX EVENTS", lambda each: each.max_events, wide=True),
    Column("CREATED", lambda each: each.created, wide=True),
]


def _state_subscriptions(subscription: SubscriptionStatus) -> str:
    if subscription.expired is None:
        return "active"
    return f"expired {text(subscription.expired)}: {subscription.expired_because}"


#: The names of all kinds of events.
KINDS: Final = tuple(sorted(kind.__name__ for kind in get_args(Kind)))


#: The styles of kinds that need attention, and of those for which people wait.
_STYLES: Final = {Ended: "green", Late: "yellow", Stalled: "red", Excess: "red"}


def print_event(event: Event, form: Form) -> None:
    """Print an event on one line, at once."""
    if form is Form.JSON:
        print_json(event)
    else:
        print_line(line(event, wide=form is Form.WIDE), flush=True, style=_STYLES.get(type(event.kind), ""))


def line(event: Event, wide: bool = False) -> str:
    """Format an event as a line for people.

    >>> line(Event(7, 1_357_084_800_000_000_000, "d1", Advanced("raw", 24)))
    '     7  2013-01-02 00:00:00.000  Advanced          raw  up to 24'
    """
    deployment = f"{event.deployment}  " if wide else ""
    return f"{event.seq:>6}  {text(event.at)}  {deployment}{type(event.kind).__name__:<16}  {_details(event)}"


def _details(event: Event) -> str:
    match event.kind:
        case Ended() | Late() | Excess() as body:
            return f"{body.segment}  {substream(body.scope, body.name)}  {body.account}"
        case Stalled() as body:
            return f"{text(body.segments)}  {substream(body.scope, body.name)}  {body.account}"
        case FrontIdle(front, idle):
            return f"{front} {'is idle and not waited for' if idle else 'is active again'}"
        case Advanced(segment, time):
            return f"{segment}  up to {time_text(time)}"
        case DrainRequested(drain_id, mode) | Drained(drain_id, mode) if mode is DrainMode.HAND_OVER:
            return f"{drain_id}, to hand over"
        case drain:
            return drain.drain_id


def substream(scope: str, name: str) -> str:
    """Return a substream's name with its scope, if that has a name."""
    return f"{scope}/{name}" if scope else name


def columns(by_segment: bool) -> list[Column[Entry]]:
    """Return the columns of the ledger.

    Args:
        by_segment: whether there are lines of single segments.
    """
    at_segments: list[Column[Entry]] = [
        Column("SEGMENT", lambda line: "all" if line.segment is None else line.segment),
    ]
    passed_on: list[Column[Entry]] = [Column("PASSED ON", lambda line: line.passed_on)]
    return [
        Column("JOB", lambda line: line.key.job, wide=True),
        Column("SCOPE", lambda line: line.key.scope),
        Column("NAME", lambda line: line.key.name),
        Column("END TIME", lambda line: time_text(line.end_time), wide=True),
        Column("FROM", lambda line: line.origins, wide=True),
        *(at_segments if by_segment else []),
        Column("SENT", lambda line: line.sent),
        Column("RELEASED", lambda line: line.released),
        Column("FILTERED", lambda line: line.filtered),
        Column("LATE", lambda line: line.late),
        Column("GIVEN UP", lambda line: line.given_up),
        Column("QUARANTINED", lambda line: line.quarantined),
        *(passed_on if by_segment else []),
        Column("MISSING", lambda line: line.missing, style=lambda line: "red" if line.missing or line.wrong else ""),
    ]
