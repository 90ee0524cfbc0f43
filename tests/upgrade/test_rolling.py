"""Two trackers with one journal go from an earlier version to today's, one after the other, and no call fails.

It needs the whole history: the earlier version's code is taken from it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.client.processes import SERVER
from tests.failover.pair import Pair, wait_for_readiness
from tests.journal.redis_server import PROGRAM, RedisServer
from tests.server.test_moving import move, work
from tests.upgrade import old_version
from tracker.client import TrackerClient

#: It has `tracker leader move`, and neither the hand-over of deployments nor what a job's segments tell today.
EARLIER = "e3ff39c8642d8ea10e870b1caa1d2a1da8079a8d"
_CLIENTS = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not old_version.is_there(EARLIER), reason="this clone has not the history of that version"),
]


@pytest.fixture(params=["redis", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'shared.db'}"
        return
    if PROGRAM is None:
        pytest.skip("there is no redis-server here: `apt-get install redis-server` brings it")
    redis = RedisServer(tmp_path / "redis")
    yield redis.address()
    redis.kill()


@pytest.fixture
def pair(journal: str, tmp_path: Path) -> Iterator[Pair]:
    with old_version.checked_out(tmp_path, EARLIER) as tree:
        # Python looks into the working directory first.
        earlier = ["env", "-C", str(tree), f"PYTHONPATH={tree}", sys.executable, "-m", "tracker.cli.main", "serve"]
        pair = Pair(tmp_path / "pair", journal, earlier)
        yield pair
        pair.end()


def upgrade(pair: Pair, place: int) -> None:
    """Stop the standby, and start it with today's version."""
    standby = pair.servers[place]
    standby.stop()
    standby.program = SERVER
    standby.start(waits=True)
    wait_for_readiness(pair.metrics[place], ready=False, word="standby")


def test_both_trackers_are_upgraded_while_clients_work_and_no_call_fails(pair: Pair) -> None:
    stop = threading.Event()
    with TrackerClient(pair.address, retry_for=300) as client, ThreadPoolExecutor(_CLIENTS) as threads:
        assert client.server_info().features == ()
        working = [threads.submit(work, pair.address, number, stop) for number in range(_CLIENTS)]
        try:
            upgrade(pair, 1)
            moved = move(pair.address)
            assert moved.returncode == 0, moved.stderr
            wait_for_readiness(pair.metrics[1], ready=True)
            upgrade(pair, 0)
            moved = move(pair.address)
            assert moved.returncode == 0, moved.stderr
            wait_for_readiness(pair.metrics[0], ready=True)
        finally:
            stop.set()
        for number, worker in enumerate(working):
            assert worker.result() == client.job(f"job-{number}").in_flight > 0
        assert "hand-over" in client.server_info().features
