"""Runs the same lines through the core and through the model, and finds where they part.

Compared are every answer or refusal, every event, and at some points everything that can be asked. At some points
too, the core is taken down and built again from its dump, which must change nothing, and a copy of its job must be
what it was when it was taken. After every line, the core's running counts are counted again (`invariants`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import methodcaller
from random import Random
from typing import Any

import numpy as np

from tests.core.invariants import broken
from tests.model.lines import JOB, Driver, Line
from tests.model.reference import ReferenceTracker
from tracker.contract.refusal import Refused
from tracker.core import Tracker
from tracker.core.log import EventFilter
from tracker.journal.snapshots import encode


def with_looks(lines: Sequence[Line], seed: int) -> list[Line]:
    """Return the lines, some marked: `rebuild` builds the core again from its dump, after `look` views are compared."""
    random = Random(seed)
    marked = [
        line | {name: True for name, share in (("rebuild", 0.1), ("look", 0.25)) if random.random() < share}
        for line in lines
    ]
    marked[-1]["look"] = True
    return marked


def difference(lines: Sequence[Line]) -> str:
    """Return where the core and the model part on these lines, in words; empty: nowhere."""
    tracker = Tracker("core")
    core, model = Driver(tracker), Driver(ReferenceTracker("model"))
    copied = tracker.copy_job(JOB)
    then = _bytes(copied())
    for number, line in enumerate(lines):
        if line.get("rebuild"):
            dump = _encoded(tracker)
            core.tracker = tracker = Tracker.load(tracker.dump())
            if _encoded(tracker) != dump:
                return f"line {number + 1}: built again from its dump, the core gives another dump"
        due = tracker.next_due()
        try:
            said = core.run(line)
        except Exception as error:
            return f"line {number + 1}: the core fails: {error!r}"
        expected = model.run(line)
        if said != expected:
            return f"line {number + 1}:\n  core  {json.dumps(said)}\n  model {json.dumps(expected)}"
        if line["do"] == "tick" and said[1] and (due is None or due > core.now):
            return f"line {number + 1}: the tick did something, but was not due"
        if (
            line["do"] == "tick"
            and said == ({}, [])
            and (again := tracker.next_due()) is not None
            and again <= core.now
        ):
            return f"line {number + 1}: after the tick another one is due at once"
        wrong = broken(tracker)
        if wrong:
            return f"line {number + 1}: {wrong}"
        changed = tracker.pop_changed_jobs()
        ended = line["do"] in ("delete", "unsubscribe") and said[0] == {}
        # A tick may end a subscription, which is no event.
        if (JOB in changed) != bool(said[1] or ended) and not (line["do"] == "tick" and JOB in changed):
            return f"line {number + 1}: jobs that have changed: {changed}, events: {json.dumps(said[1])}"
        if line.get("look"):
            for name, ask in VIEWS.items():
                seen, modelled = (_ask(ask, driver.tracker) for driver in (core, model))
                if seen != modelled:
                    return f"line {number + 1}, {name}:\n  core  {seen}\n  model {modelled}"
            if _bytes(copied()) != then:
                return f"line {number + 1}: a copy of the job has changed with the job"
            copied = tracker.copy_job(JOB)
            then = _bytes(copied())
    return ""


def _encoded(tracker: Tracker) -> bytes:
    """Return a snapshot's content; tombstones, which lie in several runs until they are loaded, in one order."""
    dump = tracker.dump()
    for job in dump["jobs"]:
        stones = job["tombstones"]
        order = np.lexsort((stones["second"], stones["low"], stones["high"]))
        stones.update({name: stones[name][order] for name in ("high", "low", "second")})
    return _bytes(dump)


def _bytes(dump: dict[str, Any]) -> bytes:
    return b"".join(map(bytes, encode(dump)))


def _ask(ask: Callable[[Any], Any], tracker: Any) -> Any:
    try:
        return ask(tracker)
    except Refused as refused:
        return refused.code, refused.reason


def _job(tracker: Any) -> Any:
    status = tracker.view(JOB).status()
    fronts = {front.front: replace(front, frontiers=_telling(front.frontiers)) for front in status.fronts}
    producers = {producer.producer: producer for producer in status.producers}
    scalars = (status.first_seq, status.last_seq, status.open_substreams, status.ended_substreams, status.in_flight)
    expected = (status.incomplete_substreams, status.expected, status.expected_sent)
    staged = (status.staged_substreams, status.staged_units, status.staged_entries)
    unread = (sorted(status.unread_segments), dict(status.advanced))
    return status.spec, scalars, expected, staged, status.late_reports, fronts, producers, status.incarnation, unread


def _telling(frontiers: dict[str, int]) -> dict[str, int]:
    """Leave out the scopes whose time adds nothing to the one of every scope."""
    of_all = frontiers.get("*")
    return {scope: time for scope, time in frontiers.items() if scope == "*" or of_all is None or time > of_all}


def _drain(tracker: Any) -> Any:
    status = tracker.view(JOB).drain_status()
    names = (status.unfinished_fronts, status.uncommitted_producers, status.open_producers)
    scalars = (status.state, status.mode, status.drain_id, status.deployment, status.open_substreams, status.in_flight)
    return *scalars, status.unbalanced_segments, *map(set, names)


def _substreams(tracker: Any, **which: Any) -> Any:
    found: list[Any] = []
    after: int | None = -1
    while after is not None:
        if isinstance(tracker, Tracker):
            page, after = tracker.view(JOB).substreams(**which, after=after)
        else:
            page, after = tracker.view(JOB).substreams(**which), None
        found += page
    return [_sorted(s) for s in found]


FILTERS = [
    EventFilter(),
    EventFilter(["a"]),
    EventFilter(["b", "c"], ["t0"]),
    EventFilter((), ["t1", "t2"]),
    EventFilter(["nowhere"]),
]


def _reads(tracker: Any) -> Any:
    """Return the reads of several filters and places, or that they are refused, and from where each misses nothing."""
    last = tracker.view(JOB).status().last_seq
    return [
        [
            tracker.view(JOB).first_seq(wanted),
            *(
                _ask(methodcaller("events", place, limit=limit, wanted=wanted, own=own), tracker.view(JOB))
                for place, own, limit in ((0, False, 10**6), (0, True, 3), (last // 3, True, 10**6), (last, True, 5))
            ),
        ]
        for wanted in FILTERS
    ]


def _subscriptions(tracker: Any) -> Any:
    statuses = [replace(status, expired_because="") for status in tracker.view(JOB).subscriptions()]
    reads = [
        _ask(methodcaller("events", place, limit=10**6, subscription=name), tracker.view(JOB))
        for name in ("s0", "s1", "s2")
        for place in (0, 2)
    ]
    return statuses, reads


def _explained(tracker: Any) -> Any:
    known = [(s.scope, s.name) for s in _substreams(tracker, include_ended=True)][-6:]
    # And some that may be staged only, or not at all.
    named = [*known, *((f"t{number % 3}", f"w{number}") for number in range(0, 60, 7))]
    found = [tracker.view(JOB).explained(scope, name) for scope, name in named]
    return [
        (each.substream and _sorted(each.substream), each.staged, [*map(_sorted, each.earlier)], each.earlier_count)
        for each in found
    ]


def _through(tracker: Any) -> Any:
    view, status = tracker.view(JOB), tracker.view(JOB).status()
    known = [(s.scope, s.name) for s in _substreams(tracker, include_ended=True)]
    named = [*known, *((f"t{number % 3}", f"w{number}") for number in range(0, 60, 7))]
    asked = [(each.producer, (each.committed_epoch or 0) + ahead) for each in status.producers for ahead in (0, 1, 2)]
    return [_ask(methodcaller("through", status.log_id, *each, named), view) for each in [*asked, ("nobody", 0)]]


def _sorted(s: Any) -> Any:
    return replace(s, waiting_for=tuple(sorted(s.waiting_for)), held_by=tuple(sorted(s.held_by)))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "what explains a substream": _explained,
    "how far reports have come": _through,
    "what readers get": _reads,
    "the subscriptions": _subscriptions,
    "the job's status": _job,
    "the drain's status": _drain,
    "the open substreams": lambda tracker: _substreams(tracker),
    "all substreams": lambda tracker: _substreams(tracker, include_ended=True),
    "the stalled substreams": lambda tracker: _substreams(tracker, only_stalled=True),
    "the kept events": lambda tracker: tracker.view(JOB).events(0, limit=10**6),
    "a pending drain": lambda tracker: tracker.drain_status(JOB, "d9").state,
}


def shrink(lines: Sequence[Line], fails: Callable[[Sequence[Line]], bool]) -> list[Line]:
    """Return a short sequence that fails as the given one does: lines are left out, then parts of them.

    Args:
        lines: a sequence that fails.
        fails: whether one does.
    """
    best = list(lines)
    size = len(best) // 2
    while size:
        start = 0
        while start < len(best):
            shorter = best[:start] + best[start + size :]
            if shorter and fails(shorter):
                best = shorter
            else:
                start += size
        size //= 2
    while True:
        for number, line in enumerate(best):
            simpler = next((s for s in _simpler(line) if fails([*best[:number], s, *best[number + 1 :]])), None)
            if simpler is not None:
                best[number] = simpler
                break
        else:
            return best


OPTIONS = [
    "after_seq",
    "max_age",
    "max_events",
    "scopes",
    "ids",
    "want_ids",
    "log",
    "seals",
    "resume_epoch",
    "wait",
    "progress",
    "force",
    "timeout",
    "seal",
]
MARKS = ["rebuild", "look"]


def _simpler(line: Line) -> list[Line]:
    """Return the line without one of its parts."""
    without = [name for name in OPTIONS + MARKS if name in line]
    found: list[Line] = [{key: value for key, value in line.items() if key != name} for name in without]
    durations = line.get("durations", {})
    found += [line | {"durations": {k: v for k, v in durations.items() if k != name}} for name in durations]
    for name in ("entries", "promises", "units", "fronts"):
        listed = line.get(name, [])
        found += [line | {name: listed[:i] + listed[i + 1 :]} for i in range(len(listed))]
    if line.get("commit"):
        found.append(line | {"commit": False})
    if line.get("ordering", "NONE") != "NONE":
        found.append(line | {"ordering": "NONE"})
    if line["do"] == "define" and line["segments"] != [["a", []]]:
        found.append(line | {"segments": [["a", []]]})
    return found


def complaint(lines: Sequence[Line]) -> str:
    """Return a failing sequence, cut down, as lines, and where core and model part on it."""
    kind = _kind(difference(lines))
    short = shrink(lines, lambda some: _kind(difference(some)) == kind)
    return "\n".join([*(json.dumps(line) for line in short), difference(short)])


def _kind(said: str) -> str:
    """Return the first line of what differs, without the number of the line."""
    return said.partition("\n")[0].partition(":" if "," not in said.partition("\n")[0] else ",")[2] if said else "none"
