"""Judges what clients saw of one job."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, pairwise
from typing import Any, Final

from tests.checker.finding import Finding
from tests.checker.flow import SEGMENTS, Line
from tests.checker.history import Operation
from tests.checker.replay import Body, Epoch, Replayed, marker, replay, skipped

#: Refusals that a client meets only after records were lost.
_OF_LOSSES: Final = frozenset(
    {"UNKNOWN_JOB", "UNKNOWN_PRODUCER", "MISSING_UNITS", "LOG_CHANGED", "UNKNOWN_ID", "FENCED"}
)


class JobHistory:
    """Observations of a job by clients.

    Args:
        job: its name.
        operations: about it.
        losses: the faults that have lost records of the journal.
    """

    def __init__(self, job: str, operations: Sequence[Operation], losses: Sequence[Operation]) -> None:
        self._job = job
        self._of: dict[str, list[Operation]] = defaultdict(list)
        for operation in operations:
            self._of[operation.kind].append(operation)
        self._losses = losses
        self._epochs: dict[Epoch, Line] = {}
        for operation in self._of["epoch"]:
            line = operation.asked["line"]
            self._epochs[line["producer"], line["epoch"]] = line
        self._began, self._confirmed = self._commits()
        self._lasting = {epoch: by for epoch, by in self._confirmed.items() if not self._may_be_lost(by)}

    def _ok(self, kind: str) -> list[Operation]:
        return [each for each in self._of[kind] if each.outcome == "ok"]

    def _commits(self) -> tuple[dict[Epoch, float], dict[Epoch, Operation]]:
        """Return when each epoch could take effect first, and what has confirmed it first."""
        began: dict[Epoch, float] = {}
        confirmed: dict[Epoch, Operation] = {}
        for operation in sorted(self._of["commit"], key=lambda each: each.began):
            began.setdefault((operation.asked["producer"], operation.asked["epoch"]), operation.began)
        for operation in sorted([*self._ok("commit"), *self._ok("open")], key=_end):
            producer = operation.asked["producer"]
            number = operation.asked["epoch"] if operation.kind == "commit" else operation.answer["committed"]
            if number >= 0:
                confirmed.setdefault((producer, number), operation)
        return began, confirmed

    def findings(self) -> list[Finding]:
        """List the contradictions."""
        if not self._of["final"]:
            return []  # the job was never defined, or the run was given up: that is a finding of its own
        final = self._of["final"][-1].answer
        self._log_id = final["log_id"]
        self._log: list[Body] = [body for _, body in final["events"]]
        numbers = [seq for seq, _ in final["events"]]
        if numbers != list(range(1, len(numbers) + 1)):
            return [Finding("gap in the log", f"{self._job} has the events {_runs(numbers)}")]
        looks = {each.answer["last_seq"] for each in self._ok("status")}
        self._replayed = self._replay(looks)
        found = [*self._of_log_ids(), *self._of_lost_epochs(), *self._of_watches(), *self._of_refusals()]
        if self._replayed.problem:
            found.append(Finding("not what the model has", f"{self._job}: {self._replayed.problem}"))
        if (place := next((n for n, (a, b) in enumerate(pairwise(final["times"]), 1) if b < a), None)) is not None:
            found.append(Finding("time goes back", f"event {place + 1} of {self._job} is before event {place}"))
        if self._replayed.problem:
            return found
        found += [*self._of_order(), *self._of_reads()]
        # The log does not have whether and when a first part was settled; the elements in flight do.
        return found if self._parted() else [*found, *self._of_causes(), *self._of_statuses()]

    def _replay(self, looks: set[int]) -> Replayed:
        """Replay the log; after a loss, what was staged of an epoch whose end is lost may count, or not."""
        found, parted = [], self._parted()
        for begun in chain.from_iterable(combinations(parted, count) for count in range(len(parted) + 1)):
            found.append(replay(self._definition(), self._epochs, self._log, looks, begun))
            if not found[-1].problem:
                return found[-1]
        return found[0]

    def _parted(self) -> list[Epoch]:
        """Return the epochs of which a loss may have left the first part."""
        return skipped(self._epochs, self._log) if self._losses else []

    def _definition(self) -> Line:
        segments = [[name, feeds] for name, feeds in SEGMENTS.items()]
        [fronts] = {tuple(each.asked["fronts"]) for each in self._of["define"]}
        named = {"deployment": "d1", "segments": segments, "fronts": list(fronts)}
        return {"do": "define", **named, "ordering": "NONE", "progress": True}

    # ---------------------------------------------------------------- what was lost

    def _of_log_ids(self) -> Iterator[Finding]:
        """Check that a log gets another id when records were lost, and only then."""
        for operation in self._ok("define"):
            if operation.answer["log_id"] != self._log_id and not self._losses:
                text = f"{self._job} has log {self._log_id} in the end, and nothing was lost"
                yield Finding("another log without a loss", text, (operation,))
                return

    def _of_lost_epochs(self) -> Iterator[Finding]:
        """Check that each confirmed epoch is in the log, unless it was lost, and the log has another id since."""
        there = {epoch for epoch in map(marker, self._log) if epoch is not None}
        ids = {each.answer["log_id"] for each in self._ok("define")}
        for epoch, operation in self._confirmed.items():
            if epoch in there:
                continue
            excused = self._may_be_lost(operation)
            if excused and ids == {self._log_id}:
                text = f"epoch {epoch} was confirmed and is lost, and the log still has the same id"
                yield Finding("loss without another log", text, (operation,))
            elif not excused:
                yield Finding("lost", f"epoch {epoch} was confirmed, and is not in the log", (operation,))

    def _may_be_lost(self, confirmed: Operation) -> bool:
        """Return whether a loss came after an epoch was confirmed: it may have taken effect again, and later."""
        return any(_end(loss) >= confirmed.began for loss in self._losses)

    # ---------------------------------------------------------------- what was watched

    def _of_watches(self) -> Iterator[Finding]:
        """Check that every reader gets the same events under the same numbers, without a gap."""
        known: dict[tuple[str, int], tuple[str, Operation | None]] = {
            (self._log_id, seq): (json.dumps(body), None) for seq, body in enumerate(self._log, 1)
        }
        last: dict[str, int] = {}
        for operation in self._of["event"]:
            if operation.outcome != "ok":
                last[operation.client] = 0
                continue
            seq = operation.answer["seq"]
            if seq != last.get(operation.client, 0) + 1:
                text = f"{operation.client} got event {seq} after {last.get(operation.client, 0)}"
                yield Finding("gap in a watch", text, (operation,))
            last[operation.client] = seq
        for operation, seq, log_id, body in self._seen_events():
            text = json.dumps(body)
            first, by = known.setdefault((log_id, seq), (text, operation))
            if log_id == self._log_id and seq > len(self._log):
                yield Finding("an event that is gone", f"event {seq}, {body}, is not in the log", (operation,))
            elif first != text:
                others = () if by is None else (by,)
                text = f"event {seq} is {body} for one reader, and {first} for another one"
                yield Finding("two events with one number", text, (operation, *others))

    def _seen_events(self) -> Iterator[tuple[Operation, int, str, Body]]:
        for operation in self._ok("event"):
            yield operation, operation.answer["seq"], operation.answer["log_id"], operation.answer["body"]
        for operation in self._ok("list"):
            for seq, body in operation.answer["events"]:
                yield operation, seq, operation.answer["log_id"], body

    # ---------------------------------------------------------------- in which order

    def _of_order(self) -> Iterator[Finding]:
        """Check that an epoch confirmed before another one was sent comes before that in the log."""
        latest, at = -math.inf, None
        for epoch, _, _ in self._replayed.order:
            confirmed = self._lasting.get(epoch)
            if confirmed is not None and at is not None and _end(confirmed) < latest:
                text = f"epoch {epoch} comes after {at} in the log, and was confirmed before that one was sent"
                yield Finding("order", text, (confirmed,))
            if self._began.get(epoch, -math.inf) > latest:
                latest, at = self._began[epoch], epoch

    def _of_causes(self) -> Iterator[Finding]:
        """Check that no event is seen before what caused it was sent."""
        causes = [(last, epoch) for epoch, _, last in self._replayed.order]
        ends = [last for last, _ in causes]
        for operation, seq, log_id, body in self._seen_events():
            if log_id != self._log_id or seq > len(self._log):
                continue
            epoch = causes[bisect_right(ends, seq - 1)][1]
            if _end(operation) < self._began.get(epoch, math.inf):
                text = f"event {seq}, {body}, was seen before epoch {epoch} was sent"
                yield Finding("an event before its cause", text, (operation,))

    def _of_reads(self) -> Iterator[Finding]:
        """Check that no answer is older than what any client had seen when the call began."""
        last_of = {epoch: last for epoch, _, last in self._replayed.order}
        facts: list[tuple[float, int, Operation]] = []
        for epoch, operation in self._lasting.items():
            if epoch in last_of:
                facts.append((_end(operation), last_of[epoch], operation))
        for operation, seq, log_id, _ in self._seen_events():
            if log_id == self._log_id:
                facts.append((_end(operation), seq, operation))
        # A list that begins behind the newest event, as after a loss, gives back where it was asked to begin.
        lists = [each for each in self._ok("list") if each.answer["events"]]
        reads = [each for each in [*self._ok("status"), *lists] if each.answer["log_id"] == self._log_id]
        facts += [(_end(each), each.answer["last_seq"], each) for each in reads]
        yield from _stale(reads, facts)
        for operation in self._ok("open"):
            producer, committed = operation.asked["producer"], operation.answer["committed"]
            known = [
                (epoch[1], by)
                for epoch, by in self._lasting.items()
                if epoch[0] == producer and _end(by) < operation.began and epoch in last_of
            ]
            newest = max(known, key=lambda each: each[0], default=None)
            if newest is not None and newest[0] > committed:
                text = f"{producer} was told that {committed} is committed, and {newest[0]} was confirmed before"
                yield Finding("stale", text, (newest[1], operation))

    def _of_statuses(self) -> Iterator[Finding]:
        """Check that a status is what the model has after the same event."""
        for operation in self._ok("status"):
            answer = operation.answer
            if answer["log_id"] != self._log_id or not answer["last_seq"]:
                continue
            expected = self._replayed.statuses.get(answer["last_seq"])
            committed = {name: number for name, number in answer["committed"].items() if number is not None}
            found: dict[str, Any] = {name: answer[name] for name in ("open", "ended", "in_flight")}
            found["committed"] = committed
            if self._losses and expected is not None:  # a run may begin behind epochs that are lost
                found["committed"] = expected["committed"]
            if expected is None:
                text = f"a status after event {answer['last_seq']} is of the middle of an epoch"
                yield Finding("half an epoch", text, (operation,))
            elif found != expected:
                text = f"after event {answer['last_seq']} the model has {expected}, and the tracker {found}"
                yield Finding("a wrong status", text, (operation,))
        for operation in self._ok("await"):
            body = operation.answer["body"]
            if body is not None and body not in self._log and not self._losses:
                yield Finding("an end that is gone", f"{body} is not in the log", (operation,))

    def _of_refusals(self) -> Iterator[Finding]:
        """Yield a finding for each refusal that no fault explains."""
        unsure = {each.asked["producer"] for each in self._of["open"] if each.outcome == "unknown"}
        for operation in (each for kind in self._of.values() for each in kind if each.outcome == "refused"):
            reason = operation.answer["reason"]
            if reason == "FENCED" and operation.asked.get("producer") in unsure:
                continue  # a run that was opened in vain, as it seemed, was opened late
            if reason in _OF_LOSSES and any(_end(loss) <= _end(operation) for loss in self._losses):
                continue
            yield Finding(f"refused with {reason}", f"{operation.client} was refused", (operation,))


def _stale(reads: Sequence[Operation], facts: list[tuple[float, int, Operation]]) -> Iterator[Finding]:
    """Yield reads that return less than was known when they began."""
    facts.sort(key=lambda each: each[0])
    times = [time for time, _, _ in facts]
    best: list[tuple[int, Operation]] = []
    for _, seq, operation in facts:
        best.append(max(best[-1], (seq, operation), key=lambda each: each[0]) if best else (seq, operation))
    for read in reads:
        place = bisect_right(times, math.nextafter(read.began, -math.inf))
        if place and best[place - 1][0] > read.answer["last_seq"]:
            seq, by = best[place - 1]
            text = f"the newest event was {read.answer['last_seq']}, and {seq} had been seen before"
            yield Finding("stale", text, (by, read))


def _end(operation: Operation) -> float:
    return math.inf if operation.ended is None else operation.ended


def _runs(numbers: Sequence[int]) -> str:
    """Return numbers as a text, with consecutive ones drawn together."""
    cuts = [place for place, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    parts = [numbers[a:b] for a, b in pairwise([0, *cuts, len(numbers)])]
    return ", ".join(f"{part[0]} to {part[-1]}" for part in parts if part)
