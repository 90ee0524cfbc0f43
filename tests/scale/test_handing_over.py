"""An ordered job over several trackers hands over: its watch goes on across the deployments, and no end is lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.client.processes import Server
from tests.scale.test_sharded import FRONTS, spec
from tests.scale.test_spread import listed
from tracker.client import Drained, DrainState, Ended, Frontier, Reason, ShardedClient


@pytest.mark.parametrize("restarted", [False, True])
def test_an_end_on_a_removed_segment_comes_with_the_next_deployment(
    three: list[Server], job: str, restarted: bool
) -> None:
    """It waits for another shard, which is less far on that segment and will never advance there again."""
    with ShardedClient(listed(three), "global") as client:
        first = spec(job, "global")
        client.define_job(replace(first, state_segments=["up"]))
        sharding = client._sharding
        early = next(f"{n}" for n in count() if sharding.shard("s", f"{n}") == 0)
        late = next(f"{n}" for n in count() if sharding.shard("s", f"{n}") == 1)
        run = client.open_producer(job, "p", "r1")
        report = run.epoch(0)
        report.sent("up", "s", early, 7, end_time=50)
        for segment in ("up", "down"):
            report.sent(segment, "s", late, 5, end_time=60)
            report.received(segment, "s", late, 5, end_time=60)
        report.report(["u"], commit=True)
        run.commit(promises=[Frontier(front, 100) for front in FRONTS])
        run.close()
        assert client.drain(job, "d1", "x", hand_over=True).state is DrainState.DRAINED
        watch = client.watch(job)
        seen = list[Any]()
        while not seen or not isinstance(seen[-1], Drained):
            seen.append(next(watch).kind)
        waits = Ended("down", "s", late, 60, 1, Reason.COMPLETE, 0)
        assert waits not in seen
        if restarted:
            watch.close()
            watch = client.watch(job, watch.position)
        segments = {"up": ["kept"], "kept": []}
        client.define_job(replace(first, deployment="d2", segments=segments, state_segments=["up"]))
        while waits not in seen:
            seen.append(next(watch).kind)
        watch.close()
