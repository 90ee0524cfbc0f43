"""Views of a job: what can be asked of it, and what that costs. They read only.

The upper bound on the rows that a command may touch, quick to find, lets a server separate the many commands that take
no time from the few that may take long. It decides nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tracker.contract.commands import (
    Abandon,
    AboutSubstream,
    CancelDrain,
    Command,
    Commit,
    DefineJob,
    Drain,
    Expect,
    OpenProducer,
    Recovered,
    Report,
)
from tracker.contract.events import Ended, Event
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import JobSpec
from tracker.contract.status import (
    Counts,
    DrainStatus,
    Explained,
    Found,
    FrontAge,
    FrontStatus,
    JobFigures,
    JobStatus,
    ProducerStatus,
    SegmentStatus,
    StagedCount,
    StagedStatus,
    SubscriptionStatus,
    SubstreamStatus,
    Survey,
    Tally,
    Through,
    Wanted,
)
from tracker.contract.values import EVERY_SCOPE, NO_END_TIME, DrainState, Mode, Reason

from . import deployments, surveys
from .accounts import BY_DRAIN
from .cells import Rows
from .fronts import Front
from .job import Job, or_none
from .lifecycle import AWAITING_RECOMMIT, ENDED, KNOWN, STALLED
from .log import EVERYTHING, EventFilter
from .producers import AboutRow, CloseOf, Epoch, Producer
from .validation import check_name, check_scope

_SCANNED = 50  # rows that a scan over columns passes in the time in which one is looked at by itself


_MOST_SEGMENTS = 20_000  # that one page of substreams describes
_MOST_PAGES = 256  # of ids that are looked through for it
_EARLIER = 3  # substreams that are described of those for which an end waits
_EMPTY = (0, 0, 0, 0)
_PENDING, _LOST, _FORGOTTEN = "pending", "lost", "forgotten"
_GIVEN_UP = [
    reason.number | drain for reason in (Reason.EXPIRED, Reason.ABANDONED) for drain in (0, BY_DRAIN)
]  # with elements in flight


class JobView:
    """A job, to be asked about; it is valid as long as the job is not deleted, and shows the state at each question."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    # ------------------------------------------------------------ at hand

    @property
    def last_seq(self) -> int:
        """Return the number of the newest event."""
        return self._job.log.last_seq

    @property
    def log_id(self) -> str:
        """Return the name of the job's log."""
        return self._job.log.log_id

    @property
    def deployment(self) -> str:
        return self._job.spec.deployment

    @property
    def drain_state(self) -> DrainState:
        """Return how far the drain of the current deployment is."""
        return self._job.drain.state

    @property
    def segments(self) -> Sequence[str]:
        return self._job.graph.names

    @property
    def producers(self) -> Mapping[str, Producer]:
        """Return the producers by name, in the order in which they came."""
        return self._job.producers

    def counts(self) -> Counts:
        """Return how much the job takes up."""
        job = self._job
        accounts = job.accounts
        return Counts(
            segments=len(job.graph),
            open_substreams=accounts.life.open,
            staged_substreams=accounts.life.staged,
            staged_units=job.staged_units,
            staged_entries=job.staged_entries,
            cells=accounts.cells.count,
            tombstones=len(job.tombstones),
            events=job.log.kept,
            fronts=len(job.fronts.by_name),
            expected=job.closing.expectations.count,
            scopes=len(job.fronts.scoped),
        )

    def tally(self) -> Tally:
        """Return what the job has announced since the process started, and how much was late in all."""
        ends = self._job.ends_announced
        return Tally(self._job.late_reports, tuple(ends[reason.number] for reason in Reason))

    def figures(self, most_fronts: int) -> JobFigures:
        """Return the job's numbers, with the ages of at most so many fronts."""
        job = self._job
        accounts = job.accounts
        unfinished = job.fronts.unfinished()
        oldest = heapq.nsmallest(most_fronts, unfinished, key=_since)
        return JobFigures(
            open_substreams=accounts.life.open,
            incomplete_substreams=job.closing.expectations.shortfall()[0] if job.closing.expectations else 0,
            staged_substreams=accounts.life.staged,
            staged_epochs=job.count_staged(),
            cells=accounts.cells.count,
            tombstones=len(job.tombstones),
            events=job.log.kept,
            retained_events=len(job.log.retained),
            last_seq=job.log.last_seq,
            segments=job.graph.names,
            drain=job.drain.state,
            producers=len(job.producers),
            idle_fronts=sum(front.idle or front.silent for front in unfinished),
            fronts=tuple(FrontAge(front.name, _since(front)) for front in oldest),
            other_fronts=len(unfinished) - len(oldest),
        )

    def event_at(self, seq: int) -> int | None:
        """Return when the first kept event from `seq` on happened (ns); None: there is none."""
        return self._job.log.at(seq)

    def new_scopes(self, scopes: Iterable[str]) -> int:
        """Return how many of these scopes no frontier has named yet."""
        return len(set(scopes) - self._job.fronts.scoped)

    # ------------------------------------------------------------ what looking costs, in rows

    @property
    def scan_cost(self) -> int:
        """Return what a look over all that the job holds costs."""
        job = self._job
        return len(job.accounts.flags) // _SCANNED + len(job.producers) + len(job.fronts.by_name)

    @property
    def status_cost(self) -> int:
        """Return the cost of describing the job or its drain: only in a hand-over are its substreams looked at."""
        job, fronts = self._job, len(self._job.fronts.by_name)
        size = len(job.producers) + fronts + fronts * len(job.fronts.scoped) // 20
        return size + self.scan_cost if job.drain.hands_over else size

    @property
    def scan_cells(self) -> int:
        """Return how many (substream, segment) pairs a look at all known substreams would describe."""
        return (self._job.accounts.life.open + self._job.accounts.life.ended) * len(self._job.graph)

    @property
    def search_cost(self) -> int:
        """Return what one call of `survey` or `search` costs."""
        return min(surveys.STEP, self._job.accounts.life.open) + self._job.staged_entries // 50

    # ------------------------------------------------------------ the job and its drain

    def status(self) -> JobStatus:
        """Return a summary of the job."""
        job = self._job
        drain = self.drain_status()
        return JobStatus(
            spec=JobSpec.of(job.spec),
            first_seq=job.log.first_seq,
            last_seq=job.log.last_seq,
            open_substreams=job.accounts.life.open,
            ended_substreams=job.accounts.life.ended,
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
                    producer.last_contact,
                )
                for producer in job.producers.values()
            ),
            fronts=tuple(
                FrontStatus(
                    front.name,
                    front.finished,
                    front.idle or front.silent,
                    {EVERY_SCOPE if scope is None else scope: time for scope, time in front.promised.items()},
                    front.owner or "",
                    front.last_promise,
                    () if front.fed is None else tuple(job.graph.names[number] for number in sorted(front.fed)),
                )
                for front in job.fronts
            ),
            drain=drain,
            log_id=job.log.log_id,
            incarnation=job.incarnation,
            unread_segments=tuple(name for name in job.graph.names if name not in job.read_segments),
            advanced=_advanced(job),
            staged_substreams=job.accounts.life.staged,
            staged_units=job.staged_units,
            staged_entries=job.staged_entries,
            tombstones=len(job.tombstones),
            cells=job.accounts.cells.count,
            **_incomplete(job),
        )

    def drain_status(self) -> DrainStatus:
        """Return the state of the current deployment's drain."""
        job = self._job
        return DrainStatus(
            job.drain.state,
            job.drain.drain_id,
            job.spec.deployment,
            tuple(front.name for front in job.fronts.unfinished()),
            job.accounts.life.open,
            job.accounts.cells.in_flight,
            tuple(deployments.uncommitted(job)),
            tuple(job.open_producers()),
            None if job.drain.state is DrainState.NOT_DRAINING else job.drain.mode,
            _unbalanced(job),
        )

    # ------------------------------------------------------------ events and their readers

    def events(
        self,
        after_seq: int,
        up_to_seq: int = 0,
        limit: int = 1000,
        log_id: str = "",
        wanted: EventFilter = EVERYTHING,
        own: bool = False,
        subscription: str = "",
    ) -> tuple[list[Event], int]:
        """Return kept events after a seq, in order, and the seq that was last looked at.

        The filter is not applied: it only decides which missing events matter.

        Args:
            after_seq: 0 starts at the oldest from which on nothing is missing that the filter lets through.
            up_to_seq: 0 is the last.
            log_id: the log that the seqs are of; empty: any.
            own: `after_seq` is a position of the reader's own, also if it is 0.
            subscription: read as this one, by its filter, and after what it has acknowledged if `after_seq` is 0.

        Raises:
            Refused: ``LOG_CHANGED``; ``EVENTS_EXPIRED`` if retention has dropped some of those that
                were asked for; ``UNKNOWN_SUBSCRIPTION``; ``SUBSCRIPTION_EXPIRED``.
        """
        log = self._job.log
        if log_id and log_id != log.log_id:
            raise Refused(
                Refusal.LOG_CHANGED,
                f"the log of job {self._job.spec.job!r} is {log.log_id!r}, not {log_id!r}: the job was deleted, its "
                "journal has lost its tail, or a backup was restored; start again from seq 0",
            )
        if subscription:
            reader = self._job.subscriptions.find(subscription)
            wanted, own, after_seq = reader.wanted, True, after_seq or reader.acknowledged
            if after_seq >= reader.acknowledged:
                # Nothing of it was dropped; what is known of the drops may be more careful than that.
                return log.read_kept(after_seq, up_to_seq, limit)
        return log.read(after_seq, up_to_seq, limit, wanted, own)

    def first_seq(self, wanted: EventFilter = EVERYTHING, subscription: str = "") -> int:
        """Return from which event on nothing is missing that a filter, or a subscription, asks for."""
        if subscription:
            return self._job.subscriptions.find(subscription).acknowledged + 1
        return self._job.log.dropped.last_passing(wanted) + 1

    @property
    def subscription_names(self) -> list[str]:
        """Return the names of the subscriptions, expired ones too."""
        return list(self._job.subscriptions)

    def names_subscribed_to(self, besides: str) -> int:
        """Return how many segments and scopes the filters of the subscriptions name, but for one of them."""
        return self._job.subscriptions.names_asked_for(besides)

    def filter_of(self, subscription: str) -> EventFilter:
        """Return what a subscription asks for."""
        return self._job.subscriptions.find(subscription).wanted

    def subscriptions(self) -> list[SubscriptionStatus]:
        """Return the subscriptions by name, expired ones too."""
        return self._job.subscriptions.statuses()

    # ------------------------------------------------------------ substreams

    def ended(self, segment: str, scope: str, name: str, end_time: int | None = None) -> Ended | None:
        """Return the end of a substream on a segment; None if it has not come.

        Raises:
            Refused: ``UNKNOWN_SEGMENT``; ``EVENTS_EXPIRED`` if it is forgotten, so that its end will not come again.
        """
        job = self._job
        number = job.graph.place(segment)
        check_name("substream", name)
        accounts = job.accounts
        row = accounts.find_one(scope, name)
        if row < 0 or not accounts.flags[row] & KNOWN:
            forgotten = bool(job.tombstones) and bool(job.tombstones.has([(scope, name)])[0])
            if forgotten or (end_time is not None and job.closing.is_closed(scope, end_time, number)):
                raise Refused(
                    Refusal.EVENTS_EXPIRED,
                    f"substream {name!r} of scope {scope!r} has ended or is closed, and its events are no longer kept; "
                    "its end will not be announced again",
                )
            return None
        reason = accounts.reason(row, number)
        if not reason:
            return None
        bound = int(accounts.end_time[row])
        return Ended(
            segment,
            scope,
            name,
            None if bound == NO_END_TIME else bound,
            accounts.sent(row, number),
            Reason.of(reason & ~BY_DRAIN),
            max(0, accounts.in_flight(row, number)),
            bool(reason & BY_DRAIN),
            job.closing.expectations.total(accounts.id_of(row), number),
        )

    def through(self, log_id: str, producer: str, epoch: int, substreams: Iterable[tuple[str, str]]) -> Through:
        """Return how far the substreams of a report have come."""
        job = self._job
        if log_id != job.log.log_id:
            raise Refused(
                Refusal.LOG_CHANGED,
                f"the report was answered by log {log_id!r}, and job {job.spec.job!r} has log {job.log.log_id!r} now: "
                "it was deleted, or a backup was restored; report again what the job may have lost",
            )
        named = list(substreams)
        if not job.producer(producer).has_taken_effect(epoch):
            return Through(pending=tuple(range(len(named))), waits_for_epoch=True)
        how = [_how_far(job, scope, name) for scope, name in named]
        pending, lost, forgotten = (
            tuple(place for place, each in enumerate(how) if each == word) for word in (_PENDING, _LOST, _FORGOTTEN)
        )
        return Through(pending, lost, forgotten)

    def explained(self, scope: str, name: str) -> Explained:
        """Explain one substream, with the epochs that are not committed. The cost grows with what is staged.

        If its end waits for others by the job's ordering, all open substreams are looked through for them.
        """
        job = self._job
        check_scope(scope)
        check_name("substream", name)
        row = job.accounts.find_one(scope, name)
        if row < 0:
            return Explained(None, ())
        known = bool(job.accounts.flags[row] & KNOWN)
        staged = [
            found
            for producer in sorted(job.producers.values(), key=lambda producer: producer.name)
            for number, epoch in sorted(producer.staged.items())
            if (found := _staged_of(job, producer, number, epoch, row)) is not None
        ]
        if not known:
            return Explained(None, tuple(staged))
        earlier = job.ends.earlier(row)
        rows = np.concatenate([[row], earlier[:_EARLIER]])
        status, *first = (
            _substream_status(job, each, segments)
            for each, segments in zip(rows.tolist(), _segments(job, rows), strict=True)
        )
        return Explained(status, tuple(staged), tuple(first), len(earlier))

    def substreams(
        self,
        scopes: Sequence[str] = (),
        include_ended: bool = False,
        only_stalled: bool = False,
        limit: int = 100,
        after: int = -1,
    ) -> tuple[list[SubstreamStatus], int | None]:
        """Return a page of the known substreams, in the order of their creation.

        A page may be shorter than asked for, even empty, with another after it: what is looked at for one is bounded.

        Args:
            scopes: of these scopes only; empty: of all.
            include_ended: those, too, that have ended on every segment and are still remembered.
            only_stalled: only those announced as stalled.
            after: what an earlier page gave; -1 for the first.

        Returns:
            the substreams, and the `after` of the next page (None: there is none).
        """
        job = self._job
        accounts = job.accounts
        every, of = int(KNOWN), int(KNOWN if include_ended else KNOWN | ENDED)
        numbers = [accounts.scope_number[scope] for scope in scopes if scope in accounts.scope_number]
        limit = min(limit, max(1, _MOST_SEGMENTS // len(job.graph)))
        found: list[int] = []
        following = None
        for looked, (last, rows) in enumerate(accounts.by_creation(after, every, of), 1):
            if only_stalled:
                rows = rows[accounts.life.are(rows, STALLED)]
            if scopes:
                rows = rows[np.isin(accounts.scope[rows], numbers)]
            found += rows.tolist()
            if len(found) > limit:
                found = found[:limit]
                following = accounts.id_of(found[-1])
                break
            if looked == _MOST_PAGES:
                following = last
                break
        return [
            _substream_status(job, row, segments)
            for row, segments in zip(found, _segments(job, np.array(found, np.int64)), strict=True)
        ], following

    def survey(self, surveyor: surveys.Surveyor) -> Survey | None:
        """Let a surveyor look at the next substreams; return the survey, once it has looked at all."""
        return None if surveyor.step(self._job) else surveyor.survey(self._job)

    def search(self, wanted: Wanted, limit: int = 50, after: int = -1) -> Found:
        """Return some open substreams that are wanted, by creation, and where to go on. One call looks at so many.

        Args:
            after: the `following` of an earlier answer; -1 for the first.
        """
        return surveys.found(self._job, wanted, limit, after)


def _how_far(job: Job, scope: str, name: str) -> str:
    """Return which of the three words applies to a substream; "": it is through."""
    accounts = job.accounts
    row = accounts.find_one(scope, name)
    if row < 0:
        return _FORGOTTEN
    is_late = accounts.id_of(row) in job.late_by_id
    if not (is_late or accounts.flags[row] & KNOWN):
        return _FORGOTTEN  # it is only named, by what is staged or by a close after its end
    rows = np.array([row])
    if accounts.flags[row] & AWAITING_RECOMMIT or accounts.cells.owing(rows)[0]:
        return _PENDING
    count = len(job.graph)
    reasons = accounts.cells.reasons(np.repeat(rows, count), np.arange(count))
    return _LOST if is_late or np.isin(reasons, _GIVEN_UP).any() else ""


def _unbalanced(job: Job) -> tuple[str, ...]:
    """Return the segments on which a hand-over under way waits for elements."""
    if not (job.drain.hands_over and job.drain.under_way):
        return ()
    return tuple(job.graph.names[number] for number in np.flatnonzero(deployments.unbalanced(job)).tolist())


def _advanced(job: Job) -> dict[str, int]:
    """Return up to which end time each segment of the present graph is over; what an earlier graph announced stays
    kept."""
    if not job.spec.progress:
        return {}
    return {name: job.ends.advanced[name] for name in job.graph.names if name in job.ends.advanced}


def _incomplete(job: Job) -> dict[str, int]:
    """Return what is expected of open substreams and missing, in all."""
    shortfall = job.closing.expectations.shortfall()
    return {
        "incomplete_substreams": shortfall.substreams,
        "expected": shortfall.expected,
        "expected_sent": shortfall.sent,
    }


def _staged_of(job: Job, producer: Producer, number: int, epoch: Epoch, row: int) -> StagedStatus | None:
    names = job.graph.names
    counts: dict[str, list[int]] = {}
    for entries in epoch.entries:
        for place in np.flatnonzero(entries.rows == row).tolist():
            count = counts.setdefault(names[int(entries.segments[place])], [0, 0])
            count[0] += int(entries.sent[place])
            count[1] += int(entries.received[place])
    about = [pledge for pledge in epoch.pledges if isinstance(pledge, AboutRow) and pledge.row == row]
    closing = {pledge.front for pledge in about if isinstance(pledge, CloseOf)}
    expecting = {pledge.front for pledge in about if not isinstance(pledge, CloseOf)}
    if not (counts or closing or expecting):
        return None
    return StagedStatus(
        producer.name,
        number,
        producer.mode,
        epoch.sealed,
        tuple(StagedCount(name, *counts[name]) for name in names if name in counts),
        tuple(sorted(closing)),
        tuple(sorted(expecting)),
    )


def _segments(job: Job, rows: Rows) -> Iterator[tuple[SegmentStatus, ...]]:
    """Yield what the segments of rows show."""
    accounts, count = job.accounts, len(job.graph)
    reasons = accounts.cells.reasons(np.repeat(rows, count), np.tile(np.arange(count), len(rows))).reshape(-1, count)
    ended, by_drain = (reasons != 0).tolist(), (reasons & BY_DRAIN != 0).tolist()
    closed = job.closing.closed_on(rows).tolist()
    at, touched, words = accounts.cells.touched(rows)
    cells = dict(zip((at * count + touched).tolist(), words.tolist(), strict=True))
    names = ["", *job.numbers.names]  # a cell has a producer's number with 1 added, 0 for none
    expectations = job.closing.expectations
    for place, id_ in enumerate(accounts.ids_of(rows).tolist() if rows.size else ()):
        segments = []
        for number, name in enumerate(job.graph.names):
            xor, sent, received, who = cells.get(place * count + number, _EMPTY)
            reporters = names[who & 0xFFFFFFFF], names[who >> 32]
            by_front = expectations.on(id_, number) if expectations else {}
            expected = sum(by_front.values()) if by_front else None
            done, drained = ended[place][number], by_drain[place][number]
            over = done or closed[place][number]
            others = expectations.differs(id_, number)
            segments.append(
                SegmentStatus(name, done, xor, sent, received, *reporters, expected, by_front, over, drained, others)
            )
        yield tuple(segments)


def _substream_status(job: Job, row: int, segments: tuple[SegmentStatus, ...]) -> SubstreamStatus:
    accounts = job.accounts
    end_time = int(accounts.end_time[row])
    done = bool(accounts.flags[row] & ENDED)
    waiting = [] if done else job.closing.waiting.waiting_for(row, [segment.ended for segment in segments])
    return SubstreamStatus(
        scope=accounts.scope_names[int(accounts.scope[row])],
        name=accounts.names[row],
        end_time=None if end_time == NO_END_TIME else end_time,
        closed=done or all(segment.closed for segment in segments),
        waiting_for=tuple(waiting),
        segments=segments,
        late_reports=job.late_by_id.get(accounts.id_of(row), 0),
        created_ns=int(accounts.created[row]),
        changed_ns=int(accounts.changed[row]),
        held_by=tuple(name for name in job.producers if row in job.provisional.awaiting.get(name, ())),
        by_drain=any(segment.by_drain for segment in segments),
    )


def _since(front: Front) -> int:
    return front.last_contact if front.last_promise is None else front.last_promise


# ---------------------------------------------------------------- what a command, or looking, costs


def reach(job: Job | None, command: Command) -> int:
    """Return how many rows of a job a command may touch, at most or nearly so."""
    if isinstance(command, Report):
        named = len(command.xor) + 2 * len(command.names) + len(command.substream_ids) + len(command.promises)
        if job is None:
            return named
        producer = job.producers.get(command.producer)
        if producer is None:
            return named
        at_once = command.commit or producer.mode is Mode.IMMEDIATE
        if at_once and any(not isinstance(promise, AboutSubstream) for promise in command.promises):
            named += job.accounts.life.open
        if producer.staged and (command.commit or not producer.settled):
            named += _staged(job, producer)
        return named * max(1, len(job.fronts.groups))  # what is new, and what is promised, is looked at in each
    if isinstance(command, DefineJob):
        spec = command.spec
        size = 4 * len(spec.segments) + len(spec.fronts) + len(spec.front_segments) * len(spec.segments) // _SCANNED
        return size if job is None or spec.deployment == job.spec.deployment else size + _all(job)
    if job is None or isinstance(command, Drain | CancelDrain | Recovered):
        return 0
    if isinstance(command, Commit):
        producer = job.producers.get(command.producer)
        if producer is None:
            return 0
        count = len(command.units or ()) + len(command.promises)
        moves = any(not isinstance(promise, Expect) for promise in command.promises)
        count *= max(1, len(job.fronts.groups))
        return count + _staged(job, producer) + (job.accounts.life.open if moves else 0)
    if isinstance(command, OpenProducer):
        producer = job.producers.get(command.producer)
        return _staged(job, producer) if producer is not None and command.resume_epoch is not None else 0
    if isinstance(command, Abandon):
        return 1
    return _all(job)


def _all(job: Job) -> int:
    return job.accounts.life.open + sum(_staged(job, producer) for producer in job.producers.values())


def _staged(job: Job, producer: Producer) -> int:
    """Return the rows of staged epochs, and what their promises may end."""
    if not producer.staged:
        return 0
    pieces = [piece for epoch in producer.staged.values() for piece in epoch.pieces]
    count = len(pieces) + sum(len(piece.entries.rows) for piece in pieces)
    return count + (job.accounts.life.open if any(piece.pledges for piece in pieces) else 0)
