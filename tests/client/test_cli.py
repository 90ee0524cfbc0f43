"""The command `tracker`, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.client.conftest import spec
from tests.client.processes import TRACKER, Server
from tracker.client import TrackerClient, label


class Shell:
    """Runs `tracker` with the server's address in the environment."""

    def __init__(self, address: str) -> None:
        self.environment = os.environ | {"TRACKER_SERVER": address}

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """What it printed: on stdout, or where it failed on stderr."""
        ran = subprocess.run(
            [*TRACKER, *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == status, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stderr if status else ran.stdout


@pytest.fixture
def shell(shared_server: Server) -> Shell:
    return Shell(shared_server.address)


@pytest.fixture
def flights(client: TrackerClient, job: str) -> Iterator[str]:
    """A job with one substream that has ended, and one that has not."""
    client.define_job(spec(job, fronts=["schedule"]))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "JFK", "2013-01-01", label("a"), end_time=24)
    report.received("raw", "JFK", "2013-01-01", label("a"), end_time=24)
    report.sent("raw", "LGA", "2013-01-02", label("b"), end_time=48)
    report.frontier("schedule", 24)
    report.report(units=["a"], commit=True)
    yield job
    client.delete_job(job, force=True)


def table(printed: str) -> list[dict[str, str]]:
    """A printed table, by its header: columns begin where a header's word begins or end where it ends."""
    header, *rows = printed.splitlines()
    return [dict(zip(split(header), split(row), strict=False)) for row in rows]


def split(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_jobs_and_one_job(shell: Shell, flights: str) -> None:
    [row] = [row for row in table(shell("jobs")) if row["JOB"] == flights]
    assert (row["DEPLOYMENT"], row["OPEN"], row["IN FLIGHT"], row["ENDED"]) == ("d1", "1", "1", "1")
    shown = shell("job", flights)
    assert "1 substreams, 1 elements in flight" in shown
    assert "schedule  running  *: 24" in shown
    status = json.loads(shell("job", flights, "--json"))
    assert status["spec"]["segments"] == {"raw": []}
    assert status["producers"][0]["committed_epoch"] == 0


def test_explain_says_what_is_in_flight_where_and_which_front_is_missing(shell: Shell, flights: str) -> None:
    told = shell("explain", flights, "LGA", "2013-01-02")
    assert "has not ended" in told
    assert "front 'schedule' (producer 'q'" in told
    assert "has promised up to 24, and the substream ends at 48" in told
    assert "segment 'raw': 1 in flight (1 sent, 0 received; last sent by 'q', last received by 'nobody')" in told
    assert "has ended" in shell("explain", flights, "JFK", "2013-01-01")
    assert json.loads(shell("explain", flights, "JFK", "2013-01-01", "--json"))["reasons"] == []


def test_explain_says_who_has_reported_and_not_committed(shell: Shell, client: TrackerClient, flights: str) -> None:
    staged = client.producer(flights, "q", "r1").epoch(1)
    staged.received("raw", "LGA", "2013-01-02", label("c"), end_time=48)
    staged.report(units=["a"])
    assert "producer 'q' has reported epoch 1 and not committed it" in shell("explain", flights, "LGA", "2013-01-02")
    client.producer(flights, "q", "r1").commit(1)
    assert "as many received as sent, but not the same elements" in shell("explain", flights, "LGA", "2013-01-02")


def test_explain_says_what_to_do_about_a_substream_that_nobody_knows(shell: Shell, flights: str) -> None:
    assert f"`tracker substreams {flights} --ended` lists" in shell("explain", flights, "JFK", "2014", status=1)


def test_substreams(shell: Shell, flights: str) -> None:
    [row] = table(shell("substreams", flights))
    assert (row["SCOPE"], row["NAME"], row["STATE"], row["IN FLIGHT"]) == ("LGA", "2013-01-02", "open", "1")
    assert row["WAITS FOR"] == "schedule"
    assert row["SEGMENTS (RECEIVED/SENT)"] == "raw 0/1"
    assert [row["STATE"] for row in table(shell("substreams", flights, "--ended"))] == ["ended", "open"]
    assert "--limit 0 lists all" in shell("substreams", flights, "--ended", "--limit", "1")
    assert table(shell("substreams", flights, "--scope", "EWR")) == []
    assert table(shell("substreams", flights, "--stalled")) == []
    lines = shell("substreams", flights, "--ended", "--json").splitlines()
    assert [json.loads(line)["scope"] for line in lines] == ["JFK", "LGA"]


def test_watch_shows_events_as_they_happen(shell: Shell, client: TrackerClient, flights: str) -> None:
    watching = [
        subprocess.Popen(
            [*TRACKER, "watch", flights, *options], env=shell.environment, stdout=subprocess.PIPE, text=True
        )
        for options in ([], ["--json", "--after", "1", "--scope", "LGA", "--segment", "raw"])
    ]
    people, programs = (process.stdout for process in watching)
    assert people is not None
    assert programs is not None
    try:
        assert split(people.readline())[2:] == ["Ended", "raw", "JFK/2013-01-01", "1 elements"]
        client.abandon(flights, "LGA", "2013-01-02")
        assert split(people.readline())[2:] == [
            "Ended",
            "raw",
            "LGA/2013-01-02",
            "1 elements",
            "ABANDONED, 1 lost sight of",
        ]
        event = json.loads(programs.readline())
        assert (event["kind"], event["seq"], event["reason"]) == ("Ended", 2, "ABANDONED")
    finally:
        for process in watching:
            process.terminate()
            process.communicate()


def test_a_drain_is_asked_for_taken_back_and_waited_for(shell: Shell, flights: str) -> None:
    shown = shell("drain", flights, "d1", "--id", "night")
    assert split(shown.splitlines()[0]) == ["state", "DRAINING"]
    assert "unfinished fronts   schedule" in shown
    assert "CANCELLED" in shell("cancel-drain", flights, "--id", "night")
    shell("drain", flights, "d1", "--timeout", "0.2", "--wait", status=1)
    assert shell("finish-front", flights, "schedule") == "schedule is finished\n"
    assert shell("abandon", flights, "LGA", "2013-01-02") == "2013-01-02 is abandoned\n"
    assert json.loads(shell("drain", flights, "d1", "--wait", "--json"))["state"] == "DRAINED"


def test_producers_are_forgotten_and_jobs_deleted(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    client.open_producer(job, "q", "r1")
    assert shell("delete-job", job, status=1).startswith("tracker: JOB_ACTIVE: ")
    assert shell("forget-producer", job, "q") == "q is forgotten\n"
    assert shell("delete-job", job) == f"{job} is deleted\n"
    client.define_job(spec(job))
    client.open_producer(job, "q", "r1")
    assert json.loads(shell("delete-job", job, "--force", "--json")) == {"deleted": job}


def test_what_goes_wrong_is_told_by_the_exit_status(shell: Shell) -> None:
    assert shell("job", "nobody-knows-it", status=1).startswith("tracker: UNKNOWN_JOB: ")
    assert "the following arguments are required: JOB" in shell("job", status=2)
    assert "invalid choice" in shell("jbos", status=2)
    assert "Is it running?" in shell("jobs", "--server", "127.0.0.1:1", "--retry-for", "0", status=3)


def test_it_explains_itself(shell: Shell) -> None:
    assert shell("--version").startswith("tracker ")
    assert "examples:" in shell("--help")
    assert "TRACKER_SERVER" in shell("watch", "--help")


def test_a_reader_that_has_seen_enough_is_no_failure(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch(0)
    for number in range(2_000):
        report.sent("raw", "s", str(number), label(number))
    report.report(units=["a"], commit=True)
    listing = " ".join([*TRACKER, "substreams", job, "--json", "--limit", "0"])
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {listing} | head -n 1"],
        env=shell.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stderr == ""
    assert json.loads(ran.stdout)["name"] == "0"
