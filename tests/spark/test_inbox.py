"""A release's events over crashes and absences: with a real tracker, and without Spark."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_client.counting.runs import Run
from spark_client.errors import TrackingError
from spark_client.release.inbox import Inbox
from spark_client.release.parts import RowTally
from spark_client.release.state import PartialState
from spark_client.storage.folder import Folder
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
    """It crashes before and after it publishes its state, is away beyond the retention, loses its subscription, and
    drivers that it has taken over from go on."""
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
    written: dict[int, list[Substream]] = {}  # by act: what its last attempt has released
    known: list[Substream] = []
    closed: set[Substream] = set()
    drivers = [Driver(client, job, tmp_path, 0)]
    epochs, interrupted = 0, False

    def act(driver: Driver, batch: int | None, new: list[Substream], dies: bool) -> bool:
        """Act once, and return whether the outcome is published, and was of what is asked for."""
        driver.state.load(epochs)
        done = driver.inbox.begin(driver.run, batch)
        driver.inbox.committed(epochs - 1, at_once=True)  # who follows Spark's commits calls it at any time
        ended = [Substream(k.scope, k.name, k.end_time) for event in done.events if isinstance(k := event.kind, Ended)]
        taken = [each for each in ended if driver.state.of(each)]
        assert sorted(written.setdefault(done.number, taken)) == sorted(taken), "an act that is repeated is the same"
        driver.state.drop(ended)
        if done.batch is not None:
            part = driver.state.write_part(done.batch, Rows())  # type: ignore[arg-type]
            rows = {each: RowTally(1, 1, done.batch, done.batch) for each in new}
            driver.state.add(part, done.batch, rows, set())
            report = driver.run.report(done.batch)
            for scope, name, _ in new:
                report.add("in", scope, name, 0, sent=1, received=1)
                report.close(scope, name, front="in")
            driver.run.send(report, done.batch)
        if dies:
            return False
        if done.batch is not None:
            driver.state.compact(done.batch, lambda _: Rows())  # type: ignore[arg-type, return-value]
        driver.state.publish(epochs - 1 if done.batch is None else done.batch)
        released.update(taken)
        return done.batch == batch

    for step in range(80):
        driver = drivers[-1]
        dies = rng.random() < 0.15
        if epochs and not interrupted and rng.random() < 0.3:
            act(driver, None, [], dies)
            if not dies:
                driver.inbox.committed(epochs - 1)
        else:
            new = [Substream("s", f"{step}-{number}", None) for number in range(rng.randrange(3))]
            interrupted = not act(driver, epochs, new, dies)
            while interrupted and not dies:  # an earlier driver had begun to act between two batches
                interrupted = not act(driver, epochs, new, dies)
            if not interrupted:
                epochs += 1
                driver.run.committed(epochs - 1)
                driver.inbox.committed(epochs - 1)
                known += new
        if len(drivers) > 1 and rng.random() < 0.2:
            zombie = rng.choice(drivers[:-1])
            batch = rng.choice([None, epochs]) if epochs else epochs
            with suppress(TrackingError):  # it follows what was decided, or does nothing
                zombie.inbox.begin(zombie.run, batch)
            interrupted |= batch is not None
        if dies or rng.random() < 0.15:
            drivers.append(Driver(client, job, tmp_path, epochs))
        closing = [each for each in known if each not in closed and rng.random() < 0.3]
        if closing:
            promises = other.epoch(step)
            for scope, name, _ in closing:
                promises.close(scope, name, front="other")
            promises.report(commit=True)
            closed.update(closing)
        begun = (tmp_path / "acts" / f"{drivers[-1].inbox.next:012d}.json").exists()
        if rng.random() < 0.1:
            if rng.random() < 0.5 and not begun:  # an act cannot be repeated without the subscription
                at, name = rng.choice(client.logs(job))
                with suppress(TrackerError):  # it may be lost already
                    at.unsubscribe(name, "query")
            time.sleep(0.7)
            drivers.append(Driver(client, job, tmp_path, epochs))
        if mortal and rng.random() < 0.1:
            rng.choice(mortal).restart()
    client.finish_front(job, "other")
    drivers.append(Driver(client, job, tmp_path, epochs))
    while not act(drivers[-1], epochs, [], False):
        pass
    drivers[-1].run.committed(epochs)
    drivers[-1].inbox.committed(epochs)
    epochs += 1
    assert act(drivers[-1], None, [], False)
    assert released == Counter(known)
    assert drivers[-1].state.substreams == set()
    assert not drivers[-1].inbox.has_news(drivers[-1].run)
    assert len(list((tmp_path / "acts").iterdir())) <= 4


class Driver:
    """A driver of the query, which takes it over."""

    def __init__(self, client: Any, job: str, path: Path, epochs: int) -> None:
        self.run = Run(client, job, "query", uuid.uuid4().hex, epochs)
        self.state = PartialState(Folder(path / "state"), compact_from=4)
        self.inbox = Inbox(Folder(path / "acts"), Folder(path / "before"), [self.state], "in", ["in"], NAMED, None)
        self.state.load(epochs)
        self.inbox.sweep()
