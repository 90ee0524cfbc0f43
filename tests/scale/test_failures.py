"""Servers and producers of a sharded job die between any two calls: nothing is lost, nothing ends early or twice, and
all subscribers hear the ends in one order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.client.processes import Server
from tests.scale.reporting import WINDOWS, spec
from tests.scale.test_sharded import until_drained
from tests.scale.test_spread import listed
from tracker.client import Ended, Event, ProducerStatus, Reason, ShardedClient, TrackerClient

JOB = "job"


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; the test's own time limit is the only one."""
    while not condition():
        time.sleep(0.01)


@contextmanager
def reporting(
    servers: list[Server], run: str, resume: int, last: int, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.scale.reporting", listed(servers), JOB, run, str(resume), str(last)]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def to_its_end(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.read().endswith("stop\n")
    assert process.wait() == 0


def go_on(process: subprocess.Popen[str], about_to: str) -> None:
    """Let the process go on until it is about to do something."""
    assert process.stdin is not None
    assert process.stdout is not None
    while process.stdout.readline() != f"{about_to}\n":
        process.stdin.write("\n")
        process.stdin.flush()


def must_be_exact(events: list[Event], last: int) -> None:
    """Check that each window has ended once, with its one element, in the same order for everybody."""
    ends = [event.kind for event in events if isinstance(event.kind, Ended)]
    assert ends == sorted(
        (
            Ended("up", "s", f"{epoch}/{window}", epoch, 1, Reason.COMPLETE, 0)
            for epoch in range(last)
            for window in range(WINDOWS)
        ),
        key=lambda end: (end.end_time, end.scope, end.name),
    )


@pytest.mark.thorough
def test_servers_are_killed_while_the_job_runs(mortal: list[Server]) -> None:
    last = 150
    with ShardedClient(listed(mortal), "global") as client, ThreadPoolExecutor(2) as pool:
        client.define_job(spec(JOB))

        def committed() -> int:
            return max((producer.committed_epoch or 0 for producer in client.job(JOB).producers), default=0)

        heard = [pool.submit(until_drained, client.watch(JOB)) for _ in range(2)]
        with reporting(mortal, "r1", 0, last) as process:
            for number, server in enumerate([*mortal, *mortal]):
                until(lambda: committed() >= 20 * (number + 1))  # noqa: B023
                server.restart()
            to_its_end(process)
        client.drain(JOB, "d1", "drain")
        for events in heard:
            must_be_exact(events.result(), last)


@pytest.mark.thorough
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("call", ["report", "commit"])
def test_a_producer_is_killed_between_two_shards_that_hear_it(mortal: list[Server], call: str, arrives: bool) -> None:
    """The last server stands still. The call to it arrives after the producer's death, or dies with it."""
    last = 6
    first, _, still = sorted(mortal, key=lambda server: server.address)
    with ShardedClient(listed(mortal), "global") as client:
        client.define_job(spec(JOB))
        (shard,) = TrackerClient(first.address).jobs()
        with reporting(mortal, "r1", 0, last, stdin=subprocess.PIPE) as process:
            go_on(process, f"{call} 4")
            still.freeze()
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            until(lambda: has_heard(TrackerClient(first.address).job(shard).producers[0], call))
            process.kill()
            process.wait()
        if arrives:
            still.thaw()
        else:
            still.restart()
        with reporting(mortal, "r2", 5 if call == "commit" else 4, last) as process:
            to_its_end(process)
        client.drain(JOB, "d1", "drain")
        must_be_exact(until_drained(client.watch(JOB)), last)


def has_heard(producer: ProducerStatus, call: str) -> bool:
    return producer.committed_epoch == 4 if call == "commit" else producer.staged_epochs == (4,)
