"""`tracker load` against real trackers: what it finds right, what it finds wrong, and what its figures mean."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.client.processes import TRACKER, Server
from tracker.client import TrackerClient, TrackerError
from tracker.journal import open_journal

SMALL = """
rate = 60
warm_up = 0.5
duration = 3
producers = 4
entries = 10
open = 100
lifetime = 1
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "memory")
    yield server
    server.stop()


class Load:
    """A run of `tracker load` with a scenario of the test's own, or a shipped one."""

    def __init__(self, directory: Path, scenario: str) -> None:
        self._file = directory / "result.json"
        self._scenario = scenario
        if "\n" in scenario:
            self._scenario = str(directory / "own.toml")
            Path(self._scenario).write_text(scenario)

    def __call__(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [*TRACKER, "load", self._scenario, "--save", str(self._file), *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == status, ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr
        return ran

    @property
    def result(self) -> Any:
        return json.loads(self._file.read_text())["result"]


@pytest.mark.thorough
def test_smoke_starts_a_tracker_and_leaves_nothing_behind(tmp_path: Path) -> None:
    load = Load(tmp_path, "smoke")
    picture = tmp_path / "smoke.png"
    ran = load("--start", "--plot", str(picture))
    assert "every substream was announced exactly once, with the right count, and none too early" in ran.stdout
    assert "reports due" in ran.stderr
    result = load.result
    assert result["right"]
    assert result["answered"] == result["planned"] == 488
    assert result["generator"]["repeated"] > 0
    assert result["generator"]["taken_over"] > 0
    assert result["reports"]["count"] + result["generator"]["left_out"] > 250
    for latency in (result["reports"], result["ends"], result["round_trips"], result["floor"]):
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p999"] <= latency["longest"]
    assert all(sample["server"]["memory"] > 0 and sample["server"]["disk"] == 0 for sample in result["samples"])
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_nothing_is_lost_or_doubled_when_producers_and_tracker_are_killed(tmp_path: Path) -> None:
    failures = """
        segments = 3
        [failures]
        repeat = 0.05
        takeover = 0.03
        kill_producers_every = 1.7
        kill_server_every = 3.5
    """
    load = Load(tmp_path, SMALL.replace("duration = 3", "duration = 9") + failures)
    load("--start", "--journal", f"sqlite:{tmp_path / 'own.db'}")
    result = load.result
    assert result["right"]
    generator = result["generator"]
    assert generator["servers_killed"] == 2
    assert generator["producers_killed"] >= 4
    assert generator["repeated"] > 0
    assert generator["taken_over"] > 0
    assert generator["left_out"] > 0
    assert result["samples"][-1]["server"]["disk"] > 0
    assert (tmp_path / "own.db").exists()


@pytest.mark.thorough
def test_at_an_address_it_uses_and_deletes_a_job_of_its_own(tmp_path: Path, server: Server) -> None:
    load = Load(tmp_path, SMALL)
    load("--server", server.address, "--rate", "40", "--duration", "1")
    assert load.result["samples"][0]["server"] is None
    assert load.result["server"] is None
    assert load.result["floor"]["count"] == 0
    with TrackerClient(server.address) as client:
        assert client.jobs() == []
        load("--server", server.address, "--duration", "1", "--keep")
        [job] = client.jobs()
        assert job.startswith("load-")
        assert client.job(job).open_substreams == 0


@pytest.mark.thorough
def test_who_meddles_is_found_out(tmp_path: Path, server: Server) -> None:
    """The load fails after ends by force, after elements and after substreams that nobody planned."""
    load = Load(tmp_path, SMALL.replace("lifetime = 1", "lifetime = 3"))
    over = threading.Event()

    def meddle() -> None:
        with TrackerClient(server.address) as client:
            while not client.jobs():
                time.sleep(0.01)
            [job] = client.jobs()
            meddler = client.open_producer(job, "meddler", "r1")
            report = meddler.epoch(0)
            report.sent("segment-01", "tenant-1", "0-1-0", label=1)
            report.received("segment-01", "tenant-1", "0-1-0", label=1)
            report.close("", "nobody's")
            report.report(units=["unit"], commit=True)
            while not over.is_set():
                try:
                    client.abandon(job, "tenant-0", "1-0-0")
                    return
                except TrackerError:  # not known yet
                    time.sleep(0.01)

    meddling = threading.Thread(target=meddle)
    meddling.start()
    ran = load("--server", server.address, status=1)
    over.set()
    meddling.join()
    wrong = [line for line in ran.stderr.splitlines() if "WRONG" in line]
    assert any("a substream ended that is not in the plan" in line and "nobody's" in line for line in wrong)
    assert any("a substream ended by force" in line and "1-0-0" in line for line in wrong)
    assert any("ended with a wrong number of elements" in line and "tenant-1/0-1-0" in line for line in wrong)
    assert any("an event that must not come: Late" in line and "1-0-0" in line for line in wrong)
    assert "announced exactly once" not in ran.stdout
    assert not load.result["right"]
    with TrackerClient(server.address) as client:
        assert len(client.jobs()) == 1, "what failed is left to be looked at"


@pytest.mark.thorough
def test_a_tracker_that_stands_still_is_seen_by_all_due_then(tmp_path: Path, server: Server) -> None:
    """Without coordinated omission: a pause of two thirds of the time is seen by more than half of the reports.

    A producer that waits for its answer would have seen it once; that is what the round trips say.
    """
    load = Load(tmp_path, SMALL)

    def pause() -> None:
        with TrackerClient(server.address) as client:
            while not (jobs := client.jobs()) or client.job(jobs[0]).last_seq < 20:
                time.sleep(0.01)
        server.freeze()
        time.sleep(2)
        server.thaw()

    pausing = threading.Thread(target=pause)
    pausing.start()
    load("--server", server.address)
    pausing.join()
    result = load.result
    assert result["right"]
    # Lower bounds, which the test's own pause of 2,000 ms makes: a slow machine can only add to them.
    assert result["reports"]["longest"] > 1_000
    assert result["reports"]["p50"] > 100
    assert result["ends"]["p90"] > 100


@pytest.mark.thorough
def test_a_generator_that_was_held_up_says_so(tmp_path: Path, server: Server) -> None:
    scenario = tmp_path / "own.toml"
    scenario.write_text(SMALL.replace("duration = 3", "duration = 6"))
    command = [*TRACKER, "load", str(scenario), "--server", server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with TrackerClient(server.address) as client:
            while not (jobs := client.jobs()) or client.job(jobs[0]).last_seq < 20:
                time.sleep(0.01)
        senders = [
            int(child)
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if "producers" in Path(f"/proc/{child}/cmdline").read_text().split("\0")
        ]
        assert len(senders) == 2
        for number in (signal.SIGSTOP, signal.SIGCONT) * 2:  # twice: a busy machine may be late with the first
            for sender in senders:
                with suppress(ProcessLookupError):
                    os.kill(sender, number)
            time.sleep(1.5)
        _, said = process.communicate()
    assert process.returncode == 0, said
    assert "the generator could not keep up, so the latencies above are not the tracker's alone" in said


@pytest.mark.thorough
def test_a_rate_beyond_the_machine_is_told(tmp_path: Path, server: Server) -> None:
    load = Load(tmp_path, SMALL.replace("duration = 3", "duration = 1") + "patience = 2")
    ran = load("--server", server.address, "--rate", "20000", status=1)
    assert "reports were not answered before patience was at its end" in ran.stderr
    assert load.result["backlog_grew"]
    assert load.result["verdict"]["faults"] == []


@pytest.mark.thorough
def test_who_ends_it_ends_the_tracker_that_it_started(tmp_path: Path) -> None:
    scenario = tmp_path / "own.toml"
    scenario.write_text(SMALL.replace("duration = 3", "duration = 60"))
    journal = f"sqlite:{tmp_path / 'own.db'}"
    command = [*TRACKER, "load", str(scenario), "--start", "--journal", journal]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "reports due" in process.stderr.readline()
        process.terminate()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 143
    open_journal(journal).close()  # raises if a tracker still holds it


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["smoke"], 2, "needs either --start"),
        (["smoke", "--start", "--server", "x:1"], 2, "and not both"),
        (["smoek", "--start"], 2, "name a TOML file, or one of the shipped scenarios: churn, failures,"),
        (["smoke", "--start", "--rate", "0"], 2, "rate must be a number from 0.1"),
        (["smoke", "--server", "x:1", "--journal", "sqlite"], 2, "give both, or neither"),
        (["failures", "--start"], 2, "add --journal sqlite"),
        (["failures", "--server", "x:1"], 2, "kills the tracker, but this test has not started the one at x:1"),
        (["smoke", "--start", "--find-rate", "--plot", "x.png"], 2, "give one of the two"),
        (["smoke", "--start", "--journal", "sqlite:/nowhere/x.db"], 1, "there is no directory /nowhere"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_to_change(arguments: list[str], status: int, told: str) -> None:
    ran = subprocess.run([*TRACKER, "load", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == status
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr


def test_where_no_tracker_is_it_says_so(tmp_path: Path) -> None:
    ran = Load(tmp_path, SMALL + "patience = 1")("--server", "127.0.0.1:1", status=3)
    assert "Check that it is running" in ran.stderr
