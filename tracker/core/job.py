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
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .accounts import Accounts, Entries, Rows
from .closing import SOLE_OWNER, Closing
from .commands import (
    Close,
    CloseProducer,
    Commit,
    Committed,
    DrainState,
    Expect,
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
    EndColumns,
    Excess,
    FrontIdle,
    Late,
    Reason,
)
from .expecting import Key
from .frontgroups import FIRM, Floors, Front, Supporter
from .fronts import Fronts
from .graph import Graph
from .lifecycle import AWAITING_RECOMMIT, CLOSED, ENDED, KNOWN, PARTLY_ENDED
from .log import EventLog
from .messages import Resolved, check_name, end_time_conflict, report_of, resolve
from .producers import (
    CloseOf,
    Epoch,
    ExpectOf,
    FinishOf,
    FrontierOf,
    Piece,
    Pledge,
    Producer,
    check_absent,
)
from .refusal import Refused
from .remembered import Newest, Numbers
from .subscriptions import Subscriptions
from .tombstones import Tombstones

Kept: TypeAlias = tuple[int, list[Piece]]  #: an epoch, and those of its reports that its manifest keeps

NO_ROWS: Rows = np.empty(0, np.int64)
_NO_U8 = np.empty(0, np.uint64)
_FEW = 8  # up to so many rows are quicker to go through than to sort
_MANY = 100_000  # from so many rows on, marking them is quicker than sorting them
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
        pinned: rows that retention would forget, but that are still needed, by staged epochs; `pins_checked`: when
            that was found.
        tombstones: what has ended and is forgotten.
        staged_units, staged_entries: how much is staged: units, and one for each epoch; entries and promises.
        stalls_from: before that time nothing can stall or expire; None: look.
        numbers: the producers' numbers, by which cells refer to them.
        read_segments: those of the graph on which somebody has received something.
    """

    def __init__(self, spec: Spec, graph: Graph, log_id: str, now: int) -> None:
        self.spec = spec
        self.graph = graph
        self.log = EventLog(log_id)
        self.subscriptions = Subscriptions(self.log)
        self.now = now
        self.incarnation = 0
        self.left = Newest()
        self.drain = DrainRecord()
        self.producers: dict[str, Producer] = {}
        self.numbers = Numbers()
        self.staged_units = self.staged_entries = 0
        self.read_segments: set[str] = set()
        self._read_whole: Graph | None = None  # a graph of which every segment has been read
        self._turned_back = False  # an idle front has, since the last evaluation
        self.late_reports = 0
        self.late_by_id: dict[int, int] = {}
        self.begin(Accounts(len(graph)), Fronts(spec.fronts, now))

    def begin(self, accounts: Accounts, fronts: Fronts, floors: list[Floors] | None = None) -> None:
        """Start with these accounts and fronts (and floors by segment), and all that is derived from them."""
        fronts.lead(self.spec.front_segments, self.graph, floors or [Floors()] * len(self.graph))
        self.accounts = accounts
        self.fronts = fronts
        self.dirty: list[Rows] = []
        self.closing = Closing(accounts, fronts, self.dirty)
        self.take(self.now)
        self.ends = self._new_ends()
        self.to_forget: deque[tuple[int, Rows]] = deque()
        self.pinned = NO_ROWS
        self.pins_checked = 0
        self.tombstones = Tombstones()
        self.stalls_from: int | None = None

    def _new_ends(self) -> Ends:
        return Ends(
            self.graph,
            self.accounts,
            self.closing,
            self.spec.ordering,
            self.spec.progress,
            self.announce,
            self._announce_ends,
        )

    def take(self, now: int) -> None:
        """A command was taken at `now` (ns): what happens from here on happens then."""
        self.now = self.closing.now = now

    def announce(self, body: Body) -> None:
        self.log.append(self.now, self.spec.deployment, body)

    def _announce_ends(self, segment: str, columns: EndColumns) -> None:
        self.log.append_ends(self.now, self.spec.deployment, segment, columns)

    # ------------------------------------------------------------ deployments

    def redefine(self, spec: Spec, graph: Graph, force: bool) -> None:
        """Take over a spec: the same deployment's, or a new one's."""
        if spec.deployment == self.spec.deployment:
            self.check_redefine(spec, graph, force)
            self.spec = replace(
                self.spec,
                stall_after=spec.stall_after,
                expire_after=spec.expire_after,
                idle_after=spec.idle_after,
                retention=spec.retention,
                remember=spec.remember,
            )
            self._durations_changed()
            return
        self.check_redefine(spec, graph, force)
        drained = self.drain.state is DrainState.DRAINED
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

    def check_redefine(self, spec: Spec, graph: Graph, force: bool) -> None:
        """Refuse a spec that cannot be taken over."""
        if spec.deployment == self.spec.deployment:
            self._check_same(spec, graph)
            return
        if spec.deployment in self.left:
            raise Refused.precondition(
                "DEPLOYMENT_MISMATCH",
                f"the job has left deployment {spec.deployment!r} for {self.spec.deployment!r}; name a new one",
            )
        if self.drain.state is not DrainState.DRAINED and not force:
            self._check_takeover(spec, graph)

    def _durations_changed(self) -> None:
        """What may stall is to be found anew; where nobody wants to hear of stalls, there are none."""
        self.stalls_from = None
        if self.spec.stall_after is None:
            self.accounts.life.forget_stalls()

    def _check_same(self, spec: Spec, graph: Graph) -> None:
        differences = self.graph.differences(graph)
        if set(spec.fronts) != set(self.spec.fronts):
            differences.append(f"fronts {sorted(spec.fronts)} instead of {sorted(self.spec.fronts)}")
        elif (fed := _fed(spec)) != (before := _fed(self.spec)):
            front = next(front for front in fed if fed[front] != before[front])
            differences.append(f"front {front!r} feeds {sorted(fed[front])} instead of {sorted(before[front])}")
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
        fed = _fed(spec)
        kept = frozenset(graph.names)
        for front in self.fronts:
            if front.name in fed and _fed(self.spec)[front.name] & kept <= fed[front.name]:
                continue
            owner = self.producers.get(front.owner) if front.owner is not None else None
            if owner is not None and owner.staged:
                raise Refused.precondition(
                    "EPOCH_STAGED",
                    f"front {front.name!r} is removed, or feeds less than before, but its owner {owner.name!r} has "
                    f"epochs {sorted(owner.staged)} staged; commit them first, or force",
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
        open_rows = self.accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
        for row in self.accounts.in_order(open_rows).tolist():
            self.ends.force(row, Reason.ABANDONED)
        self._retire_finished()
        for producer in self.producers.values():
            producer.fence()

    def _start_afresh(self, graph: Graph) -> None:
        """A new deployment of a drained job."""
        self._change_graph(graph)
        self.incarnation += 1
        for producer in self.producers.values():
            producer.fence()
            producer.holds.clear()
            for number in list(producer.staged):  # without entries or promises, or it would not have been drained
                self._unstage(producer, number)
        self.late_by_id.clear()
        self.begin(Accounts(len(graph), self.accounts.next_id), Fronts(self.spec.fronts, self.now))

    def _change_graph(self, graph: Graph) -> None:
        self.graph = graph
        self.read_segments.intersection_update(graph.names)

    def _take_over(self, old_spec: Spec, graph: Graph) -> None:
        """A new deployment that goes on with what the job has."""
        accounts, old_graph = self.accounts, self.graph
        another_graph = graph != old_graph
        if not another_graph and (self.spec.ordering, self.spec.progress) != (old_spec.ordering, old_spec.progress):
            self._renew_ends()
            self.dirty.append(accounts.in_use(int(KNOWN | CLOSED), int(KNOWN | CLOSED | ENDED)))
        if another_graph or _fed(self.spec) != _fed(old_spec):
            self._change_fronts(_fed(old_spec), graph)
        self.fronts.by_name = {name: self.fronts.by_name[name] for name in self.spec.fronts}
        if another_graph:
            self._renew_ends()

    def _change_fronts(self, old_fed: dict[str, frozenset[str]], graph: Graph) -> None:
        """Go over to the spec's fronts, what they feed, and its graph."""
        accounts, fronts, closing, old_graph = self.accounts, self.fronts, self.closing, self.graph
        closed_before = closing.closed_now()
        floors, fed = fronts.floors(), _fed(self.spec)
        # Nothing is staged for what is removed: its owners have nothing staged by now, and nobody else may.
        added = {name: [graph.number[segment] for segment in fed[name]] for name in fed if name not in old_fed}
        closes: dict[str, list[int]] = {}
        starts: dict[str, Floors] = {}
        for name, numbers in added.items():
            reached = set(np.flatnonzero(graph.reached(numbers)).tolist())
            old = [n for segment, n in old_graph.number.items() if graph.number.get(segment) in reached]
            closes[name] = closing.closed_by_name_by_all(old)
            starts[name] = Floors.least([floors[number] for number in old] or floors)
        met_by_all = closing.met_by_all()
        for name, segments in old_fed.items():
            lost = segments - fed.get(name, frozenset())
            closing.expectations.remove_front(name, {old_graph.number[segment] for segment in lost})
            if name not in fed:
                del fronts.by_name[name]
                closing.remove_front(name)
        if graph != old_graph:
            kept = [(old, graph.number[name]) for name, old in old_graph.number.items() if name in graph.number]
            accounts.relaid(len(graph), int(Reason.COMPLETE), kept)
            closing.expectations.relaid(dict(kept))
            least = Floors.least(floors)
            floors = [floors[old_graph.number[name]] if name in old_graph.number else least for name in graph.names]
            self._change_graph(graph)
        for name, numbers in added.items():
            fronts.add_front(name, self.now, starts[name])
            for id_ in closes[name]:
                closing.adopt_close(id_, name)
            for row, segment in met_by_all:
                if segment in numbers:
                    closing.expectations.give(row, segment, name, 0, False, FIRM)
        fronts.by_name = {name: fronts.by_name[name] for name in self.spec.fronts}
        fronts.lead(self.spec.front_segments, graph, floors)
        fronts.raise_floors()
        closing.regroup(closed_before)

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

    def producer(self, name: str) -> Producer:
        """A producer by its name; raises `Refused` if there is none."""
        producer = self.producers.get(name)
        if producer is None:
            raise Refused.unknown(
                "UNKNOWN_PRODUCER", f"job {self.spec.job!r} has no producer {name!r}; open one of its runs first"
            )
        return producer

    def open_producer(self, command: OpenProducer) -> Opened:
        """Make a run current."""
        producer = self.check_open(command)
        if producer is None:
            producer = Producer(command.producer, self.numbers.of(command.producer), command.mode, self.now)
        elif command.run == producer.run:
            return Opened(or_none(producer.committed))
        self.producers[command.producer] = producer
        producer.open(command.run, command.seals)
        producer.heard_at = self.now
        if command.resume_epoch is not None:
            self._settle(producer, command.resume_epoch)
        return Opened(or_none(producer.committed))

    def check_open(self, command: OpenProducer) -> Producer | None:
        """Refuse a run that cannot be made current; its producer, if it is known."""
        check_name("producer", command.producer)
        check_name("run", command.run)
        producer = self.producers.get(command.producer)
        if producer is not None:
            if command.run in producer.past:
                producer.check_current(command.run)
            if command.mode is not producer.mode:
                raise Refused.precondition(
                    "MODE_CONFLICT",
                    f"producer {producer.name!r} is {producer.mode.name}; forget it first, or use another name",
                )
            if command.run != producer.run:
                self._check_resume(producer, command.resume_epoch)
        return producer

    def _check_resume(self, producer: Producer, resume_epoch: int | None) -> None:
        if resume_epoch is not None and resume_epoch <= producer.committed:
            raise Refused.precondition(
                "EPOCH_REWOUND",
                f"epoch {resume_epoch} is to be resumed, but {producer.name!r} has committed {producer.committed}; "
                "an engine that lost its progress needs a new producer",
            )

    def close_producer(self, command: CloseProducer) -> None:
        """Close a run."""
        producer = self.check_close(command)
        producer.heard_at = self.now
        if command.resume_epoch is not None:
            self._settle(producer, command.resume_epoch)
        producer.fence()

    def check_close(self, command: CloseProducer) -> Producer:
        """Refuse to close a run that is not current; its producer."""
        producer = self.producer(command.producer)
        producer.check_current(command.run)
        self._check_resume(producer, command.resume_epoch)
        return producer

    def forget_producer(self, name: str) -> None:
        """Forget a producer, with what it has staged."""
        producer = self.producer(name)
        self._revoke(producer, sorted(producer.staged))
        for front in self.fronts:
            if front.owner == name:
                front.owner = None
        self._release(producer, list(producer.holds))
        del self.producers[name]
        self.evaluate()
        self.numbers.collect(self.producers, lambda: self.accounts.cells.used_producers(self.accounts.in_use(0)))

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
        epoch = self._unstage(producer, number)
        if number > producer.committed:
            producer.committed = number
        if producer.mode is Mode.IMMEDIATE:
            pledges = [pledge for piece in epoch.pieces for pledge in piece.pledges]
            firmly = [pledge for pledge in pledges if isinstance(pledge, FrontierOf | FinishOf)]
            self._keep_promises(firmly, FIRM)
            self.closing.settle((producer.name, number), self._ids(epoch.closed_rows()), self._numbers(epoch))
            self._release_committed(producer)
        else:
            entries = [piece.entries for piece in epoch.pieces if len(piece.entries.rows)]
            pledges = [pledge for piece in epoch.pieces for pledge in piece.pledges]
            self._apply(producer, Entries.concatenate(entries) if entries else NO_ENTRIES, pledges, FIRM)

    def _ids(self, rows: Sequence[int]) -> list[int]:
        ids: list[int] = self.accounts.ids_of(np.array(rows, np.int64)).tolist() if rows else []
        return ids

    def _numbers(self, epoch: Epoch) -> list[tuple[int, Key]]:
        """What an epoch expected."""
        pledges = epoch.expectations()
        return [(self.accounts.id_of(pledge.row), (pledge.segment, pledge.front)) for pledge in pledges]

    def _revoke(self, producer: Producer, numbers: Iterable[int]) -> None:
        """Epochs never happened. In IMMEDIATE mode what they did is undone and what they touched is held."""
        for number in numbers:
            epoch = self._unstage(producer, number)
            if producer.mode is not Mode.IMMEDIATE:
                continue
            for entries in epoch.folded:
                accounts = self.accounts
                for row in np.unique(entries.rows[~accounts.life.are(entries.rows, ENDED)]).tolist():
                    producer.holds[row] = max(number, producer.holds.get(row, number))
                    accounts.life.await_recommit(row)
                    accounts.life.touch(row)
                    accounts.changed[row] = self.now
                has_ended = accounts.cells.reasons(entries.rows, entries.segments) != 0
                accounts.cells.unfold(entries.where(~has_ended))
                if self.closing.expectations:
                    self.closing.look_at(self.closing.expectations.among(entries.rows))
            self.closing.withdraw((producer.name, number), self._ids(epoch.closed_rows()), self._numbers(epoch))

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
                self.accounts.life.recommit(row)
                self.dirty.append(np.array([row]))

    # ------------------------------------------------------------ reports

    def report(self, report: Report) -> Reported:
        """Take a report of one or more units of an epoch."""
        producer, resolved = self._check_report(report)
        if not producer.settled:
            self._hear(producer)
            self._settle(producer, report.epoch)
        outcome, duplicates = self._outcome(producer, report)
        if outcome is Outcome.APPLIED:
            self._check_expectations(producer, report.promises, resolved)
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

    def check_report(self, report: Report) -> Resolved:
        """Refuse what `report` would refuse without having settled anything; the report's names as numbers."""
        producer, resolved = self._check_report(report)
        if producer.settled and self._outcome(producer, report)[0] is Outcome.APPLIED:
            self._check_expectations(producer, report.promises, resolved)
        # To look names up is most of the work. As long as no row is given or taken, it need not be done again.
        report.checked[:] = [self.accounts, self.accounts.version, self.graph, self.log.log_id, resolved]
        return resolved

    def _check_report(self, report: Report) -> tuple[Producer, Resolved]:
        producer = self.producer(report.producer)
        producer.check_current(report.run)
        resolved = self._resolve(report)
        for promise in report.promises:
            self._check_promise(producer, promise, report, resolved)
        return producer, resolved

    def _resolve(self, report: Report) -> Resolved:
        if report.checked:
            accounts, version, graph, log_id, resolved = report.checked
            report.checked.clear()
            same = accounts is self.accounts and version == accounts.version and graph is self.graph
            if same and log_id == self.log.log_id:
                assert isinstance(resolved, Resolved)
                return resolved
        return resolve(report, self.graph, self.accounts, self.log.log_id)

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
            self._stage(producer, report.epoch, Piece(tuple(report.units), entries, pledges))
            return
        epoch = self._stage(producer, report.epoch, Piece(tuple(report.units), NO_ENTRIES, pledges))
        folded = self._apply(producer, entries, pledges, (producer.name, report.epoch))
        if len(folded.rows):
            epoch.folded.append(folded)
            self.staged_entries += len(folded.rows)

    def _stage(self, producer: Producer, number: int, piece: Piece | None = None) -> Epoch:
        """An epoch that is staged from now on at the latest, with one more report."""
        epoch = producer.staged.get(number)
        if epoch is None:
            epoch = producer.staged[number] = Epoch(sealing=producer.seals)
            self.staged_units += 1
        if piece is not None:
            epoch.add(piece)
            self.staged_units += len(piece.units)
            self.staged_entries += piece.size
        return epoch

    def _unstage(self, producer: Producer, number: int) -> Epoch:
        """An epoch that is staged no more."""
        epoch = producer.staged.pop(number)
        units, entries = epoch.size
        self.staged_units -= units
        self.staged_entries -= entries
        return epoch

    def _keep_only(self, producer: Producer, number: int, pieces: list[Piece]) -> None:
        """Drop an epoch's other reports, as if they had never been made."""
        epoch = self._stage(producer, number)
        before, entries_before = epoch.size
        epoch.keep(pieces)
        units, entries = epoch.size
        self.staged_units += units - before
        self.staged_entries += entries - entries_before

    def _pledge(self, promise: Promise, rows: Rows) -> Pledge:
        if isinstance(promise, Frontier):
            return FrontierOf(promise.front, promise.scope, promise.time)
        if isinstance(promise, Finish):
            return FinishOf(promise.front)
        if isinstance(promise, Expect):
            segment, row = self.graph.number[promise.segment], int(rows[promise.substream_index])
            return ExpectOf(promise.front, row, segment, promise.elements, promise.revise)
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
        if isinstance(promise, Expect):
            if promise.segment not in self.graph.number:
                segments = ", ".join(self.graph.names)
                raise Refused.invalid(
                    "UNKNOWN_SEGMENT", f"segment {promise.segment!r} is not one of the job's: {segments}"
                )
            if not self._front(promise.front).feeds(self.graph.number[promise.segment]):
                raise Refused.malformed(
                    f"front {promise.front!r} does not feed segment {promise.segment!r}; name one that it feeds"
                )
        if (
            isinstance(promise, Close | Expect)
            and report is not None
            and resolved is not None
            and promise.substream_index in resolved.conflicts
        ):
            raise end_time_conflict(report, promise.substream_index, resolved, self.accounts)

    def _check_expectations(
        self, producer: Producer, promises: Sequence[Promise], resolved: Resolved, keep: Kept | None = None
    ) -> None:
        """Another number than the last that was accepted is refused, unless it revises one that may still change.

        Args:
            producer: whose promises these are.
            promises: of a report or a commit.
            resolved: the names in it.
            keep: an epoch, and the only reports of it that will count.
        """
        expects = [promise for promise in promises if isinstance(promise, Expect)]
        if not expects:
            return
        new = {place: -1 - at for at, place in enumerate(resolved.new)} | {p: -1 - at for p, at in resolved.again}
        said: dict[tuple[int, int, str], int] = {}
        if producer.mode is Mode.STAGED:
            for number in sorted(producer.staged):
                pieces = keep[1] if keep is not None and keep[0] == number else producer.staged[number].pieces
                for pledge in (pledge for piece in pieces for pledge in piece.pledges):
                    if isinstance(pledge, ExpectOf):
                        said[pledge.row, pledge.segment, pledge.front] = pledge.elements
        for promise in expects:
            row = new.get(promise.substream_index, int(resolved.rows[promise.substream_index]))
            segment = self.graph.number[promise.segment]
            last, over = said.get((row, segment, promise.front)), False
            if row >= 0:
                over = bool(self.accounts.reason(row, segment))
                if last is None:
                    last = self.closing.expectations.of(self.accounts.id_of(row)).get((segment, promise.front))
            if last is not None and last != promise.elements and (over or not promise.revise):
                why = "the substream has ended there" if over else "say so (revise) if the number has changed"
                raise Refused.precondition(
                    "EXPECT_CONFLICT",
                    f"front {promise.front!r} expects {last} elements of a substream on segment {promise.segment!r}, "
                    f"not {promise.elements}; {why}",
                )
            said[row, segment, promise.front] = promise.elements

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
            self._turned_back = True
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
            if isinstance(pledge, ExpectOf):
                self._expect(pledge, supporter)
            elif isinstance(pledge, FrontierOf):
                self.closing.advance(front, pledge.scope, pledge.time, supporter)
            else:
                self._finish(front, supporter)

    def _expect(self, pledge: ExpectOf, supporter: Supporter) -> None:
        accounts, row = self.accounts, pledge.row
        if not accounts.flags[row] & KNOWN or accounts.reason(row, pledge.segment):
            return
        if self.closing.expect(row, pledge.segment, pledge.front, pledge.elements, pledge.revise, supporter):
            accounts.changed[row] = self.now
            accounts.life.touch(row)

    def _finish(self, front: Front, supporter: Supporter) -> None:
        if not front.finished:
            front.drained_in = self.drain.under_way
            front.idle = False
        self.closing.finish(front, supporter)

    def finish_front(self, name: str) -> None:
        """An operator says that a front will never speak again."""
        front = self.check_finish_front(name)
        self._wake([front])
        self._finish(front, FIRM)
        self.evaluate()

    def check_finish_front(self, name: str) -> Front:
        """Refuse to finish a front that is none, or whose owner has an epoch staged; the front."""
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
        return front

    # ------------------------------------------------------------ taking effect

    def _apply(self, producer: Producer, entries: Entries, pledges: Sequence[Pledge], supporter: Supporter) -> Entries:
        """An epoch (or an IMMEDIATE report) takes effect; the entries that were folded in."""
        accounts = self.accounts
        shut = self._make_known(entries, pledges)
        if len(entries.rows):
            if self._read_whole is not self.graph:
                self._note_read(entries)
            flags = accounts.flags[entries.rows]
            suspect = ((flags & KNOWN) == 0) | ((flags & PARTLY_ENDED) != 0)
            if shut is not None or suspect.any():
                has_ended = accounts.cells.reasons(entries.rows, entries.segments) != 0
                late = ((flags & KNOWN) == 0) | has_ended
                if shut is not None:
                    late |= shut
                if late.any():
                    self._announce_late(producer, entries.where(late))
                    entries = entries.where(~late)
                    flags = flags[~late]
            accounts.cells.fold(entries, producer.number)
            accounts.changed[entries.rows] = self.now
            # Nothing stalls, and no flag has to be taken back, unless the job asks for it.
            if self.spec.stall_after is not None:
                accounts.life.touch(entries.rows)
            closed = (flags & CLOSED) != 0
            if closed.any():
                self.dirty.append(entries.rows[closed])
            if self.closing.expectations:
                self.closing.look_at(self.closing.expectations.to_look_at(entries.rows).tolist())
        self._keep_promises(pledges, supporter)
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

    def _make_known(self, entries: Entries, pledges: Sequence[Pledge]) -> NDArray[np.bool_] | None:
        """Substreams that are named come to be known, but for those that the fronts have closed and that had ended.

        Returns:
            where segments wait for different fronts, the entries of substreams that were not known which the fronts
            of their segments have closed already.
        """
        accounts = self.accounts
        named = [pledge.row for pledge in pledges if isinstance(pledge, CloseOf | ExpectOf)]
        rows = np.concatenate([entries.rows, np.array(named, np.int64)]) if named else entries.rows
        unknown = rows[(accounts.flags[rows] & KNOWN) == 0]
        if not unknown.size:
            return None
        unknown = _distinct([unknown])
        shut = None
        if len(self.fronts.groups) > 1:
            unknown, shut = self._open_in_groups(unknown, entries, pledges)
        elif self.fronts or self.fronts.has_floor:
            is_open = [
                not self.closing.shut(accounts.scope_names[scope], end_time, 0)
                for scope, end_time in zip(
                    accounts.scope[unknown].tolist(), accounts.end_time[unknown].tolist(), strict=True
                )
            ]
            unknown = unknown[is_open]
        if self.tombstones and unknown.size:
            unknown = unknown[~self.tombstones.has(accounts.named(unknown))]
        if unknown.size:
            accounts.life.open_up(unknown)
            self.closing.join(unknown)
            self.ends.join(unknown)
        return shut

    def _open_in_groups(
        self, unknown: Rows, entries: Entries, pledges: Sequence[Pledge]
    ) -> tuple[Rows, NDArray[np.bool_]]:
        """Those of unknown rows that a segment on which they are named still waits for; and the entries on others."""
        accounts, group_of = self.accounts, self.fronts.group_of
        named: dict[int, set[int]] = {row: set() for row in unknown.tolist()}
        for row, segment in zip(entries.rows.tolist(), entries.segments.tolist(), strict=True):
            if row in named:
                named[row].add(group_of[segment])
        for pledge in pledges:
            if isinstance(pledge, CloseOf) and pledge.row in named:
                named[pledge.row].update(self.closing.groups_of(pledge.front))
            elif isinstance(pledge, ExpectOf) and pledge.row in named:
                named[pledge.row].add(group_of[pledge.segment])
        shut = {
            row: self.closing.shut_groups(accounts.scope_names[int(accounts.scope[row])], int(accounts.end_time[row]))
            for row in named
        }
        is_open = [row for row, places in named.items() if not all(shut[row][place] for place in places)]
        late = [
            row in shut and shut[row][group_of[segment]]
            for row, segment in zip(entries.rows.tolist(), entries.segments.tolist(), strict=True)
        ]
        return np.array(is_open, np.int64), np.array(late, np.bool_)

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
        self._turned_back = False
        self.closing.note()
        for row, segment, expected in self.closing.exceeded():
            scope = self.accounts.scope_names[int(self.accounts.scope[row])]
            name, sent = self.accounts.names[row], self.accounts.sent(row, segment)
            self.announce(Excess(self.graph.names[segment], scope, name, expected, sent))
        rows = _distinct(self.dirty) if self.dirty else NO_ROWS
        self.dirty.clear()
        self.ends.evaluate(rows)
        if self.fronts and self.spec.progress:
            progress = [group.progress() for group in self.fronts.groups]
            self.ends.advance([progress[place] for place in self.fronts.group_of])
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
        held = rows[accounts.life.are(rows, AWAITING_RECOMMIT)]
        for row in held.tolist():
            accounts.life.recommit(row)
            for producer in self.producers.values():
                producer.holds.pop(row, None)
        self.to_forget.append((self.now, rows))

    # ------------------------------------------------------------ commits

    def commit(self, command: Commit) -> Committed:
        """Commit or seal an epoch, and take a driver's promises."""
        producer, naming, resolved = self._check_commit(command)
        number = command.epoch
        if number is not None and not producer.settled:
            if command.promises:
                self._hear(producer)
            self._settle(producer, number if command.seal else number + 1)
        keep = self._check_promises_of_commit(producer, command, resolved)
        if resolved is not None:
            self._hear(producer)
        producer.heard_at = self.now
        if number is not None and number > producer.committed:
            if keep is not None:
                self._keep_only(producer, number, keep)
            if command.seal:
                self._stage(producer, number).sealed = True
            else:
                self._commit_up_to(producer, number)
        if resolved is not None:
            rows = self._enter(naming, resolved)
            self._claim(producer, command.promises)
            pledges = [self._pledge(promise, rows) for promise in command.promises]
            self._apply(producer, NO_ENTRIES, pledges, FIRM)
        return Committed(self.log.last_seq)

    def check_commit(self, command: Commit) -> int:
        """Refuse what `commit` would refuse without having settled anything; how many substreams it names anew."""
        producer, _, resolved = self._check_commit(command)
        if producer.settled or command.epoch is None:
            self._check_promises_of_commit(producer, command, resolved)
        return 0 if resolved is None else len(resolved.new)

    def _check_commit(self, command: Commit) -> tuple[Producer, Report, Resolved | None]:
        producer = self.producer(command.producer)
        producer.check_current(command.run)
        self._check_commit_message(command)
        naming = report_of(command)
        resolved = resolve(naming, self.graph, self.accounts, self.log.log_id) if command.promises else None
        for promise in command.promises:
            self._check_promise(producer, promise, naming, resolved)
        return producer, naming, resolved

    def _check_promises_of_commit(
        self, producer: Producer, command: Commit, resolved: Resolved | None
    ) -> list[Piece] | None:
        """The reports that the manifest keeps (None: all), once they and the promises are as they must be."""
        keep = self._check_manifest(producer, command)
        if resolved is not None:
            self._check_nothing_later_staged(producer, command, keep)
            kept = None if keep is None or command.epoch is None else (command.epoch, keep)
            self._check_expectations(producer, command.promises, resolved, kept)
        return keep

    def _check_commit_message(self, command: Commit) -> None:
        if command.seal and command.promises:
            raise Refused.malformed("a commit that seals makes no promises; make them when the epoch is committed")
        if command.epoch is None and (command.seal or command.units is not None):
            raise Refused.malformed("a commit that seals or has a manifest names its epoch")
        if any(isinstance(promise, Close) for promise in command.promises):
            raise Refused.malformed("a commit closes nothing by name; report the close as a unit of an epoch")

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
            if isinstance(pledge, FrontierOf | FinishOf)
        ]
        for promise in command.promises:
            if isinstance(promise, Expect):
                continue
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
        self.check_cancel_drain(drain_id)
        if not self.drain.under_way:
            return
        self.announce(DrainCancelled(self.drain.drain_id))
        self.drain = DrainRecord(DrainState.CANCELLED, self.drain.drain_id)

    def check_cancel_drain(self, drain_id: str) -> None:
        """Refuse to cancel another drain, or one in which a front has finished."""
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

    def conclude(self) -> None:
        """The last thing of each command: what became of a front that turned back, and of a drain."""
        if self._turned_back:  # and what it says takes effect later, or was refused
            self.evaluate()
        self.confirm_drain()

    def confirm_drain(self) -> None:
        """Say so if the drain under way is done."""
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
        row = self.known_row(scope, name)
        if not self.accounts.flags[row] & ENDED:
            self.ends.force(row, Reason.ABANDONED)
        self.evaluate()

    def known_row(self, scope: str, name: str) -> int:
        """The row of a substream that is known; raises `Refused` if it is not."""
        row = self.accounts.find_one(scope, name)
        if row < 0 or not self.accounts.flags[row] & KNOWN:
            raise Refused.unknown(
                "UNKNOWN_SUBSTREAM", f"job {self.spec.job!r} knows no substream {name!r} in scope {scope!r}"
            )
        return row


def _distinct(parts: Sequence[Rows]) -> Rows:
    """Each row once."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if rows.size < _MANY:
        return np.unique(rows) if rows.size > 1 else rows
    mark = np.zeros(int(rows.max()) + 1, np.bool_)  # rows are used again, so this is no longer than what is kept
    mark[rows] = True
    return np.flatnonzero(mark)


def _fed(spec: Spec) -> dict[str, frozenset[str]]:
    """The segments that each front feeds."""
    every = frozenset(name for name, _ in spec.segments)
    told = dict(spec.front_segments)
    return {front: frozenset(told.get(front, every)) for front in spec.fronts}


def or_none(epoch: int) -> int | None:
    """A committed epoch as the wire says it: none instead of -1."""
    return None if epoch < 0 else epoch
