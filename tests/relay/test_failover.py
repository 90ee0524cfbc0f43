"""A relay follows the leader of its tracker, and what fails meanwhile is lost and doubled nowhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.client.conftest import spec
from tests.failover.pair import Pair
from tests.journal.redis_server import PROGRAM, RedisServer
from tests.relay.processes import Relay
from tracker.client import Producer, TrackerClient, label

_WORKERS = 4


@pytest.fixture(params=["kill", pytest.param("sleep", marks=pytest.mark.slow)])
def fault(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(fault: str, tmp_path: Path) -> Iterator[Pair]:
    redis = None
    if fault == "sleep":  # with a file, the next one waits for the end of the process
        if PROGRAM is None:
            pytest.skip("there is no redis-server here: `apt-get install redis-server` brings it")
        redis = RedisServer(tmp_path / "redis")
    pair = Pair(tmp_path, f"sqlite:{tmp_path / 'shared.db'}" if redis is None else redis.address())
    yield pair
    pair.end()
    if redis is not None:
        redis.kill()


def over_relay(registry: CollectorRegistry) -> float:
    """Count the reports that were answered by the relay."""
    return sum(
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels.get("over") == "relay"
    )


def test_a_leader_behind_a_relay_is_replaced(
    pair: Pair, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers report units of one epoch, which go over the relay."""
    relay = Relay(tmp_path, pair.address)
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    registry, stop = CollectorRegistry(), threading.Event()
    done = [0] * _WORKERS

    def work(worker: int, producer: Producer) -> None:
        while not stop.is_set():
            report = producer.epoch(0)
            report.sent("a", "s", "w", label(worker, done[worker]))
            report.report([f"{worker}-{done[worker]}"])
            done[worker] += 1

    def wait_for_all(more: int) -> None:
        before = list(done)
        while any(now < then + more for now, then in zip(done, before, strict=True)):
            time.sleep(0.02)

    with TrackerClient(pair.address, retry_for=300, metrics=registry) as client:
        client.define_job(spec("job", segments={"a": []}))
        producer = client.open_producer("job", "p", "r")
        workers = [threading.Thread(target=work, args=(number, producer)) for number in range(_WORKERS)]
        for worker in workers:
            worker.start()
        wait_for_all(5)
        assert over_relay(registry) > 0
        pair.strike(fault)
        wait_for_all(5)
        answered = over_relay(registry)
        while over_relay(registry) < answered + 5:  # the relay has found the new leader
            time.sleep(0.02)
        stop.set()
        for worker in workers:
            worker.join()
        producer.commit(0)
        assert client.job("job").in_flight == sum(done)
    assert relay.stop() == 0
