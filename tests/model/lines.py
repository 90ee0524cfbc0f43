"""The language of the conformance vectors: one command a line, its answer and its events as JSON.

`tests/vectors/README.md` explains the lines. Beyond it, for what a vector cannot say because it depends on time or on
a log's name, a line may have: `wait` (nanoseconds that pass before the command), `ids` (a report names by id what it
has ids for), `want_ids`, `log` (``"other"``: the ids claim to be of another log), `durations` of a `define`, `timeout`
of a `drain`, `max_age` and `max_events` of a `subscribe`, and the commands `tick`, `delete` and `recovered`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any, Protocol, TypeAlias

import numpy as np

from tracker.contract.bounds import check_bounds
from tracker.contract.commands import (
    Abandon,
    Ack,
    Acknowledged,
    Answer,
    CancelDrain,
    Close,
    CloseProducer,
    Command,
    Commit,
    DefineJob,
    DeleteJob,
    Drain,
    Expect,
    Finish,
    FinishFront,
    ForgetProducer,
    Frontier,
    Identities,
    JobDefined,
    Opened,
    OpenProducer,
    Promise,
    Recovered,
    Report,
    Reported,
    Subscribe,
    Subscribed,
    Tick,
    Unsubscribe,
)
from tracker.contract.events import Body, Drained, DrainRequested, Ended, Stalled
from tracker.contract.refusal import Refused
from tracker.contract.spec import Spec
from tracker.contract.status import DrainStatus
from tracker.contract.values import NO_END_TIME, DrainMode, Mode, Ordering, Outcome
from tracker.core import Tracker

Line: TypeAlias = dict[str, Any]

NAMING = ("close", "expect", "identities")  # promises that name a substream

JOB = "job"
START = 1_700_000_000 * 10**9  # a time, in nanoseconds since the Unix epoch

EVENT_NAMES = {
    "Ended": "ENDED",
    "Late": "LATE",
    "Advanced": "ADVANCED",
    "Stalled": "STALLED",
    "Excess": "EXCESS",
    "FrontIdle": "FRONT_IDLE",
    "DrainRequested": "DRAIN_REQUESTED",
    "Drained": "DRAINED",
    "DrainTimedOut": "DRAIN_TIMED_OUT",
    "DrainCancelled": "DRAIN_CANCELLED",
}


class Tracks(Protocol):
    """The common part of the core and the model, as far as lines need it."""

    def apply(self, command: Command, now: int) -> Answer: ...

    def jobs(self) -> list[str]: ...

    def view(self, job: str) -> Any: ...


class Driver:
    """A driver of one tracker by lines, on one job, which returns answers in the words of the lines.

    Args:
        tracker: the core, or the model.
        old_journal: let the core have numbers beyond their bounds, as a journal of an older version may.
    """

    def __init__(self, tracker: Tracks, old_journal: bool = False) -> None:
        self.tracker = tracker
        self._checks = isinstance(tracker, Tracker) and not old_journal
        self.now = START
        self._seq = 0
        self._log = ""
        self._ids: dict[tuple[str, str], int] = {}

    def run(self, line: Line) -> tuple[Any, list[Any]]:
        """Carry out one line. Return its answer (`expect`) and the events that it causes (`events`)."""
        self.now += int(line.get("wait", 0))
        try:
            if line["do"] in ("explain", "through"):
                asked = self._explain if line["do"] == "explain" else self._through
                return asked(line), self._new_events(line)
            command = self._command(line)
            if self._checks:  # as a server does; the model does it itself
                check_bounds(command)
            answer = self.tracker.apply(command, self.now)
            said = self._answer(command, answer)
        except Refused as refused:
            said = {"code": refused.code, "reason": refused.reason}
        return said, self._new_events(line)

    # -- commands

    def _command(self, line: Line) -> Command:
        make: dict[str, Callable[[Line], Command]] = {
            "define": self._define,
            "open": lambda li: OpenProducer(
                JOB, li["producer"], li["run"], Mode[li["mode"]], li.get("resume_epoch"), li.get("seals", False)
            ),
            "report": self._report,
            "commit": self._commit,
            "close": lambda li: CloseProducer(JOB, li["producer"], li["run"], li.get("resume_epoch")),
            "forget": lambda li: ForgetProducer(JOB, li["producer"]),
            "finish_front": lambda li: FinishFront(JOB, li["front"]),
            "drain": lambda li: Drain(
                JOB, li["deployment"], li["drain_id"], li.get("timeout"), DrainMode[li.get("mode", "FINISH")]
            ),
            "cancel_drain": lambda li: CancelDrain(JOB, li.get("drain_id", ""), li["deployment"]),
            "abandon": lambda li: Abandon(JOB, li["scope"], li["name"]),
            "subscribe": lambda li: Subscribe(
                JOB,
                li["name"],
                tuple(li.get("segments", ())),
                tuple(li.get("scopes", ())),
                li.get("after_seq"),
                li.get("max_age"),
                li.get("max_events"),
                _log_named(li),
            ),
            "ack": lambda li: Ack(JOB, li["name"], li["seq"], _log_named(li)),
            "unsubscribe": lambda li: Unsubscribe(JOB, li["name"]),
            "delete": lambda li: DeleteJob(JOB, li.get("force", False)),
            "tick": lambda _: Tick(),
            "recovered": lambda li: Recovered(li.get("lost_tail", ""), li.get("fences", False)),
        }
        return make[line["do"]](line)

    def _define(self, line: Line) -> DefineJob:
        spec = Spec(
            JOB,
            line["deployment"],
            tuple((name, tuple(feeds)) for name, feeds in line["segments"]),
            tuple(line["fronts"]),
            Ordering[line["ordering"]],
            line.get("progress", False),
            **line.get("durations", {}),
            front_segments=tuple((front, tuple(segments)) for front, segments in line.get("front_segments", [])),
            state_segments=tuple(line.get("state_segments", ())),
            committed_ends=line.get("committed_ends", False),
        )
        return DefineJob(spec, line.get("force", False))

    def _commit(self, line: Line) -> Commit:
        promises = line.get("promises", [])
        mentions = list(dict.fromkeys((p[2], p[3], p[4]) for p in promises if p[0] in NAMING))
        index = {mention: i for i, mention in enumerate(mentions)}
        return Commit(
            JOB,
            line["producer"],
            line["run"],
            line.get("epoch"),
            tuple(line["units"]) if "units" in line else None,
            line.get("seal", False),
            [_promise(promise, index) for promise in promises],
            tuple(mentions),
        )

    def _report(self, line: Line) -> Report:
        entries, promises = line["entries"], line["promises"]
        mentions = [(e[0], e[1], e[2]) for e in entries] + [(p[2], p[3], p[4]) for p in promises if p[0] in NAMING]
        mentions = list(dict.fromkeys(mentions))
        by_id = [m for m in mentions if line.get("ids") and m[:2] in self._ids]
        by_name = [m for m in mentions if m not in by_id]
        index = {mention: i for i, mention in enumerate(by_name + by_id)}
        scopes = list(dict.fromkeys(scope for scope, _, _ in by_name))
        segments = list(dict.fromkeys(e[3] for e in entries))
        return Report(
            JOB,
            line["producer"],
            line["run"],
            line["epoch"],
            units=list(line["units"]),
            scopes=scopes,
            names=[name for _, name, _ in by_name],
            scope_index=np.array([scopes.index(scope) for scope, _, _ in by_name], np.uint32),
            end_times=np.array([NO_END_TIME if end is None else end for _, _, end in by_name], np.int64),
            substream_ids=np.array([self._ids[m[:2]] for m in by_id], np.uint64),
            log_id=("another" if line.get("log") == "other" else self._log) if by_id else "",
            want_ids=line.get("want_ids", False),
            segments=segments,
            substream_index=np.array([index[e[0], e[1], e[2]] for e in entries], np.uint32),
            segment_index=np.array([segments.index(e[3]) for e in entries], np.uint32),
            xor=np.array([e[4] for e in entries], np.uint64),
            sent=np.array([e[5] for e in entries], np.uint32),
            received=np.array([e[6] for e in entries], np.uint32),
            entry_count=len(entries),
            promises=[_promise(promise, index) for promise in promises],
            commit=line["commit"],
        )

    def _explain(self, line: Line) -> Any:
        substream = self.tracker.view(JOB).explained(line["scope"], line["name"]).substream
        return None if substream is None else _ended(substream.segments)

    def _through(self, line: Line) -> Any:
        view = self.tracker.view(JOB)
        log = "another" if line.get("log") == "other" else view.status().log_id
        through = view.through(log, line["producer"], line["epoch"], list(map(tuple, line["substreams"])))
        return {"pending": list(through.pending), "lost": list(through.lost), "forgotten": list(through.forgotten)}

    # -- answers and events

    def _answer(self, command: Command, answer: Answer) -> Any:
        if isinstance(answer, JobDefined):
            self._log = answer.log_id
            return {"created": answer.created}
        if isinstance(answer, Opened):
            return {"committed_epoch": answer.committed_epoch}
        if isinstance(answer, Reported):
            assert isinstance(command, Report)
            if answer.substream_ids is not None:
                self._log = answer.log_id
                for i, name in enumerate(command.names):
                    scope = command.scopes[int(command.scope_index[i])]
                    self._ids[scope, name] = int(answer.substream_ids[i])
            said: dict[str, Any] = {"outcome": answer.outcome.name}
            if answer.outcome == Outcome.PARTIAL_DUPLICATE:
                said["duplicate_units"] = list(answer.duplicate_units)
            if answer.substream_ids is not None:
                said["substream_ids"] = answer.substream_ids.tolist()
            return said
        if isinstance(answer, Subscribed):
            return {"acknowledged": answer.acknowledged, "created": answer.created}
        if isinstance(answer, Acknowledged):
            return {"acknowledged": answer.acknowledged}
        if isinstance(answer, DrainStatus):
            return {"state": answer.state.name}
        return {}

    def _new_events(self, line: Line) -> list[Any]:
        if JOB not in self.tracker.jobs():
            self._seq = 0
            return []
        said = []
        while batch := self.tracker.view(JOB).events(self._seq)[0]:
            for event in batch:
                assert event.seq == self._seq + 1, "the log has a gap"
                self._seq = event.seq
                said.append(event_of(event.kind))
        return said


def _ended(segments: Sequence[Any]) -> dict[str, list[str]]:
    """Return on which segments a substream has ended, and on which of them only a drain had closed it."""
    return {
        "ended": sorted(each.segment for each in segments if each.ended),
        "by_drain": sorted(each.segment for each in segments if each.by_drain),
    }


def _log_named(line: Line) -> str:
    return "another" if line.get("log") == "other" else ""


def as_told(events: Sequence[list[Any]], told: Sequence[list[Any]]) -> list[list[Any]]:
    """Return events as a vector has them: an older one leaves out whether a drain has closed what ended.

    >>> as_told([["ENDED", "a", "", "s", None, 0, "COMPLETE", 0, True, None]],
    ...         [["ENDED", "a", "", "s", None, 0, "COMPLETE", 0]])
    [['ENDED', 'a', '', 's', None, 0, 'COMPLETE', 0]]
    """
    old = [len(one) == 8 and one[0] == "ENDED" for one in told]
    return [
        event[:8] if event[0] == "ENDED" and place < len(old) and old[place] else event
        for place, event in enumerate(events)
    ]


def _promise(said: list[Any], index: dict[tuple[str, str, int | None], int]) -> Promise:
    match said:
        case ["frontier", front, scope, time]:
            return Frontier(front, time, scope)
        case ["close", front, scope, name, end_time, *only]:
            return Close(front, index.get((scope, name, end_time), 0), bool(only and only[0]))
        case ["finish", front]:
            return Finish(front)
        case ["expect", front, scope, name, end_time, segment, elements, *revise]:
            place, xor = index.get((scope, name, end_time), 0), revise[1] if len(revise) > 1 else None
            return Expect(front, segment, place, elements, bool(revise and revise[0]), xor)
        case ["identities", front, scope, name, end_time, segment, xor]:
            return Identities(front, segment, index.get((scope, name, end_time), 0), xor)
    raise ValueError(said)


def event_of(body: Body) -> list[Any]:
    """Return an event as a vector has it."""
    name = EVENT_NAMES[type(body).__name__]
    match body:
        case Ended():
            more = [body.by_drain, body.expected] if body.by_drain or body.expected is not None else []
            return [name, *astuple(body)[:5], body.reason.name, body.in_flight, *more]
        case Stalled():
            more = [body.expected, body.sent] if body.expected else []
            return [name, body.scope, body.name, list(body.segments), body.in_flight, *more]
        case DrainRequested() | Drained():
            return [name, body.drain_id, *([] if body.mode is DrainMode.FINISH else [body.mode.name])]
    return [name, *astuple(body)]
