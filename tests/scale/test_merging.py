"""The events of shards, merged: everybody hears the same ends in the same order, whichever shard was quicker, and a
watch that goes on where another stood misses nothing and hears nothing twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

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
from tracker.sharded.merged_events import Merge, beginning

SEGMENTS = ["up", "down"]
AT = datetime(2026, 1, 1, tzinfo=UTC)
OVER = 2**63 - 1


def log(random: random.Random, shard: int, deployments: int) -> list[Event]:
    """What a shard of an ordered job with two segments and progress may say, drained after each deployment."""
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
    """What a subscriber hears to whom the shards' events come in some order, and who may stop and go on."""
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
    """What is of one shard alone."""
    return isinstance(kind, Ended | Late)


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


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.booleans())
def test_all_subscribers_of_an_ordered_job_hear_its_ends_in_the_order_of_their_times(
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


def test_what_is_given_up_does_not_wait_and_its_upstream_ends_come_first() -> None:
    merge = Merge(True, beginning(2))
    up = Ended("up", "s", "n", 5, 1, Reason.COMPLETE, 0)
    down = Ended("down", "s", "n", 5, 1, Reason.ABANDONED, 1)
    merge.take(0, Event(1, AT, "d", up))
    assert merge.give() is None
    merge.take(0, Event(2, AT, "d", down))
    assert [event.kind for event in iter(merge.give, None)] == [up, down]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 4))
def test_a_drained_shard_holds_nobody_also_if_retention_has_dropped_how_far_it_was(
    random: random.Random, shards: int
) -> None:
    """Of one shard only the last events are kept, its `Drained` among them; the others' ends come all the same."""
    logs = [log(random, shard, deployments=1) for shard in range(shards)]
    logs[0] = logs[0][-random.randint(1, 2) :]
    assert isinstance(logs[0][-1].kind, Drained)
    merge = Merge(True, beginning(shards))
    for event in logs[0]:
        merge.take(0, event)
    given = []
    # The others are about to drain: all that they have to say but that has come.
    for shard, events in list(enumerate(logs))[1:]:
        for event in events[:-1]:
            merge.take(shard, event)
            given += iter(merge.give, None)
    wanted = [end for segment in SEGMENTS for events in logs[1:] for end in ends(events, segment)]
    assert sorted(end for segment in SEGMENTS for end in ends(given, segment)) == sorted(wanted)
