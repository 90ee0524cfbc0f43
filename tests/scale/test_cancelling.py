"""A drain of a job over several trackers is cancelled on all of them or on none, however far each of them is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.client.processes import Server
from tests.scale.test_sharded import spec
from tests.scale.test_spread import listed
from tracker.cli.main import main
from tracker.client import DrainState, ShardedClient, TrackerError
from tracker.sharded import agreement

DRAINED, DRAINING = DrainState.DRAINED, DrainState.DRAINING


def drained_but_for_open_runs(client: ShardedClient, job: str, hand_over: bool) -> None:
    """Drain each shard, without fronts, but for the one run that has not closed there."""
    client.define_job(replace(spec(job), fronts=[], progress=False))
    client.open_producer(job, "p", "r1")
    client.drain(job, "d1", "x", timeout=3600, hand_over=hand_over)


def close_run(client: ShardedClient, job: str, shards: Sequence[int]) -> None:
    for tracker, name in [client.logs(job)[shard] for shard in shards]:
        tracker.producer(name, "p", "r1").close()


def states(client: ShardedClient, job: str) -> list[DrainState]:
    return [tracker.get_drain(name).state for tracker, name in client.logs(job)]


@pytest.mark.parametrize("hand_over", [True, False])
def test_a_drain_that_is_done_on_one_shard_is_cancelled_on_none(
    three: list[Server], job: str, capsys: pytest.CaptureFixture[str], hand_over: bool
) -> None:
    command = ["cancel-drain", job, "--server", listed(three), "--sharded", "none"]
    with ShardedClient(listed(three)) as client:
        drained_but_for_open_runs(client, job, hand_over)
        close_run(client, job, [1])
        with pytest.raises(TrackerError, match="1 of the 3 shards") as refused:
            client.cancel_drain(job)
        assert refused.value.reason == "DRAINED"
        assert main(command) == 1
        assert states(client, job) == [DRAINING, DRAINED, DRAINING]
        with pytest.raises(TrackerError, match="DRAIN_MISMATCH"):
            client.cancel_drain(job, "y")
        close_run(client, job, [0, 2])
        assert states(client, job) == [DRAINED] * 3
        assert main(command) == 1
        assert "DRAINED" in capsys.readouterr().err


@pytest.mark.parametrize("hand_over", [True, False])
def test_a_shard_whose_drain_ends_takes_the_cancelled_others_along(
    three: list[Server], job: str, monkeypatch: pytest.MonkeyPatch, hand_over: bool
) -> None:
    with ShardedClient(listed(three)) as client:
        drained_but_for_open_runs(client, job, hand_over)
        at_once, asked = agreement.at_once, list[Any]()

        def drained_then(calls: Sequence[Callable[[], Any]]) -> list[Any]:
            answers = at_once(calls)
            if not asked:
                close_run(client, job, [2])
            asked.append(answers)
            return answers

        monkeypatch.setattr(agreement, "at_once", drained_then)
        with pytest.raises(TrackerError, match="DRAINED"):
            client.cancel_drain(job)
        assert states(client, job) == [DRAINING, DRAINING, DRAINED]
        close_run(client, job, [0, 1])
        assert client.get_drain(job).state is DRAINED


def test_a_drain_that_not_every_shard_was_asked_for_is_cancelled(three: list[Server], job: str) -> None:
    """The caller that asked for it died in between."""
    with ShardedClient(listed(three)) as client:
        client.define_job(spec(job))
        tracker, name = client.logs(job)[0]
        tracker.drain(name, "d1", "x")
        assert client.cancel_drain(job).state is DrainState.CANCELLED
        assert states(client, job) == [DrainState.CANCELLED, DrainState.NOT_DRAINING, DrainState.NOT_DRAINING]
