"""The audit log of a real tracker: every command of an operator once, and none lost without a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import spec
from tests.security.authority import Authority
from tests.security.secured import Secured
from tests.server.processes import Servers, StartFailedError
from tracker.client import TrackerClient, TrackerError, TrackerUnavailable
from tracker.security.audit import AUDITED
from tracker.security.identities import NEEDED, Scope


@pytest.fixture
def audited(servers: Servers, authority: Authority, tmp_path: Path) -> Secured:
    return Secured(servers, authority, tmp_path, "--audit", str(tmp_path / "audit.jsonl"))


def lines(secured: Secured, name: str = "audit.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (secured.directory / name).read_text().splitlines()]


def test_what_interferes_is_recorded_and_what_reports_and_reads_is_not() -> None:
    assert {call for call, scope in NEEDED.items() if scope in (Scope.OPERATE, Scope.ADMIN)} <= AUDITED
    assert not AUDITED & {"Report", "Commit", "Watch", "GetJob", "Ack"}


def test_each_command_is_recorded_with_who_what_job_outcome_and_time(audited: Secured, job: str) -> None:
    client = audited.client(audited.add_known("ana", ["admin"]))
    began = datetime.now(UTC)
    client.define_job(spec(job, fronts=["f"]))
    client.open_producer(job, "p", "1")
    client.drain(job, "d1", "stop")
    client.cancel_drain(job)
    client.finish_front(job, "f")
    client.forget_producer(job, "p")
    with pytest.raises(TrackerError):
        client.abandon(job, "s\n", "no-such")
    client.delete_job(job)
    found = lines(audited)
    assert [(line["call"], line["outcome"]) for line in found] == [
        ("DefineJob", "OK"),
        ("Drain", "OK"),
        ("CancelDrain", "OK"),
        ("FinishFront", "OK"),
        ("ForgetProducer", "OK"),
        ("Abandon", "UNKNOWN_SUBSTREAM"),
        ("DeleteJob", "OK"),
    ]
    assert {line["client"] for line in found} == {"ana"}
    assert {line["job"] for line in found} == {job}
    assert all("127.0.0.1" in line["peer"] or "::1" in line["peer"] for line in found)
    assert found[1]["request"] == {"deployment": "d1", "drain_id": "stop", "timeout": None, "mode": "FINISH"}
    assert found[5]["request"] == {"scope": "s\n", "name": "no-such"}
    assert datetime.fromisoformat(found[0]["ts"]) >= began.replace(microsecond=0)


def test_a_refused_attempt_is_recorded(audited: Secured, job: str) -> None:
    audited.client(audited.all).define_job(spec(job))
    reader = audited.client(audited.add("reader", ["watch"]))
    narrow = audited.client(audited.add_known("narrow", ["operate"], ("other",)))
    for client in (reader, narrow):
        with pytest.raises(TrackerError):
            client.drain(job, "d1", "stop")
    assert [(line["client"], line["call"], line["outcome"], line.get("job")) for line in lines(audited)[1:]] == [
        ("reader", "Drain", "PERMISSION_DENIED", None),
        ("narrow", "Drain", "PERMISSION_DENIED", job),
    ]


def test_what_concerns_all_jobs_is_recorded(audited: Secured) -> None:
    keeper = audited.client(audited.add("keeper", ["backup"]))
    narrow = audited.client(audited.add_known("narrow", ["admin"], ("other",)))
    assert b"tracker-backup" in b"".join(keeper.backup())
    for refused in (lambda: list(narrow.backup()), keeper.move_leader, audited.client(audited.all).move_leader):
        with pytest.raises(TrackerError):
            refused()
    assert [(line["client"], line["call"], line["outcome"]) for line in lines(audited)] == [
        ("keeper", "Backup", "OK"),
        ("narrow", "Backup", "PERMISSION_DENIED"),
        ("keeper", "MoveLeader", "PERMISSION_DENIED"),
        ("all", "MoveLeader", "NO_STANDBY"),
    ]


def test_the_file_may_be_moved_away(audited: Secured, job: str) -> None:
    client = audited.client(audited.all)
    client.define_job(spec(job))
    (audited.directory / "audit.jsonl").rename(audited.directory / "audit.1")
    client.drain(job, "d1", "stop")
    assert [line["call"] for line in lines(audited, "audit.1")] == ["DefineJob"]
    assert [line["call"] for line in lines(audited)] == ["Drain"]
    assert (audited.directory / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_no_line_is_lost_and_no_command_taken_while_it_fails(audited: Secured, job: str) -> None:
    client = audited.client(audited.all, retry_for=0)
    client.define_job(spec(job))
    file = audited.directory / "audit.jsonl"
    file.rename(audited.directory / "before")
    file.mkdir()
    client.drain(job, "d1", "one")  # it was carried out when the failure was found
    assert '\\"call\\":\\"Drain\\"' in audited.server.log, "the line is in the server's log"

    def refused(command: Callable[[], object]) -> None:
        with pytest.raises(TrackerUnavailable, match="AUDIT: the server cannot write its audit log"):
            command()

    refused(lambda: client.cancel_drain(job))
    refused(lambda: client.delete_job(job, force=True))
    assert client.get_drain(job).state.name == "DRAINED"
    assert client.job(job).spec.job == job, "what only reads is answered"
    file.rmdir()
    client.delete_job(job, force=True)
    assert [(line["call"], line["outcome"]) for line in lines(audited)] == [("Drain", "OK"), ("DeleteJob", "OK")]


def test_it_goes_to_standard_error(servers: Servers, authority: Authority, tmp_path: Path, job: str) -> None:
    secured = Secured(servers, authority, tmp_path, "--audit", "-")
    secured.client(secured.all).define_job(spec(job))
    (line,) = [json.loads(line) for line in secured.server.log.splitlines() if line.startswith("{")]
    assert (line["client"], line["call"], line["request"]["force"]) == ("all", "DefineJob", False)


def test_without_tokens_the_client_is_anybody(servers: Servers, tmp_path: Path, job: str) -> None:
    server = servers.start(tmp_path, "memory", "--audit", str(tmp_path / "audit"))
    TrackerClient(server.address).define_job(spec(job))
    assert json.loads((tmp_path / "audit").read_text())["client"] == "anybody"


def test_a_file_that_cannot_be_written_ends_the_start(servers: Servers, tmp_path: Path) -> None:
    with pytest.raises(StartFailedError, match="the audit log /no/such/file cannot be written") as failed:
        servers.start(tmp_path, "memory", "--audit", "/no/such/file")
    assert failed.value.status == 2
