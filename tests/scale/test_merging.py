"""The events of shards, merged: everybody gets the same ends in the same order, whichever shard was quicker, and a
watch that goes on where another stood misses nothing and gets nothing twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.lines import JOB, Driver, Line
from tracker.client import (
    Advanced,
    Drained,
    DrainRequested,
    Ended,
    Event,
    Kind,
    Late,
    Position,
    Reason,
)
from tracker.contract.commands import JobDefined
from tracker.contract.status import DrainStatus, FrontStatus, JobStatus, ProducerStatus, merged
from tracker.contract.values import DrainMode
from tracker.core import Tracker
from tracker.sharded.merged_events import Merge, beginning

SEGMENTS = ["up", "down"]
AT = 1_767_225_600_000_000_000
OVER = 2**63 - 1


def filled(kind: Any, number: int) -> Any:
    """Return a value of a type in which no field has its default."""
    if is_dataclass(kind):
        types, make = get_type_hints(kind), cast(Any, kind)
        return make(**{each.name: filled(types[each.name], n) for n, each in enumerate(fields(kind), number)})
    some = [each for each in get_args(kind) if each is not type(None)]
    if get_origin(kind) in (tuple, Sequence):
        return (filled(some[0], number),)
    if get_origin(kind) is Mapping:
        return {filled(some[0], number): filled(some[1], number)}
    if get_origin(kind) is Literal:
        return some[-1]
    if some:
        return filled(some[0], number)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [*kind][-1]
    return {bool: True, int: number, float: 1 / number, str: f"text {number}", timedelta: timedelta(number)}[kind]


@pytest.mark.parametrize("kind", [JobStatus, JobDefined, DrainStatus, ProducerStatus, FrontStatus])
def test_every_field_of_a_shard_has_a_rule(kind: Any) -> None:
    shard = filled(kind, 2)
    assert merged([shard]) == shard


def test_a_field_without_a_rule_is_refused() -> None:
    @dataclass
    class Forgetful:
        added: int

    with pytest.raises(KeyError, match="merge"):
        merged([Forgetful(1), Forgetful(2)])


def test_counts_of_shards_are_added() -> None:
    whole = merged([filled(JobStatus, 2), filled(JobStatus, 40)])
    assert (whole.staged_entries, whole.cells, whole.incarnation) == (2 * 14 + 2 + 40, 2 * 16 + 2 + 40, 51)


def log(random: random.Random, shard: int, deployments: int) -> list[Event]:
    """Return a log of a shard of an ordered job with two segments and progress, drained after each deployment."""
    said = [
        (f"d{number}", kind)
        for number in range(deployments)
        for kind in until_drained(
            random, [(random.randrange(8), random.choice("ab"), f"{shard}/{n}") for n in range(6)]
        )
    ]
    return [Event(seq, AT, deployment, kind) for seq, (deployment, kind) in enumerate(said, 1)]


def until_drained(random: random.Random, substreams: list[tuple[int, str, str]]) -> Iterator[Kind]:
    reached = dict.fromkeys(SEGMENTS, -1)

    def advance(segment: str, time: int) -> Iterator[Kind]:
        for end, scope, name in sorted(substreams):
            if reached[segment] < end <= time:
                yield Ended(segment, scope, name, end, 1, Reason.COMPLETE, 0)
                if random.random() < 0.2:
                    yield Late(segment, scope, name, "q", 1, 0)
        if time > reached[segment]:
            reached[segment] = time
            yield Advanced(segment, time)

    if random.random() < 0.5:
        yield Ended("up", "a", f"{substreams[0][2]}/endless", None, 1, Reason.COMPLETE, 0)
    for _ in range(random.randrange(1, 5)):
        yield from advance("up", reached["up"] + random.randrange(4))
        yield from advance("down", random.randint(reached["down"], reached["up"]))
    yield DrainRequested("drain")
    for segment in SEGMENTS:
        yield from advance(segment, OVER)
    yield Drained("drain")


def heard(random: random.Random, logs: Sequence[Sequence[Event]], ordered: bool, interrupted: bool) -> list[Event]:
    """Return the events of a subscriber to whom the shards' events come in some order, and who may stop and go on."""
    merge = Merge(ordered, beginning(len(logs)))
    given: list[Event] = []
    places = [0] * len(logs)
    while True:
        while (event := merge.give()) is not None:
            given.append(event)
            if interrupted and random.random() < 0.1:
                kept = json.dumps(asdict(merge.position([""] * len(logs))))
                merge = Merge(ordered, Position(**json.loads(kept)))
                places = [merge.after(shard) for shard in range(len(logs))]
        left = [shard for shard, events in enumerate(logs) if places[shard] < len(events)]
        if not left:
            return given
        shard = random.choice(left)
        merge.take(shard, logs[shard][places[shard]])
        places[shard] += 1


def ends(events: Sequence[Event], segment: str) -> list[tuple[str, int, str, str]]:
    return [
        (event.deployment, event.kind.end_time, event.kind.scope, event.kind.name)
        for event in events
        if isinstance(event.kind, Ended) and event.kind.segment == segment and event.kind.end_time is not None
    ]


def own(kind: Kind) -> bool:
    """Return whether an event is of one shard alone."""
    return isinstance(kind, Ended | Late)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.booleans(), st.booleans())
def test_every_event_comes_once_whoever_is_quicker(
    random: random.Random, shards: int, ordered: bool, interrupted: bool
) -> None:
    logs = [log(random, shard, deployments=2) for shard in range(shards)]
    given = heard(random, logs, ordered, interrupted)
    said = Counter((event.deployment, event.kind) for events in logs for event in events if own(event.kind))
    assert Counter((event.deployment, event.kind) for event in given if own(event.kind)) == said
    assert [
        (event.deployment, type(event.kind)) for event in given if isinstance(event.kind, DrainRequested | Drained)
    ] == [
        ("d0", DrainRequested),
        ("d0", Drained),
        ("d1", DrainRequested),
        ("d1", Drained),
    ]


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.booleans())
def test_subscribers_of_an_ordered_job_receive_ends_by_time(
    random: random.Random, shards: int, interrupted: bool
) -> None:
    logs = [log(random, shard, deployments=2) for shard in range(shards)]
    one, other = (heard(random, logs, True, interrupted) for _ in range(2))
    for segment in SEGMENTS:
        assert ends(one, segment) == ends(other, segment) == sorted(ends(one, segment))
    place = {(event.deployment, event.kind): number for number, event in enumerate(one)}
    for (deployment, kind), number in place.items():
        match kind:
            case Ended("down", scope, name, time):
                assert place[deployment, Ended("up", scope, name, time, 1, Reason.COMPLETE, 0)] < number
            case Late(segment, scope, name):
                ended = (e.kind for e in one[:number] if isinstance(e.kind, Ended) and e.deployment == deployment)
                assert any((kind.segment, kind.scope, kind.name) == (segment, scope, name) for kind in ended)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.booleans(), st.booleans())
def test_the_job_is_as_far_as_the_shard_that_is_least_far(
    random: random.Random, shards: int, ordered: bool, interrupted: bool
) -> None:
    logs = [log(random, shard, deployments=2) for shard in range(shards)]
    given = heard(random, logs, ordered, interrupted)
    for deployment in ("d0", "d1"):
        for segment in SEGMENTS:
            reached = -1
            for event in (event for event in given if event.deployment == deployment):
                match event.kind:
                    case Advanced(on, time) if on == segment:
                        assert time > reached
                        reached = time
                    case Ended(on, _, _, time) if on == segment and time is not None:
                        assert time > reached  # all of up to there had been said
            assert reached == OVER


def test_what_is_given_up_does_not_wait_and_upstream_ends_come_first() -> None:
    merge = Merge(True, beginning(2))
    up = Ended("up", "s", "n", 5, 1, Reason.COMPLETE, 0)
    down = Ended("down", "s", "n", 5, 1, Reason.ABANDONED, 1)
    merge.take(0, Event(1, AT, "d", up))
    assert merge.give() is None
    merge.take(0, Event(2, AT, "d", down))
    assert [event.kind for event in iter(merge.give, None)] == [up, down]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 4))
def test_a_drained_shard_holds_nobody_even_after_retention(random: random.Random, shards: int) -> None:
    """Of one shard only the last events are kept, its `Drained` among them; the others' ends come all the same."""
    logs = [log(random, shard, deployments=1) for shard in range(shards)]
    logs[0] = logs[0][-random.randint(1, 2) :]
    assert isinstance(logs[0][-1].kind, Drained)
    merge = Merge(True, beginning(shards))
    for event in logs[0]:
        merge.take(0, event)
    given = list[Event]()
    # The others are about to drain: all that they have to say but that has come.
    for shard, events in list(enumerate(logs))[1:]:
        for event in events[:-1]:
            merge.take(shard, event)
            given += iter(merge.give, None)
    wanted = [end for segment in SEGMENTS for events in logs[1:] for end in ends(events, segment)]
    assert sorted(end for segment in SEGMENTS for end in ends(given, segment)) == sorted(wanted)


def handing_over(random: random.Random, shards: int) -> tuple[list[Line], list[list[Line]]]:
    """Return a job of three deployments that hand over: its lines for one tracker, and those for each of several.

    Each substream goes up and is kept until some deployment lets it go down. The front promises an end time before the
    substreams of that time have come down.
    """
    kept = {f"n{number}": (10 * random.randrange(1, 9), random.randrange(shards)) for number in range(6)}
    graph = {"segments": [["up", ["down"]], ["down", []]], "state_segments": ["down"]}
    rules = {"fronts": ["f"], "ordering": "GLOBAL", "progress": True}
    told: list[list[Line]] = [[] for _ in range(shards + 1)]  # the last: to the one that is told everything
    numbers = iter(range(1000))

    def up(name: str) -> list[object]:
        return ["s", name, kept[name][0], "up", 0, 1, 1]

    def down(name: str, sent: int) -> list[object]:
        return ["s", name, kept[name][0], "down", 7, sent, 1 - sent]

    def tell(line: Line, **entries: list[list[object]]) -> None:
        for place, lines in enumerate(told):
            own = [e for name, es in entries.items() if place in (kept[name][1], shards) for e in es]
            lines.append(line | ({"entries": own} if line["do"] == "report" else {}))

    def report(promise: int, **entries: list[list[object]]) -> None:
        number = next(numbers)
        line = {"do": "report", "producer": "p", "run": f"p{deployment}", "epoch": number, "units": ["u"]}
        tell(line | {"promises": [["frontier", "f", None, promise]], "commit": True}, **entries)

    begun: set[str] = set()
    for deployment in range(3):
        tell({"do": "define", "deployment": f"d{deployment}"} | graph | rules)
        tell({"do": "open", "producer": "p", "run": f"p{deployment}", "mode": "STAGED"})
        if not begun:
            entering = {
                name: [["s", name, end, "up", 0, 1, 1], ["s", name, end, "down", 7, 1, 0]]
                for name, (end, _) in kept.items()
            }
            report(0, **entering)
            begun = set(kept)
        for _ in range(random.randrange(4)):
            leaving = [name for name in sorted(begun) if random.random() < 0.3]
            begun -= set(leaving)
            report(
                random.randrange(10, 90), **{name: [["s", name, kept[name][0], "down", 7, 0, 1]] for name in leaving}
            )
        if deployment == 2:
            report(100, **{name: [down(name, 0)] for name in sorted(begun)})
        else:
            tell({"do": "drain", "deployment": f"d{deployment}", "drain_id": "x", "mode": "HAND_OVER"})
            tell({"do": "close", "producer": "p", "run": f"p{deployment}"})
    return told[-1], told[:-1]


def announced(lines: Sequence[Line]) -> list[Event]:
    """Return all events of a tracker that gets these commands."""
    tracker = Tracker("log")
    driver = Driver(tracker)
    for line in lines:
        driver.run(line)
    return [Event(event.seq, AT, event.deployment, event.kind) for event in tracker.view(JOB).events(0, limit=10**6)[0]]


def progress(events: Sequence[Event], segment: str) -> list[int]:
    return [e.kind.time for e in events if isinstance(e.kind, Advanced) and e.kind.segment == segment]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 3), st.booleans())
def test_deployments_that_hand_over_are_one_job(random: random.Random, shards: int, interrupted: bool) -> None:
    """Over several trackers as over one: all ends come in one order across hand-overs, and progress goes on."""
    whole, parts = handing_over(random, shards)
    one, merged = announced(whole), heard(random, [announced(part) for part in parts], True, interrupted)
    for segment in SEGMENTS:
        of_one = sorted(end[1:] for end in ends(one, segment))
        assert [end[1:] for end in ends(merged, segment)] == of_one
        assert len(of_one) == 6
        assert progress(merged, segment)[-1] == progress(one, segment)[-1] == 100
        assert progress(merged, segment) == sorted(set(progress(merged, segment)))
    drains = [[e.kind for e in events if isinstance(e.kind, DrainRequested | Drained)] for events in (one, merged)]
    assert drains[0] == drains[1]


def test_nothing_waits_on_a_segment_that_a_deployment_has_left_out() -> None:
    """Nobody advances there any more."""
    merge = Merge(True, beginning(2))
    late = Ended("up", "s", "late", 60, 1, Reason.COMPLETE, 0)
    drained = Drained("x", DrainMode.HAND_OVER)
    logs: list[list[Any]] = [[Advanced("up", 49), drained], [late, Advanced("up", 60), drained]]
    for shard, kinds in enumerate(logs):
        for seq, kind in enumerate(kinds, 1):
            merge.take(shard, Event(seq, AT, "d1", kind))
    assert [event.kind for event in iter(merge.give, None)] == [Advanced("up", 49), drained]
    kept = json.loads(json.dumps(asdict(merge.position(["", ""]))))
    merge = Merge(True, Position(**kept))
    merge.take(1, Event(1, AT, "d1", late))
    assert merge.wants_graph
    assert merge.give() is None
    merge.graph = frozenset(["up", "down"])
    assert merge.give() is None
    merge.graph = frozenset(["down"])
    assert [event.kind for event in iter(merge.give, None)] == [late]
    # A position that an older version has kept.
    del kept["handed_over"]
    assert not Merge(True, Position(**kept)).wants_graph
