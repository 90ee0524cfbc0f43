"""Two queries over Spark Connect, all of whose files are in a store of objects, with results in a table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from examples.lake.services import LakeServer, environment
from examples.services.jars import MissingError
from examples.services.s3 import S3
from tests.client.processes import Server
from tests.spark.conftest import feed, job, tracker
from tests.spark.feed import Feed, row
from tests.spark.waiting import soon
from tracker.client import DrainState, TrackerClient

__all__ = ["feed", "job", "tracker"]
pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]

Result = tuple[str, str, str, int, int]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeServer]:
    """Yield a server with Delta and Iceberg, and its store, whose keys are in the environment: Connect shows none."""
    pytest.importorskip("obstore")
    try:
        store = S3(tmp_path_factory.mktemp("s3"))
        server = LakeServer(tmp_path_factory.mktemp("connect"), store)
    except MissingError as missing:
        pytest.skip(str(missing))
    with store, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(store).items():
            patch.setenv(name, value)
        with server:
            yield server
            server.kill()


class Shop:
    """Applications of one job, one after the other, and what they have released."""

    def __init__(self, connect: LakeServer, tracker: str, job: str, feed: Feed, kind: str) -> None:
        self._words = [connect.url, tracker, job, str(feed.path), f"s3a://state/{job}-{kind}", kind]
        self._kind = kind
        self._place = f"state/{job}-{kind}"
        self._catalog = connect.catalog
        self._endpoint = os.environ["AWS_ENDPOINT_URL"]

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.buckets.applications", *self._words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    def released(self) -> list[Result]:
        """Return the rows of the table, read without Spark."""
        rows = self._delta() if self._kind == "delta" else self._iceberg()
        return sorted((r["tenant"], str(r["window"]["start"])[:13], r["kind"], r["rows"], r["amount"]) for r in rows)

    def _delta(self) -> list[dict[str, Any]]:
        import deltalake

        options = {"AWS_ALLOW_HTTP": "true"}
        try:
            found = deltalake.DeltaTable(f"s3://{self._place}/hourly", storage_options=options)
        except deltalake.exceptions.TableNotFoundError:
            return []
        rows: list[dict[str, Any]] = found.to_pyarrow_table().to_pylist()
        return rows

    def _iceberg(self) -> list[dict[str, Any]]:
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import NoSuchTableError

        catalog = SqlCatalog("lake", uri=f"sqlite:///{self._catalog}", **{"s3.endpoint": self._endpoint})
        try:
            rows: list[dict[str, Any]] = catalog.load_table("shop.hourly").scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return rows


def wanted(feed: Feed) -> list[Result]:
    """Return the results of a batch over all rows."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for each in feed.rows:
        key = (each["tenant"], each["ts"][:13], each["kind"])
        rows, total = sums.get(key, (0, 0))
        sums[key] = rows + 1, total + each["amount"]
    return sorted((*key, *found) for key, found in sums.items())


def put(feed: Feed, hour: int) -> None:
    """Put an hour of two tenants, whose last rows are marked as such."""
    feed.put(*[row(100 * hour + n, 60 * hour + n, "ab"[n % 2], "xyz"[n % 3], n, last=n >= 8) for n in range(10)])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_queries_whose_processes_are_killed_release_each_window_once(
    connect: LakeServer, tracker: Server, job: str, feed: Feed, kind: str
) -> None:
    shop = Shop(connect, tracker.address, job, feed, kind)
    put(feed, 0)
    shop.start()
    soon(lambda: shop.released() == wanted(feed))
    put(feed, 1)
    found = connect.queries()
    assert len(found) >= 2, "each query has one"
    for process in found:
        os.kill(process, signal.SIGKILL)
    put(feed, 2)
    soon(lambda: not connect.queries())
    shop.start()
    soon(lambda: shop.released() == wanted(feed))
    with TrackerClient(tracker.address) as client:
        client.drain(job, "1", "from-outside")
        soon(lambda: client.get_drain(job).state is DrainState.DRAINED)
        assert client.job(job).in_flight == 0
    assert shop.released() == wanted(feed)
