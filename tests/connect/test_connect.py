"""Tracked queries over Spark Connect: their batches run on the server, and the application has no JVM."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from examples.services.connect import ConnectServer
from spark_client.api.refusals import ELSEWHERE
from tests.client.processes import Server
from tests.connect.programs import run
from tests.spark.conftest import settings
from tests.spark.feed import Feed, row
from tests.spark.test_first_moments import BEING_WRITTEN
from tests.spark.waiting import soon
from tracker.client import DrainState, TrackerClient

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

Result = tuple[str, str, str, int, int]


def put(feed: Feed, hour: int, rows: int = 10) -> None:
    """Put an hour of two tenants, whose last rows are marked as such."""
    feed.put(
        *[row(100 * hour + n, 60 * hour + n, "ab"[n % 2], "xyz"[n % 3], n, last=n >= rows - 2) for n in range(rows)]
    )


def wanted(feed: Feed) -> list[Result]:
    """Return the results of a batch over all rows."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for each in feed.rows:
        if each["amount"] <= 6:
            key = (each["tenant"], each["ts"][:13], each["kind"])
            total, rows = sums.get(key, (0, 0))
            sums[key] = total + each["amount"], rows + 1
    return sorted((*key, *found) for key, found in sums.items())


def released(path: Path) -> list[Result]:
    """Return the results that were released."""
    if not any(path.glob("epoch=*/*.parquet")):
        return []
    table = ds.dataset(sorted(map(str, path.glob("epoch=*/*.parquet")))).to_table().to_pylist()
    return sorted(
        (each["tenant"], str(each["window"]["start"])[:13], each["kind"], each["sum"], each["rows"]) for each in table
    )


@pytest.mark.thorough
def test_each_night_releases_what_it_has_ended(
    connect: ConnectServer, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Two runs with ``availableNow`` on one checkpoint."""
    put(feed, 0)
    put(feed, 1)
    run("night", connect, tracker.address, job, tmp_path)
    assert released(tmp_path / "out") == wanted(feed)
    put(feed, 2)
    run("night", connect, tracker.address, job, tmp_path)
    assert released(tmp_path / "out") == wanted(feed)
    with TrackerClient(tracker.address) as client:
        assert client.job(job).in_flight == 0
        assert all(producer.closed for producer in client.job(job).producers)


@pytest.mark.thorough
def test_a_server_killed_while_it_wrote_down_a_first_batch_starts_again(
    connect: ConnectServer, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    put(feed, 0)
    offsets = tmp_path / "cp" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / BEING_WRITTEN[0]).touch()
    run("night", connect, tracker.address, job, tmp_path)
    assert released(tmp_path / "out") == wanted(feed)


@pytest.mark.thorough
def test_a_dry_run_takes_rows_of_a_remote_session(
    connect: ConnectServer, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    put(feed, 0)
    put(feed, 1)
    run("dry", connect, tracker.address, job, tmp_path)
    found = json.loads((tmp_path / "dry.json").read_text())
    assert (found["rows"], found["windows"], found["scopes"]) == (20, 4, 2)
    [counts] = [each["all"] for each in found["outcomes"] if each["name"] == "counts"]
    assert (counts["wrong"], counts["after_last"]["longest"]) == (0, 0)


@pytest.mark.thorough
def test_a_failure_reaches_the_application_and_the_next_start_makes_up(
    connect: ConnectServer, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    put(feed, 0)
    run("failing", connect, tracker.address, job, tmp_path)
    assert released(tmp_path / "out") == wanted(feed)


@pytest.mark.thorough
def test_a_session_of_a_query_ends_as_quietly_as_it_lived(
    connect: ConnectServer, tracker: Server, job: str, tmp_path: Path
) -> None:
    run("collected", connect, tracker.address, job, tmp_path)
    run("left", connect, tracker.address, job, tmp_path)


@pytest.mark.thorough
def test_a_process_that_outlives_its_stopped_query_publishes_nothing(
    connect: ConnectServer, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    put(feed, 0)
    before = set(connect.queries())
    run("held", connect, tracker.address, job, tmp_path)
    [zombie] = set(connect.queries()) - before
    run("night", connect, tracker.address, job, tmp_path)
    assert released(tmp_path / "out") == wanted(feed)
    files = sorted(tmp_path.glob("out/**/*.parquet"))
    (tmp_path / "go").touch()
    soon(lambda: (tmp_path / "over").exists() and zombie not in connect.queries())
    assert sorted(tmp_path.glob("out/**/*.parquet")) == files
    with TrackerClient(tracker.address) as client:
        assert client.job(job).late_reports == 0
        assert client.job(job).in_flight == 0


@pytest.mark.thorough
def test_a_killed_server_comes_back_and_its_queries_go_on(
    tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """First its processes live on without it, then all is killed."""
    (tmp_path / "server").mkdir()
    with ConnectServer(tmp_path / "server", settings()) as server:
        put(feed, 0)
        for hour in (1, 2):
            run("detached", server, tracker.address, job, tmp_path)
            soon(lambda: released(tmp_path / "out") == wanted(feed))
            put(feed, hour)
            if hour == 1:
                assert server.process is not None
                os.kill(server.process.pid, signal.SIGKILL)
                soon(lambda: not server.queries())
            server.restart()
        run("detached", server, tracker.address, job, tmp_path)
        soon(lambda: released(tmp_path / "out") == wanted(feed))
        server.kill()


@pytest.mark.thorough
def test_of_two_drivers_the_later_one_goes_on(
    connect: ConnectServer, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Two servers, so that Spark does not know of the other query. The first one sleeps while the second one works."""
    (tmp_path / "other").mkdir()
    put(feed, 0)
    run("alone", connect, tracker.address, job, tmp_path)
    soon(lambda: released(tmp_path / "out") == wanted(feed))
    before = len(connect.queries())
    assert connect.process is not None
    os.killpg(connect.process.pid, signal.SIGSTOP)
    try:
        with ConnectServer(tmp_path / "other", settings()) as other:
            put(feed, 1)
            run("alone", other, tracker.address, job, tmp_path)
            soon(lambda: released(tmp_path / "out") == wanted(feed))
            other.kill()
    finally:
        os.killpg(connect.process.pid, signal.SIGCONT)
    put(feed, 2)
    soon(lambda: len(connect.queries()) < before)
    run("night", connect, tracker.address, job, tmp_path)
    assert released(tmp_path / "out") == wanted(feed)


@pytest.mark.thorough
def test_queries_outlive_their_application_and_a_drain_at_the_tracker_ends_them(
    connect: ConnectServer, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    put(feed, 0)
    run("detached", connect, tracker.address, job, tmp_path)
    put(feed, 1)
    soon(lambda: released(tmp_path / "out") == wanted(feed))
    feed.put(row(900, 905, "a", "x", 5))  # what no row ends, a drain does
    with TrackerClient(tracker.address) as client:
        soon(lambda: client.job(job).open_substreams == 1)
        client.drain(job, "1", "from-outside")
        soon(lambda: client.get_drain(job).state is DrainState.DRAINED)
        assert client.job(job).in_flight == 0
    assert released(tmp_path / "out") == wanted(feed)


def test_the_page_lists_what_is_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "connect.md").read_text()
    rows = [line.strip("| ").split(" | ", 1) for line in page.splitlines() if line.startswith("| `")]
    assert {what.strip("`"): why for what, why in rows} == dict(ELSEWHERE)
