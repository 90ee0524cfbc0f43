"""The demonstration as `make demo` runs it: end to end on a week of flights, and what it does when it cannot go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "examples.flights.demo", *map(str, arguments)]


@pytest.mark.thorough
@pytest.mark.spark
def test_a_replay_with_a_killed_tracker_is_exact_and_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary, artifacts = tmp_path / "tmp", tmp_path / "artifacts"
    temporary.mkdir()
    done = subprocess.run(
        # A week with a snow storm: hundreds of cancelled flights, delays into the next day.
        command("--first-day", "2013-02-05", "--days", 6, "--span", 19, "--artifacts", artifacts),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tracker killed (SIGKILL" in done.stdout
    assert "tracker back" in done.stdout
    assert "there, exactly once, equal" in done.stdout
    assert done.stderr == ""
    assert {path.name for path in artifacts.iterdir()} == {"outcome.txt"}
    assert list(temporary.iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
def test_the_tracker_releases_a_day_in_the_hour_in_which_it_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights.delays", "--days", "1", "--artifacts", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    # The tracker is killed before the only day is over, so the demo is exact, and prints that nothing was out before.
    assert "there, exactly once, equal" in done.stdout, done.stdout + done.stderr
    kept = pd.read_csv(tmp_path / "windows.csv")
    assert kept[kept["released_by"] == "tracker"]["hours"].between(0, 1).all()


@pytest.mark.thorough
def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command("--days", 2, "--port", port, "--artifacts", tmp_path / "artifacts"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_journal_survives_a_kill_and_the_port_stays(tmp_path: Path) -> None:
    from examples.flights.agent import TrackerProcess
    from tracker.client import JobSpec, TrackerClient

    with TrackerProcess(tmp_path) as tracker, TrackerClient(tracker.address, retry_for=30) as client:
        client.define_job(JobSpec(job="kept", deployment="1", segments={"only": []}, fronts=[]))
        address, pid = tracker.address, tracker.pid
        tracker.kill()
        tracker.start()
        assert tracker.address == address
        assert tracker.pid != pid
        assert list(client.jobs())


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("moment", ["starting Spark", pytest.param("rows replayed", marks=pytest.mark.slow)])
def test_an_interrupted_demonstration_cleans_up(tmp_path: Path, moment: str) -> None:
    running = subprocess.Popen(
        command("--artifacts", tmp_path / "artifacts"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    tracker = ""
    for line in running.stdout:
        if "tracker: pid" in line:
            tracker = line.split("pid ")[1].split(",")[0]
        if moment in line:
            break
    time.sleep(1)  # into a call to the JVM
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert not Path(f"/proc/{tracker}").exists()
    assert not list(tmp_path.glob("flights-*"))


@pytest.mark.spark
@pytest.mark.slow
def test_over_kafka_into_postgresql_everything_is_killed_and_exact() -> None:
    # Not below pytest's own directory, which the user that PostgreSQL runs as may not enter.
    before = set(Path(tempfile.gettempdir()).glob("flights-kafka-*"))
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights_kafka.demo", "--days", "6", "--kills", "1", "--every", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode == 2 and "missing: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there, exactly once, equal" in done.stdout
    for what in ("Kafka 1", "PostgreSQL 1", "Spark's driver 1", "tracker 1"):
        assert what in done.stdout
    assert set(Path(tempfile.gettempdir()).glob("flights-kafka-*")) <= before


@pytest.mark.spark
@pytest.mark.slow
def test_three_deployments_hand_over_and_no_window_is_split(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "examples.flights.hand_over", "--days", "16", "--artifacts", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact: the released table is what a batch computation over the same rows gives" in done.stdout
    assert done.stdout.count("handed over to deployment") == 2
