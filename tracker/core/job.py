"""One job: what each command does to it.

The pieces know nothing of one another: the accounts fold and remember, the fronts and `Closing` say what is closed,
`Ends` finds what has ended. Here they are put together, in the contract's order: a command is checked, settles what
earlier runs left if it is a run's first word, and takes effect; an epoch that takes effect makes its substreams
known, folds its entries, keeps its promises, and is followed by one evaluation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from .accounts import CLOSED, DONE, ENDING, HELD, KNOWN, STALLED, Accounts, Entries, Rows
from .closing import SOLE_OWNER, Closing
from .commands import (
    Close,
    CloseProducer,
    Commit,
    Committed,
    DrainState,
    Finish,
    Frontier,
    Mode,
    Opened,
    OpenProducer,
    Outcome,
    Promise,
    Report,
    Reported,
    Spec,
)
from .drains import DrainRecord
from .ends import Ends
from .events import (
    Body,
    DrainCancelled,
    Drained,
    DrainRequested,
    FrontIdle,
    Late,
    Reason,
)
from .fronts import FIRM, Front, Fronts, Supporter
from .graph import Graph
from .log import EventLog
from .messages import Resolved, check_name, check_promises, end_time_conflict, resolve
from .producers import (
    CloseOf,
    Epoch,
    FinishOf,
    FrontierOf,
    Piece,
    Pledge,
    Producer,
    check_absent,
)
from .refusal import Refused

NO_ROWS: Rows = np.empty(0, np.int64)
_NO_U8 = np.empty(0, np.uint64)
NO_ENTRIES = Entries(NO_ROWS, NO_ROWS, _NO_U8, _NO_U8, _NO_U8)


class Job:
    """A job's whole state.

    Args:
        spec: as first defined.
        graph: the spec's, checked.
        log_id: names the job's log.
        now: when it was defined (ns).

    Attributes:
        left: deployments that are over.
        dirty: rows to look at in the next evaluation.
        to_forget: what may be forgotten after a while, oldest first: (since when, rows).
        pinned: rows that retention would forget, but that are still needed; `pins_pass`: some of them for what
            passes without notice, such as staged epochs; `pins_checked`, `pins_seen`: when, and at which version of
            the fronts, that was found.
        stalls_from: before that time nothing can stall or expire; None: look.
        producer_names: by number, forgotten ones too, since cells refer to them.
    """

    def __init__(self, spec: Spec, graph: Graph, log_id: str, now: int) -> None:
        self.spec = spec
        self.graph = graph
        self.log = EventLog(log_id)
        self.now = now
        self.incarnation = 0
        self.left: set[str] = set()
        self.drain = DrainRecord()
        self.producers: dict[str, Producer] = {}
        self.producer_names: list[str] = []
        self.late_reports = 0
        self.late_by_id: dict[int, int] = {}
        self.begin(Accounts(len(graph)), Fronts(spec.fronts, now))

    def begin(self, accounts: Accounts, fronts: Fronts) -> None:
        """Start with these accounts and fronts, and all that is derived from them."""
        self.accounts = accounts
        self.fronts = fronts
        self.dirty: list[Rows] = []
        self.closing = Closing(accounts, fronts, self.dirty)
        self.take(self.now)
        self.ends = self._new_ends()
        self.to_forget: deque[tuple[int, Rows]] = deque()
        self.pinned = NO_ROWS
        self.pins_pass = False
        self.pins_checked = self.pins_seen = 0
        self.stalls_from: int | None = None

    def _new_ends(self) -> Ends:
        return Ends(self.graph, self.accounts, self.spec.ordering, self.spec.progress, self.announce)

    def take(self, now: int) -> None:
        """A command was taken at `now` (ns): what happens from here on happens then."""
        self.now = self.closing.now = now

    def announce(self, body: Body) -> None:
        self.log.append(self.now, self.spec.deployment, body)

    # ------------------------------------------------------------ deployments

    def redefine(self, spec: Spec, graph: Graph, force: bool) -> None:
        """Take over a spec: the same deployment's, or a new one's."""
        if spec.deployment == self.spec.deployment:
            self._check_same(spec, graph)
            self.spec = replace(
                self.spec,
                stall_after=spec.stall_after,
                expire_after=spec.expire_after,
                idle_after=spec.idle_after,
                retention=spec.retention,
            )
            self._durations_changed()
            return
        if spec.deployment in self.left:
            raise Refused.precondition(
                "DEPLOYMENT_MISMATCH",
                f"the job has left deployment {spec.deployment!r} for {self.spec.deployment!r}; name a new one",
            )
        drained = self.drain.state is DrainState.DRAINED
        if not drained and not force:
            self._check_takeover(spec, graph)
        if not drained and force:
            self._clear_the_way()
        self.left.add(self.spec.deployment)
        old_spec, self.spec = self.spec, spec
        self.drain = DrainRecord()
        self._durations_changed()
        if drained:
            self._start_afresh(graph)
        else:
            self._take_over(old_spec, graph)
            self.evaluate()

    def _durations_changed(self) -> None:
        """What may stall is to be found anew; where nobody wants to hear of stalls, there are none."""
        self.stalls_from = None
        if self.spec.stall_after is None:
            self.accounts.flags &= ~STALLED

    def _check_same(self, spec: Spec, graph: Graph) -> None:
        differences = self.graph.differences(graph)
        if set(spec.fronts) != set(self.spec.fronts):
            differences.append(f"fronts {sorted(spec.fronts)} instead of {sorted(self.spec.fronts)}")
        if spec.ordering != self.spec.ordering:
            differences.append(f"ordering {spec.ordering.name} instead of {self.spec.ordering.name}")
        if spec.progress != self.spec.progress:
            differences.append(f"progress {spec.progress} instead of {self.spec.progress}")
        if differences:
            raise Refused.precondition(
                "SPEC_CONFLICT",
                f"deployment {spec.deployment!r} is defined otherwise: {'; '.join(differences)}; "
                "a changed job needs a new deployment",
            )

    def _check_takeover(self, spec: Spec, graph: Graph) -> None:
        if self.drain.under_way:
            raise Refused.precondition(
                "DRAIN_IN_PROGRESS",
                f"deployment {self.spec.deployment!r} is draining ({self.drain.drain_id!r}); wait for it, cancel it, "
                "or force",
            )
        differences = self.graph.differences(graph)
        if differences and self._is_open():
            raise Refused.precondition(
                "INCOMPATIBLE_GRAPH",
                f"{self.accounts.open} substreams and {self._staged_count()} epochs are open, and the graph changes: "
                f"{'; '.join(differences)}; drain the job first, or force (which abandons what is open)",
            )
        removed = [front for front in self.fronts if front.name not in spec.fronts]
        if removed and not spec.fronts:
            raise Refused.precondition(
                "INCOMPATIBLE_GRAPH", "the last front is removed, so nothing would close; drain the job first, or force"
            )
        for front in removed:
            owner = self.producers.get(front.owner) if front.owner is not None else None
            if owner is not None and owner.staged:
                raise Refused.precondition(
                    "EPOCH_STAGED",
                    f"front {front.name!r} is removed, but its owner {owner.name!r} has epochs "
                    f"{sorted(owner.staged)} staged; commit them first, or force",
                )

    def _clear_the_way(self) -> None:
        """What `force` does before the new deployment takes over."""
        if self.drain.under_way:
            self.announce(DrainCancelled(self.drain.drain_id))
            self.drain = DrainRecord(DrainState.CANCELLED, self.drain.drain_id)
            for front in self.fronts:
                if front.drained_in:
                    front.finishers.clear()
                    front.drained_in = False
            self.closing.fronts_changed()
        for producer in self.producers.values():
            self._revoke(producer, sorted(producer.staged))
        open_rows = self.accounts.in_use(int(KNOWN), int(KNOWN | DONE))
        for row in self.accounts.in_order(open_rows).tolist():
            self.ends.force(row, Reason.ABANDONED)
        self._retire_finished()
        for producer in self.producers.values():
            producer.fence()

    def _start_afresh(self, graph: Graph) -> None:
        """A new deployment of a drained job."""
        self.graph = graph
        self.incarnation += 1
        for producer in self.producers.values():
            producer.fence()
            producer.holds.clear()
            producer.staged.clear()  # without entries or promises, or the job would not have been drained
        self.late_by_id.clear()
        self.begin(Accounts(len(graph), self.accounts.next_id), Fronts(self.spec.fronts, self.now))

    def _take_over(self, old_spec: Spec, graph: Graph) -> None:
        """A new deployment that goes on with what the job has."""
        accounts, fronts = self.accounts, self.fronts
        if graph != self.graph:
            kept = [(old, graph.number[name]) for name, old in self.graph.number.items() if name in graph.number]
            accounts.relaid(len(graph), int(Reason.COMPLETE), kept)
            self.graph = graph
            self._renew_ends()
        elif (self.spec.ordering, self.spec.progress) != (old_spec.ordering, old_spec.progress):
            self._renew_ends()
            self.dirty.append(accounts.in_use(int(KNOWN | CLOSED), int(KNOWN | CLOSED | DONE)))
        removed = [name for name in fronts.by_name if name not in self.spec.fronts]
        added = [name for name in self.spec.fronts if name not in fronts.by_name]
        if not removed and not added:
            return
        closed_by_all = self.closing.closed_by_name_by_all()
        had_fronts = bool(fronts)
        for name in added:
            fronts.add_front(name, self.now)
        for name in removed:
            del fronts.by_name[name]
            self.closing.remove_front(name)
        for producer in self.producers.values():
            for epoch in producer.staged.values():
                _void_pledges(epoch, removed)
        if not had_fronts:
            self.closing.join(accounts.in_use(int(KNOWN), int(KNOWN | DONE)))
        for id_ in closed_by_all:
            for name in added:
                self.closing.close(accounts.row_of(id_), name, FIRM)
        fronts.by_name = {name: fronts.by_name[name] for name in self.spec.fronts}
        self.closing.fronts_changed()

    def _renew_ends(self) -> None:
        """After a change of graph or rules; how far each segment has come stays said."""
        advanced = self.ends.advanced
        self.ends = self._new_ends()
        self.ends.advanced = advanced

    def _is_open(self) -> bool:
        return self.accounts.open > 0 or self._staged_count() > 0

    def _staged_count(self) -> int:
        return sum(len(producer.staged) for producer in self.producers.values())

    def has_open_producers(self) -> list[str]:
        """The producers whose current run has not closed."""
        return [producer.name for producer in self.producers.values() if producer.run is not None]

    # ------------------------------------------------------------ producers

    def _producer(self, name: str) -> Producer:
        producer = self.producers.get(name)
        if producer is None:
            raise Refused.unknown(
                "UNKNOWN_PRODUCER", f"job {self.spec.job!r} has no producer {name!r}; open one of its runs first"
            )
        return producer

    def open_producer(self, command: OpenProducer) -> Opened:
        """Make a run current."""
        check_name("producer", command.producer)
        check_name("run", command.run)
        producer = self.producers.get(command.producer)
        if producer is None:
            producer = Producer(command.producer, len(self.producer_names), command.mode, self.now)
            self.producer_names.append(command.producer)
        else:
            if command.run in producer.past:
                producer.check_current(command.run)
            if command.mode is not producer.mode:
                raise Refused.precondition(
                    "MODE_CONFLICT",
                    f"producer {producer.name!r} is {producer.mode.name}; forget it first, or use another name",
                )
            if command.run == producer.run:
                return Opened(or_none(producer.committed))
            self._check_resume(producer, command.resume_epoch)
        self.producers[command.producer] = producer
        producer.open(command.run, command.seals)
        producer.heard_at = self.now
        if command.resume_epoch is not None:
            self._settle(producer, command.resume_epoch)
        return Opened(or_none(producer.committed))

    def _check_resume(self, producer: Producer, resume_epoch: int | None) -> None:
        if resume_epoch is not None and resume_epoch <= producer.committed:
            raise Refused.precondition(
                "EPOCH_REWOUND",
                f"epoch {resume_epoch} is to be resumed, but {producer.name!r} has committed {producer.committed}; "
                "an engine that lost its progress needs a new producer",
            )

    def close_producer(self, command: CloseProducer) -> None:
        """Close a run."""
        producer = self._producer(command.producer)
        producer.check_current(command.run)
        self._check_resume(producer, command.resume_epoch)
        producer.heard_at = self.now
        if command.resume_epoch is not None:
            self._settle(producer, command.resume_epoch)
        producer.fence()

    def forget_producer(self, name: str) -> None:
        """Forget a producer, with what it has staged."""
        producer = self._producer(name)
        self._revoke(producer, sorted(producer.staged))
        for front in self.fronts:
            if front.owner == name:
                front.owner = None
        self._release(producer, list(producer.holds))
        del self.producers[name]
        self.evaluate()

    def _settle(self, producer: Producer, start: int) -> None:
        """Decide what earlier runs left: what lies before `start` was committed, the rest never will be.

        Called when a run first says where it starts, and at its closing if it says where the next one will.
        """
        producer.settled = True
        for number in sorted(producer.staged):
            epoch = producer.staged[number]
            if number < start and (epoch.sealed or not epoch.sealing):
                self._commit_one(producer, number)
            else:
                self._revoke(producer, [number])
                if number < start:
                    self._count_as_committed(producer, number)
        self._count_as_committed(producer, start - 1)

    def _count_as_committed(self, producer: Producer, number: int) -> None:
        producer.committed = max(number, producer.committed)
        self._release_committed(producer)

    def _commit_up_to(self, producer: Producer, number: int) -> None:
        for each in sorted(staged for staged in producer.staged if staged <= number):
            self._commit_one(producer, each)
        self._count_as_committed(producer, number)

    def _commit_one(self, producer: Producer, number: int) -> None:
        epoch = producer.staged.pop(number)
        if number > producer.committed:
            producer.committed = number
        if producer.mode is Mode.IMMEDIATE:
            firmly = [pledge for piece in epoch.pieces for pledge in piece.pledges if not isinstance(pledge, CloseOf)]
            self._keep_promises(firmly, FIRM)
            self.closing.settle((producer.name, number), self._ids(epoch.closed_rows()))
            self._release_committed(producer)
        else:
            entries = [piece.entries for piece in epoch.pieces if len(piece.entries.rows)]
            pledges = [pledge for piece in epoch.pieces for pledge in piece.pledges]
            self._apply(producer, Entries.concatenate(entries) if entries else NO_ENTRIES, pledges, FIRM)

    def _ids(self, rows: Sequence[int]) -> list[int]:
        ids: list[int] = self.accounts.ids_of(np.array(rows, np.int64)).tolist() if rows else []
        return ids

    def _revoke(self, producer: Producer, numbers: Iterable[int]) -> None:
        """Epochs never happened. In IMMEDIATE mode what they did is undone and what they touched is held."""
        for number in numbers:
            epoch = producer.staged.pop(number)
            if producer.mode is not Mode.IMMEDIATE:
                continue
            for entries in epoch.folded:
                accounts = self.accounts
                for row in np.unique(entries.rows[(accounts.flags[entries.rows] & DONE) == 0]).tolist():
                    producer.holds[row] = max(number, producer.holds.get(row, number))
                    accounts.flags[row] |= HELD
                    accounts.changed[row] = self.now
                    accounts.flags[row] &= ~STALLED
                cells = entries.rows * accounts.segments + entries.segments
                accounts.unfold(entries.where(accounts.ended[cells] == 0))
            self.closing.withdraw((producer.name, number), self._ids(epoch.closed_rows()))

    def _release_committed(self, producer: Producer) -> None:
        if producer.holds:
            free = [row for row, epoch in producer.holds.items() if epoch <= producer.committed]
            if free:
                self._release(producer, free)
                self.evaluate()

    def _release(self, producer: Producer, rows: list[int]) -> None:
        for row in rows:
            del producer.holds[row]
            if not any(row in other.holds for other in self.producers.values()):
                self.accounts.flags[row] &= ~HELD
                self.dirty.append(np.array([row]))

    # ------------------------------------------------------------ reports

    def report(self, report: Report) -> Reported:
        """Take a report of one or more units of an epoch."""
        producer = self._producer(report.producer)
        producer.check_current(report.run)
        resolved = resolve(report, self.graph, self.accounts, self.log.log_id)
        for promise in report.promises:
            self._check_promise(producer, promise, report, resolved)
        if not producer.settled:
            self._hear(producer)
            self._settle(producer, report.epoch)
        outcome, duplicates = self._outcome(producer, report)
        self._hear(producer)
        ids = None
        if outcome is Outcome.APPLIED:
            rows = self._enter(report, resolved)
            if report.want_ids:
                ids = self.accounts.ids_of(rows[: len(report.names)]).astype(np.uint64)
            self._accept(producer, report, resolved.segments, rows)
        if report.commit and outcome in (Outcome.APPLIED, Outcome.DUPLICATE):
            self._commit_up_to(producer, report.epoch)
        return Reported(outcome, self.log.last_seq, duplicates, ids, self.log.log_id)

    def _outcome(self, producer: Producer, report: Report) -> tuple[Outcome, tuple[str, ...]]:
        if report.epoch <= producer.committed:
            return Outcome.ALREADY_COMMITTED, ()
        if self.drain.state is DrainState.DRAINED and (report.entry_count or report.promises):
            raise Refused.precondition(
                "DRAINED",
                f"deployment {self.spec.deployment!r} is drained and takes no more entries or promises; "
                "define a new one",
            )
        epoch = producer.staged.get(report.epoch)
        if epoch is not None:
            duplicates = tuple(unit for unit in report.units if unit in epoch.units)
            if duplicates:
                everything = len(duplicates) == len(report.units)
                return (Outcome.DUPLICATE, ()) if everything else (Outcome.PARTIAL_DUPLICATE, duplicates)
            if epoch.sealed:
                raise Refused.precondition(
                    "SEALED",
                    f"epoch {report.epoch} is sealed, and units {list(report.units)} were not in its manifest; "
                    "an attempt that the engine dropped reports nothing",
                )
        return Outcome.APPLIED, ()

    def _enter(self, report: Report, resolved: Resolved) -> Rows:
        """Give rows to the names that are new; the rows of all substreams of the report."""
        rows = resolved.rows
        if resolved.new:
            new = resolved.new
            scopes = [report.scopes[place] for place in report.scope_index[new].tolist()]
            names = [report.names[place] for place in new]
            added = self.accounts.add(scopes, names, resolved.end_times[new], self.now)
            rows[new] = added
            for place, at in resolved.again:
                rows[place] = added[at]
            self.to_forget.append((self.now, added))
        return rows

    def _accept(self, producer: Producer, report: Report, segments: Rows, rows: Rows) -> None:
        entries = Entries(
            rows[report.substream_index],
            segments,
            report.xor,
            report.sent.astype(np.uint64),
            report.received.astype(np.uint64),
        )
        pledges = tuple(self._pledge(promise, rows) for promise in report.promises)
        self._claim(producer, report.promises)
        if producer.mode is Mode.STAGED:
            if report.commit and not any(staged <= report.epoch for staged in producer.staged):
                # The usual way of a plain client: nothing to keep until a commit that comes at once.
                producer.committed = report.epoch
                self._apply(producer, entries, pledges, FIRM)
                return
            self._stage(producer, report.epoch).add(Piece(tuple(report.units), entries, pledges))
            return
        epoch = self._stage(producer, report.epoch)
        epoch.add(Piece(tuple(report.units), NO_ENTRIES, pledges))
        folded = self._apply(producer, entries, pledges, (producer.name, report.epoch))
        if len(folded.rows):
            epoch.folded.append(folded)

    def _stage(self, producer: Producer, number: int) -> Epoch:
        return producer.staged.setdefault(number, Epoch(sealing=producer.seals))

    def _pledge(self, promise: Promise, rows: Rows) -> Pledge:
        if isinstance(promise, Frontier):
            return FrontierOf(promise.front, promise.scope, promise.time)
        if isinstance(promise, Finish):
            return FinishOf(promise.front)
        return CloseOf(promise.front, int(rows[promise.substream_index]))

    # ------------------------------------------------------------ promises

    def _front(self, name: str) -> Front:
        return self.fronts.by_name[name]

    def _check_promise(
        self, producer: Producer, promise: Promise, report: Report | None = None, resolved: Resolved | None = None
    ) -> None:
        """A promise's front, its owner, and the end time of what it closes."""
        if promise_front := promise.front:
            front = self.fronts.by_name.get(promise_front)
            if front is None:
                fronts = ", ".join(self.fronts.by_name) or "none"
                raise Refused.invalid("UNKNOWN_FRONT", f"{promise_front!r} is not one of the job's fronts: {fronts}")
            if front.owner is not None and front.owner != producer.name:
                if front.owned_in == self.spec.deployment:
                    raise Refused.precondition(
                        "FRONT_OWNED",
                        f"front {front.name!r} belongs to producer {front.owner!r}; one producer promises for a front",
                    )
                if (owner := self.producers.get(front.owner)) is not None and owner.staged:
                    raise Refused.precondition(
                        "EPOCH_STAGED",
                        f"front {front.name!r} belonged to producer {owner.name!r} of an earlier deployment, which has "
                        f"epochs {sorted(owner.staged)} staged; settle them first",
                    )
        if (
            isinstance(promise, Close)
            and report is not None
            and resolved is not None
            and promise.substream_index in resolved.conflicts
        ):
            raise end_time_conflict(report, promise.substream_index, resolved, self.accounts)

    def _claim(self, producer: Producer, promises: Iterable[Promise]) -> None:
        """The fronts of accepted promises are the producer's, which speaks for them: idle ones turn back."""
        fronts = [self._front(promise.front) for promise in promises if promise.front]
        self._wake(fronts)
        for front in fronts:
            front.owner, front.owned_in = producer.name, self.spec.deployment
            front.last_promise = self.now

    def _hear(self, producer: Producer) -> None:
        """A producer has reported or promised: its idle fronts turn back before anything comes of it."""
        producer.heard_at = self.now
        self._wake(front for front in self.fronts if front.owner == producer.name)

    def _wake(self, fronts: Iterable[Front]) -> None:
        woken = False
        for front in fronts:
            front.heard_at = self.now
            if front.idle:
                front.idle, woken = False, True
                self.announce(FrontIdle(front.name, False))
        if woken:
            self.closing.fronts_changed()
            self.closing.note()

    def _keep_promises(self, pledges: Iterable[Pledge], supporter: Supporter) -> None:
        for pledge in pledges:
            if isinstance(pledge, CloseOf):
                if self.accounts.flags[pledge.row] & KNOWN and (
                    pledge.front == SOLE_OWNER or pledge.front in self.fronts.by_name
                ):
                    self.closing.close(pledge.row, pledge.front, supporter)
                continue
            front = self.fronts.by_name.get(pledge.front)
            if front is None:
                continue
            if isinstance(pledge, FrontierOf):
                self.closing.advance(front, pledge.scope, pledge.time, supporter)
            else:
                self._finish(front, supporter)

    def _finish(self, front: Front, supporter: Supporter) -> None:
        if not front.finished:
            front.drained_in = self.drain.under_way
            front.idle = False
        self.closing.finish(front, supporter)

    def finish_front(self, name: str) -> None:
        """An operator says that a front will never speak again."""
        front = self.fronts.by_name.get(name)
        if front is None:
            fronts = ", ".join(self.fronts.by_name) or "none"
            raise Refused.unknown("UNKNOWN_FRONT", f"{name!r} is not one of the job's fronts: {fronts}")
        owner = self.producers.get(front.owner) if front.owner is not None else None
        if owner is not None and owner.staged:
            raise Refused.precondition(
                "EPOCH_STAGED",
                f"the owner {owner.name!r} of front {name!r} has epochs {sorted(owner.staged)} staged; commit or "
                "forget them first",
            )
        self._wake([front])
        self._finish(front, FIRM)
        self.evaluate()

    # ------------------------------------------------------------ taking effect

    def _apply(self, producer: Producer, entries: Entries, pledges: Sequence[Pledge], supporter: Supporter) -> Entries:
        """An epoch (or an IMMEDIATE report) takes effect; the entries that were folded in."""
        accounts = self.accounts
        self._make_known(entries.rows, [pledge.row for pledge in pledges if isinstance(pledge, CloseOf)])
        if len(entries.rows):
            flags = accounts.flags[entries.rows]
            suspect = ((flags & KNOWN) == 0) | ((flags & ENDING) != 0)
            if suspect.any():
                cells = entries.rows * accounts.segments + entries.segments
                late = ((flags & KNOWN) == 0) | (accounts.ended[cells] != 0)
                if late.any():
                    self._announce_late(producer, entries.where(late))
                    entries = entries.where(~late)
                    flags = flags[~late]
            accounts.fold(entries, producer.number)
            accounts.changed[entries.rows] = self.now
            # Nothing stalls, and no flag has to be taken back, unless the job asks for it.
            if self.spec.stall_after is not None:
                accounts.flags[entries.rows] &= ~STALLED
            closed = (flags & CLOSED) != 0
            if closed.any():
                self.dirty.append(entries.rows[closed])
        self._keep_promises(pledges, supporter)
        self.evaluate()
        return entries

    def _make_known(self, rows: Rows, closes: list[int]) -> None:
        """Substreams that are named and that the fronts have not closed come to be known."""
        accounts = self.accounts
        if closes:
            rows = np.concatenate([rows, np.array(closes, np.int64)])
        unknown = rows[(accounts.flags[rows] & KNOWN) == 0]
        if not unknown.size:
            return
        unknown = _distinct([unknown])
        if self.fronts or self.fronts.has_floor:
            is_open = [
                not self.closing.shut(accounts.scope_names[scope], end_time)
                for scope, end_time in zip(
                    accounts.scope[unknown].tolist(), accounts.end_time[unknown].tolist(), strict=True
                )
            ]
            unknown = unknown[is_open]
            if not unknown.size:
                return
        accounts.flags[unknown] |= KNOWN
        accounts.open += len(unknown)
        self.closing.join(unknown)
        self.ends.join(unknown)

    def _announce_late(self, producer: Producer, late: Entries) -> None:
        """One event for each substream and segment, in order of first mention."""
        accounts = self.accounts
        sums: dict[tuple[int, int], list[int]] = {}
        for row, segment, sent, received in zip(
            late.rows.tolist(), late.segments.tolist(), late.sent.tolist(), late.received.tolist(), strict=True
        ):
            counts = sums.setdefault((row, segment), [0, 0])
            counts[0] += sent
            counts[1] += received
        for (row, segment), (sent, received) in sums.items():
            scope = accounts.scope_names[int(accounts.scope[row])]
            self.announce(Late(self.graph.names[segment], scope, accounts.names[row], producer.name, sent, received))
            id_ = accounts.id_of(row)
            self.late_by_id[id_] = self.late_by_id.get(id_, 0) + 1
        self.late_reports += len(sums)

    def evaluate(self) -> None:
        self.closing.note()
        rows = _distinct(self.dirty) if self.dirty else NO_ROWS
        self.dirty.clear()
        self.ends.evaluate(rows)
        if self.fronts and self.spec.progress:
            self.ends.advance(self.fronts.progress())
        self._retire_finished()

    def _retire_finished(self) -> None:
        """Of what has ended everywhere nothing is owed any more, and its retention begins."""
        if not self.ends.finished:
            return
        rows: Rows = np.array(self.ends.finished, np.int64)
        self.ends.finished.clear()
        accounts = self.accounts
        self.closing.leave(rows)
        accounts.changed[rows] = self.now
        held = rows[(accounts.flags[rows] & HELD) != 0]
        for row in held.tolist():
            accounts.flags[row] &= ~HELD
            for producer in self.producers.values():
                producer.holds.pop(row, None)
        self.to_forget.append((self.now, rows))

    # ------------------------------------------------------------ commits

    def commit(self, command: Commit) -> Committed:
        """Commit or seal an epoch, and take a driver's promises."""
        producer = self._producer(command.producer)
        producer.check_current(command.run)
        self._check_commit(command)
        for promise in command.promises:
            self._check_promise(producer, promise)
        number = command.epoch
        if number is not None and not producer.settled:
            if command.promises:
                self._hear(producer)
            self._settle(producer, number if command.seal else number + 1)
        keep = self._check_manifest(producer, command)
        if command.promises:
            self._check_nothing_later_staged(producer, command, keep)
            self._hear(producer)
        producer.heard_at = self.now
        if number is not None and number > producer.committed:
            if keep is not None:
                self._stage(producer, number).keep(keep)
            if command.seal:
                self._stage(producer, number).sealed = True
            else:
                self._commit_up_to(producer, number)
        if command.promises:
            self._claim(producer, command.promises)
            self._keep_promises([self._pledge(promise, NO_ROWS) for promise in command.promises], FIRM)
            self.evaluate()
        return Committed(self.log.last_seq)

    def _check_commit(self, command: Commit) -> None:
        if command.seal and command.promises:
            raise Refused.malformed("a commit that seals makes no promises; make them when the epoch is committed")
        if command.epoch is None and (command.seal or command.units is not None):
            raise Refused.malformed("a commit that seals or has a manifest names its epoch")
        if any(isinstance(promise, Close) for promise in command.promises):
            raise Refused.malformed("a commit closes nothing by name; report the close as a unit of an epoch")
        check_promises(command.promises)

    def _check_manifest(self, producer: Producer, command: Commit) -> list[Piece] | None:
        """The reports that the manifest keeps; None if there is none, or the epoch was committed before."""
        number = command.epoch
        if number is None or command.units is None or number <= producer.committed:
            return None
        epoch = producer.staged.get(number)
        if epoch is None:
            check_absent(command.units, number)
            return None
        return epoch.check_manifest(command.units, number, producer.mode)

    def _check_nothing_later_staged(self, producer: Producer, command: Commit, keep: list[Piece] | None) -> None:
        """A driver's promise must not overtake what is staged after the epoch that it commits."""
        reach = producer.committed if command.epoch is None else max(command.epoch, producer.committed)
        later = sorted(number for number in producer.staged if number > reach)
        if not later:
            return
        before = [
            (pledge.front, *((pledge.scope, pledge.time) if isinstance(pledge, FrontierOf) else (None, None)))
            for number, epoch in producer.staged.items()
            if number <= reach
            for piece in (epoch.pieces if keep is None or number != command.epoch else keep)
            for pledge in piece.pledges
            if not isinstance(pledge, CloseOf)
        ]
        for promise in command.promises:
            if isinstance(promise, Frontier):
                scope, time = promise.scope, promise.time
            else:
                scope, time = None, None
            if self.fronts.would_change(promise.front, scope, time, before):
                raise Refused.precondition(
                    "EPOCH_STAGED",
                    f"a promise for front {promise.front!r} would overtake the staged epochs {later}; "
                    "commit them first",
                )

    # ------------------------------------------------------------ drains

    def request_drain(self, drain_id: str, deadline: int | None) -> None:
        """The current deployment is to come to an end."""
        if self.drain.under_way or self.drain.state is DrainState.DRAINED:
            return
        for front in self.fronts:
            front.drained_in = False
        self.drain = DrainRecord(DrainState.DRAINING, drain_id, deadline)
        self.announce(DrainRequested(drain_id))

    def cancel_drain(self, drain_id: str) -> None:
        """Go on after all."""
        if drain_id and self.drain.drain_id and drain_id != self.drain.drain_id:
            raise Refused.precondition(
                "DRAIN_MISMATCH", f"the drain is {self.drain.drain_id!r}, not {drain_id!r}; name it, or none"
            )
        if not self.drain.under_way:
            return
        finishing = sorted(front.name for front in self.fronts if front.drained_in) + sorted(self._finishes_staged())
        if finishing:
            raise Refused.precondition(
                "DRAIN_IN_PROGRESS",
                f"fronts {finishing} have finished in the drain; the way is forward only, with a new deployment",
            )
        self.announce(DrainCancelled(self.drain.drain_id))
        self.drain = DrainRecord(DrainState.CANCELLED, self.drain.drain_id)

    def _finishes_staged(self) -> set[str]:
        return {
            pledge.front
            for producer in self.producers.values()
            if producer.mode is Mode.STAGED
            for epoch in producer.staged.values()
            for piece in epoch.pieces
            for pledge in piece.pledges
            if isinstance(pledge, FinishOf)
        }

    def confirm_drain(self) -> None:
        """Say so if the drain under way is done: the last thing of each command."""
        if not self.drain.under_way or self._is_open():
            return
        if self.fronts:
            if self.fronts.unfinished():
                return
        elif self.has_open_producers():
            return
        self.drain = DrainRecord(DrainState.DRAINED, self.drain.drain_id)
        self.announce(Drained(self.drain.drain_id))

    # ------------------------------------------------------------ operators

    def abandon(self, scope: str, name: str) -> None:
        """End a substream at once, whatever of it is in flight."""
        row = self._known_row(scope, name)
        if not self.accounts.flags[row] & DONE:
            self.ends.force(row, Reason.ABANDONED)
        self.evaluate()

    def _known_row(self, scope: str, name: str) -> int:
        row = self.accounts.find_one(scope, name)
        if row < 0 or not self.accounts.flags[row] & KNOWN:
            raise Refused.unknown(
                "UNKNOWN_SUBSTREAM", f"job {self.spec.job!r} knows no substream {name!r} in scope {scope!r}"
            )
        return row


def _distinct(parts: Sequence[Rows]) -> Rows:
    """Each row once."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return np.unique(rows) if rows.size > 1 else rows


def _void_pledges(epoch: Epoch, fronts: Sequence[str]) -> None:
    """Strike what is staged for fronts that are no more."""
    epoch.pieces = [
        piece._replace(pledges=tuple(pledge for pledge in piece.pledges if pledge.front not in fronts))
        for piece in epoch.pieces
    ]


def or_none(epoch: int) -> int | None:
    """A committed epoch as the wire says it: none instead of -1."""
    return None if epoch < 0 else epoch
