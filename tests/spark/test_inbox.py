"""A release's events over crashes and absences: with a real tracker, and without Spark."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from spark_client.counting.runs import Run
from spark_client.release.inbox import Inbox
from spark_client.release.parts import RowTally
from spark_client.release.state import PartialState
from spark_client.windows.named import Named
from spark_client.windows.substreams import Substream
from tests.client.processes import Server
from tests.spark.test_growth import Rows
from tracker.client import Ended, JobSpec, ShardedClient, TrackerClient, TrackerError

NAMED = Named("name")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_each_end_is_acted_on_once_whatever_the_release_goes_through(
    tracker: Server, job: str, tmp_path: Path, seed: int
) -> None:
    """It crashes before and after it publishes its state, is away beyond the retention, and loses its subscription."""
    goes_through(TrackerClient(tracker.address), [], job, tmp_path, random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 20))
def test_each_end_is_acted_on_once_over_several_trackers_that_are_killed(
    mortal_trackers: list[Server], job: str, tmp_path: Path, seed: int
) -> None:
    client = ShardedClient(",".join(tracker.address for tracker in mortal_trackers))
    goes_through(client, mortal_trackers, job, tmp_path, random.Random(seed))


def goes_through(
    client: TrackerClient | ShardedClient, mortal: list[Server], job: str, tmp_path: Path, rng: random.Random
) -> None:
    retention = timedelta(seconds=0.3)
    client.define_job(
        JobSpec(job=job, deployment="1", segments={"in": []}, fronts=["in", "other"], retention=retention)
    )
    other = client.open_producer(job, "other", "1")
    released: Counter[Substream] = Counter()
    written: dict[int, list[Substream]] = {}  # by epoch: what its last attempt has released
    known: list[Substream] = []
    closed: set[Substream] = set()
    runs = epochs = 0
    run = inbox = state = None

    for step in range(60):
        if run is None or inbox is None or state is None:
            runs += 1
            run = Run(client, job, "query", str(runs), epochs)
            state = PartialState(tmp_path / "state", compact_from=4)
            inbox = Inbox(tmp_path / "events", [state], "in", ["in"], NAMED, None)
        epoch = epochs
        state.load(epoch)
        kinds = [event.kind for event in inbox.take(run, epoch)]
        ended = [Substream(kind.scope, kind.name, kind.end_time) for kind in kinds if isinstance(kind, Ended)]
        taken = [each for each in ended if state.of(each)]
        if epoch in written:
            assert sorted(written[epoch]) == sorted(taken), "a replay acts on the same ends"
        written[epoch] = taken
        new = [Substream("s", f"{step}-{number}", None) for number in range(rng.randrange(3))]
        state.drop(ended)
        state.add(state.write_part(epoch, Rows()), epoch, {s: RowTally(1, 1, epoch, epoch) for s in new}, set())  # type: ignore[arg-type]
        report = run.report(epoch)
        for scope, name, _ in new:
            report.add("in", scope, name, 0, sent=1, received=1)
            report.close(scope, name, front="in")
        run.send(report, epoch)
        if rng.random() < 0.15:
            run = None  # it dies before its state is published: its batch is run again
            continue
        state.compact(epoch, epoch - 1, lambda _: Rows())  # type: ignore[arg-type, return-value]
        state.publish(epoch)
        epochs += 1
        run.committed(epoch)
        inbox.committed(epoch)
        released.update(taken)
        known += new
        if rng.random() < 0.15:
            run = None
        closing = [each for each in known if each not in closed and rng.random() < 0.3]
        if closing:
            promises = other.epoch(step)
            for scope, name, _ in closing:
                promises.close(scope, name, front="other")
            promises.report(commit=True)
            closed.update(closing)
        if rng.random() < 0.1:
            run = None
            if rng.random() < 0.5:
                at, name = rng.choice(client.logs(job))
                with suppress(TrackerError):  # it may be lost already
                    at.unsubscribe(name, "query")
            time.sleep(0.7)
        if mortal and rng.random() < 0.1:
            rng.choice(mortal).restart()
    client.finish_front(job, "other")
    for _ in range(2):
        if run is None or inbox is None or state is None:
            run = Run(client, job, "query", "last", epochs)
            state = PartialState(tmp_path / "state")
            inbox = Inbox(tmp_path / "events", [state], "in", ["in"], NAMED, None)
        state.load(epochs)
        ended = [
            Substream(k.scope, k.name, k.end_time) for e in inbox.take(run, epochs) if isinstance(k := e.kind, Ended)
        ]
        released.update(each for each in ended if state.of(each))
        state.drop(ended)
        run.send(run.report(epochs), epochs)
        state.publish(epochs)
        run.committed(epochs)
        inbox.committed(epochs)
        epochs += 1
    assert released == Counter(known)
    assert state.substreams == set()
    assert len(list((tmp_path / "events").iterdir())) <= 4
