"""One job: its state, and what happens when an epoch or a promise takes effect.

The parts know nothing of one another: the accounts fold and remember, the fronts and `ClosedSet` decide what is closed,
`Completion` finds what has ended. Here they are put together, in the contract's order: what takes effect makes its
substreams known, folds its entries, keeps its promises, and is followed by one evaluation (`Job.apply`).

The commands that make things take effect are beside: `reports` (runs, reports, commits, promises), `deployments` (specs
and drains), and `timers` for what time does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracker.contract.commands import Promise
from tracker.contract.events import Body, Ended, Excess, FrontIdle, Late
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import Spec
from tracker.contract.status import SOLE_OWNER
from tracker.contract.values import DrainMode, DrainState, Reason

from .accounts import Accounts, Changes, new_accounts
from .cells import Entries, Rows, distinct
from .closed import ClosedSet
from .ends import Completion
from .fronts import CommittedWatermarks, Front, Fronts
from .graph import Graph
from .lifecycle import ENDED, KNOWN, STALLED
from .log import EndColumns, EventLog
from .producers import (
    AboutRow,
    CloseOf,
    Epoch,
    ExpectOf,
    FinishOf,
    FrontierOf,
    IdentitiesOf,
    Newest,
    Numbers,
    Pledge,
    Producer,
    StagedReport,
)
from .provisional import Origin, Provisional
from .subscriptions import Subscriptions
from .tombstones import Tombstones

UNDER_WAY = (DrainState.DRAINING, DrainState.TIMED_OUT)


@dataclass(slots=True)
class DrainRecord:
    """One deployment's drain.

    Attributes:
        deadline: when it times out (ns); None: never, or it has already.
        mode: what becomes of what is open.
    """

    state: DrainState = DrainState.NOT_DRAINING
    drain_id: str = ""
    deadline: int | None = None
    mode: DrainMode = DrainMode.FINISH

    @property
    def under_way(self) -> bool:
        """Return whether the drain is neither done nor cancelled; one that timed out goes on."""
        return self.state in UNDER_WAY

    @property
    def finishes(self) -> bool:
        """Return whether a finishing drain is under way, so that a front that finishes now does so for that."""
        return self.under_way and self.mode is DrainMode.FINISH

    @property
    def finished(self) -> bool:
        """Return whether the drain is done, and the job starts afresh with its next deployment."""
        return self.state is DrainState.DRAINED and self.mode is DrainMode.FINISH

    @property
    def hands_over(self) -> bool:
        """Return whether the deployment stops, or has stopped, for the next one to go on with what is open."""
        return self.mode is DrainMode.HAND_OVER and (self.under_way or self.state is DrainState.DRAINED)

    @property
    def handed_over(self) -> bool:
        """Return whether the next deployment goes on with what is open."""
        return self.state is DrainState.DRAINED and self.mode is DrainMode.HAND_OVER


NO_ROWS: Rows = np.empty(0, np.int64)
_NO_U8 = np.empty(0, np.uint64)
_FEW = 8  # up to so many rows are quicker to go through than to sort
_FAR = 31 * 86_400 * 10**6  # us: an end time so far ahead is a wrong clock's; a window as long as a month may end so
NO_ENTRIES = Entries(NO_ROWS, NO_ROWS, _NO_U8, _NO_U8, _NO_U8)


class Job:
    """A job's whole state.

    Args:
        now: when it was defined (ns).

    Attributes:
        past_deployments: those that it has left.
        changes: what the next evaluation looks at, and when the command at hand was taken.
        to_forget: what may be forgotten after a while, oldest first: (since when, rows).
        retained: rows that retention would forget, but that are still needed, by staged epochs.
        retained_checked: when that was found (ns).
        tombstones: what has ended and is forgotten.
        staged_units, staged_entries: how much is staged: units, and one for each epoch; entries and promises.
        stalls_from: before that time nothing can stall or expire; None: look.
        event_time: the greatest end time of which an element was folded in, of those that were not too far ahead.
        folded_at: when an element was folded in last (ns); None: not yet.
        looked_at: when a tick last looked for what ends without a promise after a quiet time (ns).
        promised_at: when promises last took effect with an epoch or a commit (ns).
        least_end_time, least_created: no open substream ends earlier, or was named earlier if it has no end time; None:
            look. They are kept for a job with a deadline.
        numbers: the producers' numbers, by which cells refer to them.
        read_segments: those of the graph on which somebody has received something.
        ends_announced: ends since the process started, by the number of their reason.
    """

    def __init__(self, spec: Spec, graph: Graph, log_id: str, now: int) -> None:
        self.spec = spec
        self.graph = graph
        self.log = EventLog(log_id)
        self.subscriptions = Subscriptions(self.log)
        self.changes = Changes(now)
        self.incarnation = 0
        self.past_deployments = Newest()
        self.drain = DrainRecord()
        self.producers: dict[str, Producer] = {}
        self.numbers = Numbers()
        self.staged_units = self.staged_entries = 0
        self.read_segments: set[str] = set()
        self._read_whole: Graph | None = None  # a graph of which every segment has been read
        self.fronts_resumed = False  # an idle front has, since the last evaluation
        self.late_reports = 0
        self.ends_announced = [0] * (1 + max(Reason.by_number()))
        self.late_by_id: dict[int, int] = {}
        self.begin(new_accounts(len(graph)), Fronts(spec.fronts, now))

    def begin(
        self, accounts: Accounts, fronts: Fronts, committed_watermarks: list[CommittedWatermarks] | None = None
    ) -> None:
        """Start with these accounts, fronts and committed watermarks by segment, and all that is derived from them."""
        fronts.lead(
            self.spec.front_segments, self.graph, committed_watermarks or [CommittedWatermarks()] * len(self.graph)
        )
        self.accounts = accounts
        self.fronts = fronts
        self.changes.clear()
        self.closing = ClosedSet(accounts, fronts, self.changes)
        self.provisional = Provisional(accounts, fronts, self.closing)
        self.ends = self.new_ends()
        self.to_forget: deque[tuple[int, Rows]] = deque()
        self.retained = NO_ROWS
        self.retained_checked = 0
        self.tombstones = Tombstones()
        self.stalls_from: int | None = None
        self.event_time: int | None = None
        self.folded_at: int | None = None
        self.looked_at: int | None = None
        self.promised_at = 0
        self.least_end_time: int | None = None
        self.least_created = 0

    def new_ends(self) -> Completion:
        """Return what finds the ends, for the current graph and rules."""
        return Completion(
            self.graph,
            self.accounts,
            self.closing,
            self.spec.ordering,
            self.spec.progress,
            self.announce,
            self._announce_ends,
        )

    @property
    def now(self) -> int:
        """The time of the current command (ns), and of everything that follows from it."""
        return self.changes.now

    def announce(self, body: Body) -> None:
        """Append an event to the job's log."""
        if type(body) is Ended:
            self.ends_announced[body.reason.number] += 1
        self.log.append(self.now, self.spec.deployment, body)

    def _announce_ends(self, segment: str, columns: EndColumns) -> None:
        self.ends_announced[Reason.COMPLETE.number] += len(columns.names)
        self.log.append_ends(self.now, self.spec.deployment, segment, columns)

    # ------------------------------------------------------------ what there is

    def is_open(self) -> bool:
        """Return whether a substream is open or an epoch staged."""
        return self.accounts.life.open > 0 or self.count_staged() > 0

    def count_staged(self) -> int:
        """Return how many epochs are staged, of all producers."""
        return sum(len(producer.staged) for producer in self.producers.values())

    def staged_rows(self) -> Rows:
        """Return the rows that staged epochs refer to. Those that await a commit have not ended, and stay anyway."""
        epochs = (epoch for producer in self.producers.values() for epoch in producer.staged.values())
        return np.concatenate([NO_ROWS, *(epoch.rows() for epoch in epochs)])

    def open_producers(self) -> list[str]:
        """Return the producers whose current run has not closed."""
        return [producer.name for producer in self.producers.values() if producer.run is not None]

    def producer(self, name: str) -> Producer:
        """Return a producer by its name; raises `Refused` if there is none."""
        producer = self.producers.get(name)
        if producer is None:
            raise Refused(
                Refusal.UNKNOWN_PRODUCER, f"job {self.spec.job!r} has no producer {name!r}; open one of its runs first"
            )
        return producer

    def owner(self, front: Front) -> Producer | None:
        """Return the producer that promises for a front, if it is known."""
        return self.producers.get(front.owner or "")

    # ------------------------------------------------------------ staged epochs

    def stage(self, producer: Producer, number: int, piece: StagedReport | None = None) -> Epoch:
        """Return an epoch that is staged, a new one if need be, to which one more report is added."""
        epoch = producer.staged.get(number)
        if epoch is None:
            epoch = producer.staged[number] = Epoch(sealing=producer.seals)
            self.staged_units += 1
        if piece is not None:
            epoch.add(piece)
            self.staged_units += len(piece.units)
            self.staged_entries += piece.size
        return epoch

    def unstage(self, producer: Producer, number: int) -> Epoch:
        """Remove a staged epoch."""
        epoch = producer.staged.pop(number)
        units, entries = epoch.size
        self.staged_units -= units
        self.staged_entries -= entries
        return epoch

    def keep_only(self, producer: Producer, number: int, pieces: list[StagedReport]) -> None:
        """Keep only these reports of an epoch, as if the others had never been made."""
        epoch = self.stage(producer, number)
        before, entries_before = epoch.size
        epoch.keep(pieces)
        units, entries = epoch.size
        self.staged_units += units - before
        self.staged_entries += entries - entries_before

    # ------------------------------------------------------------ promises

    def claim(self, producer: Producer, promises: Iterable[Promise]) -> None:
        """Make the producer own the fronts of its accepted promises; those that were idle are waited for again."""
        fronts = [self.fronts.by_name[promise.front] for promise in promises if promise.front]
        self.wake(fronts)
        for front in fronts:
            front.owner, front.owned_in = producer.name, self.spec.deployment
            front.last_promise = front.quiet_since = self.now
            self.break_silence(front)

    def break_silence(self, front: Front) -> None:
        """Wait again for a front that was silent, with all that is still open."""
        if front.silent:
            front.silent = False
            if not front.idle:
                self.announce(FrontIdle(front.name, False))

    def contacted(self, producer: Producer) -> None:
        """Note that a producer has reported or promised: its idle fronts become active before that takes effect."""
        producer.last_contact = self.now
        self.wake(front for front in self.fronts if front.owner == producer.name)

    def wake(self, fronts: Iterable[Front]) -> None:
        """Wait again for fronts that have reported and were idle.

        Not between a hand-over and the next deployment, which goes on with the fronts as they are.
        """
        if self.drain.handed_over:
            return
        resumed = False
        for front in fronts:
            front.last_contact = self.now
            if front.idle:
                front.idle, resumed = False, True
                if not front.silent:
                    self.announce(FrontIdle(front.name, False))
        if resumed:
            self.fronts_resumed = True
            self.closing.fronts_changed()
            self.closing.note()

    def keep_promises(self, pledges: Iterable[Pledge], origin: Origin | None = None) -> None:
        """Have promises take effect, except those of fronts and substreams that no longer exist.

        Args:
            origin: the IMMEDIATE epoch that can still take them back; None: they are committed.
        """
        for pledge in pledges:
            if not self._can_be_kept(pledge):
                continue
            if origin is not None:
                self.provisional.note(origin, pledge)
            elif self.provisional:
                self.provisional.confirm(pledge)
            self._keep(pledge)
            if origin is None:
                self._commit(pledge)

    def _can_be_kept(self, pledge: Pledge) -> bool:
        if isinstance(pledge, CloseOf) and pledge.front == SOLE_OWNER:
            return bool(self.accounts.flags[pledge.row] & KNOWN)
        if pledge.front not in self.fronts.by_name:
            return False
        if isinstance(pledge, AboutRow) and not self.accounts.flags[pledge.row] & KNOWN:
            return False
        return not (isinstance(pledge, ExpectOf | IdentitiesOf) and self.accounts.reason(pledge.row, pledge.segment))

    def _keep(self, pledge: Pledge) -> None:
        if isinstance(pledge, CloseOf):
            self.closing.close(pledge.row, pledge.front)
        elif isinstance(pledge, ExpectOf):
            if self.closing.expect(pledge):
                self.accounts.changed[pledge.row] = self.now
                self.accounts.life.unmark(pledge.row, STALLED)
        elif isinstance(pledge, IdentitiesOf):
            self.closing.identify(pledge.row, (pledge.segment, pledge.front), pledge.xor)
        elif isinstance(pledge, FrontierOf):
            self.closing.raise_frontier(self.fronts.by_name[pledge.front], pledge.scope, pledge.time)
        else:
            self.finish(self.fronts.by_name[pledge.front])

    def _commit(self, pledge: Pledge) -> None:
        if isinstance(pledge, FrontierOf):
            self.closing.commit_frontier(self.fronts.by_name[pledge.front], pledge.scope, pledge.time)
        elif isinstance(pledge, FinishOf):
            self.closing.commit_finish(self.fronts.by_name[pledge.front])

    def finish(self, front: Front) -> None:
        """Finish a front: it will send nothing more."""
        if not front.finished:
            front.drained_in = self.drain.finishes
            front.idle = False
        self.closing.finish(front)

    # ------------------------------------------------------------ taking effect

    def apply(
        self, producer: Producer, entries: Entries, pledges: Sequence[Pledge], origin: Origin | None = None
    ) -> Entries:
        """Have an epoch, or a report of the IMMEDIATE epoch `origin`, take effect; return the entries folded in."""
        accounts = self.accounts
        already_closed = _make_known(self, entries, pledges)
        if len(entries.rows):
            if self._read_whole is not self.graph:
                self._note_read(entries)
            # Only a job that asks for stalls has marks of them to take back.
            stalls = self.spec.stall_after is not None
            entries, late, closed = accounts.fold(entries, producer.number, self.now, already_closed, stalls)
            if late is not None:
                _announce_late(self, producer, late)
            if closed.size:
                self.changes.look_at(closed)
            if len(entries.rows):
                self.folded_at = self.now
            if self.spec.deadline_by_event_time:
                ends = accounts.end_time[entries.rows]
                if (ends := ends[ends <= self.now // 1000 + _FAR]).size:
                    latest = int(ends.max())
                    self.event_time = latest if self.event_time is None else max(latest, self.event_time)
            if self.closing.expectations:
                self.closing.expectations.touched(entries.rows)
                self.closing.look_at(self.closing.expectations.to_look_at(entries.rows).tolist())
        if pledges:
            self.promised_at = self.now
        self.keep_promises(pledges, origin)
        self.evaluate()
        return entries

    def _note_read(self, entries: Entries) -> None:
        read = entries.segments[entries.received > 0]
        if not read.size:
            return
        numbers = read.tolist() if read.size <= _FEW else np.unique(read).tolist()
        self.read_segments.update(self.graph.names[segment] for segment in numbers)
        if self.read_segments.issuperset(self.graph.names):
            self._read_whole = self.graph

    def evaluate(self) -> None:
        """Find and announce all ends since the last evaluation."""
        self.fronts_resumed = False
        self.closing.note()
        for row, segment, expected in self.closing.waiting.exceeded():
            scope = self.accounts.scope_names[int(self.accounts.scope[row])]
            name, sent = self.accounts.names[row], self.accounts.sent(row, segment)
            self.announce(Excess(self.graph.names[segment], scope, name, expected, sent))
        ended = self.ends.evaluate(self.changes.pop_rows())
        if self.fronts and self.spec.progress:
            progress = [group.frontier_of_all_scopes() for group in self.fronts.groups]
            self.ends.announce_progress([progress[place] for place in self.fronts.group_of])
        self.retire(ended)

    def end_by_force(self, rows: Sequence[int], reason: Reason) -> None:
        """End rows at once on all their remaining segments, in this order, whatever is in flight."""
        self.ends.force(rows, reason)
        self.retire(rows)

    def retire(self, ended: Sequence[int]) -> None:
        """Release what rows that ended everywhere still hold; their retention begins."""
        if not ended:
            return
        rows: Rows = np.array(ended, np.int64)
        self.closing.leave(rows)
        self.accounts.changed[rows] = self.now
        self.provisional.ended(rows)
        self.to_forget.append((self.now, rows))

    # ------------------------------------------------------------ operators

    def abandon(self, scope: str, name: str) -> None:
        """End a substream at once, whatever of it is in flight."""
        row = self.known_row(scope, name)
        if not self.accounts.flags[row] & ENDED:
            self.end_by_force([row], Reason.ABANDONED)
        self.evaluate()

    def known_row(self, scope: str, name: str) -> int:
        """Return the row of a substream that is known; raises `Refused` if it is not."""
        row = self.accounts.find_one(scope, name)
        if row < 0 or not self.accounts.flags[row] & KNOWN:
            raise Refused(
                Refusal.UNKNOWN_SUBSTREAM, f"job {self.spec.job!r} has no substream {name!r} in scope {scope!r}"
            )
        return row


def _make_known(job: Job, entries: Entries, pledges: Sequence[Pledge]) -> NDArray[np.bool_] | None:
    """Open named substreams, except those that the fronts have closed and those that had ended.

    Returns:
        where segments wait for different fronts, the entries of substreams that were not known which the fronts
        of their segments have closed already.
    """
    accounts = job.accounts
    named = [pledge.row for pledge in pledges if isinstance(pledge, AboutRow)]
    rows = np.concatenate([entries.rows, np.array(named, np.int64)]) if named else entries.rows
    unknown = accounts.unknown(rows)
    if not unknown.size:
        return None
    unknown = distinct(unknown)
    already_closed = None
    if len(job.fronts.groups) > 1:
        unknown, already_closed = _open_in_groups(job, unknown, entries, pledges)
    elif job.fronts or job.fronts.has_committed_watermark:
        is_open = [
            not job.closing.is_closed(accounts.scope_names[scope], end_time, 0)
            for scope, end_time in zip(
                accounts.scope[unknown].tolist(), accounts.end_time[unknown].tolist(), strict=True
            )
        ]
        unknown = unknown[is_open]
    if job.tombstones and unknown.size:
        unknown = unknown[~job.tombstones.has(accounts.named(unknown))]
    if unknown.size:
        accounts.life.open_up(unknown)
        job.closing.join(unknown)
        job.ends.join(unknown)
        if job.least_end_time is not None:
            job.least_end_time = min(job.least_end_time, int(accounts.end_time[unknown].min()))
            job.least_created = min(job.least_created, int(accounts.created[unknown].min()))
    return already_closed


def _open_in_groups(
    job: Job, unknown: Rows, entries: Entries, pledges: Sequence[Pledge]
) -> tuple[Rows, NDArray[np.bool_]]:
    """Return the rows to open, for which a segment still waits, and the late entries on other segments."""
    accounts, group_of = job.accounts, job.fronts.group_of
    named: dict[int, set[int]] = {row: set() for row in unknown.tolist()}
    for row, segment in zip(entries.rows.tolist(), entries.segments.tolist(), strict=True):
        if row in named:
            named[row].add(group_of[segment])
    for pledge in pledges:
        if isinstance(pledge, CloseOf) and pledge.row in named:
            named[pledge.row].update(job.closing.groups_of(pledge.front))
        elif isinstance(pledge, ExpectOf | IdentitiesOf) and pledge.row in named:
            named[pledge.row].add(group_of[pledge.segment])
    already_closed = {
        row: job.closing.closed_groups(accounts.scope_names[int(accounts.scope[row])], int(accounts.end_time[row]))
        for row in named
    }
    is_open = [row for row, places in named.items() if not all(already_closed[row][place] for place in places)]
    late = [
        row in already_closed and already_closed[row][group_of[segment]]
        for row, segment in zip(entries.rows.tolist(), entries.segments.tolist(), strict=True)
    ]
    return np.array(is_open, np.int64), np.array(late, np.bool_)


def _announce_late(job: Job, producer: Producer, late: Entries) -> None:
    """Announce one event for each substream and segment, in order of first mention."""
    accounts = job.accounts
    sums: dict[tuple[int, int], list[int]] = {}
    for row, segment, sent, received in zip(
        late.rows.tolist(), late.segments.tolist(), late.sent.tolist(), late.received.tolist(), strict=True
    ):
        counts = sums.setdefault((row, segment), [0, 0])
        counts[0] += sent
        counts[1] += received
    for (row, segment), (sent, received) in sums.items():
        scope = accounts.scope_names[int(accounts.scope[row])]
        job.announce(Late(job.graph.names[segment], scope, accounts.names[row], producer.name, sent, received))
        id_ = accounts.id_of(row)
        job.late_by_id[id_] = job.late_by_id.get(id_, 0) + 1
    job.late_reports += len(sums)


def or_none(epoch: int) -> int | None:
    """Return a committed epoch as the wire has it: None instead of -1."""
    return None if epoch < 0 else epoch
