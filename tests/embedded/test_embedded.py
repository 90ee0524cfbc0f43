"""A tracker without a service: the first process that asks for a journal's tracker runs it, and others find it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.processes import Server
from tests.testing.conftest import closed, define, received, report, sent
from tracker.cli.main import main
from tracker.client import Credentials, TrackerClient
from tracker.embedded import embed, stop_embedded
from tracker.journal import JournalError, JournalLockedError
from tracker.testing import Assertions

#: A process that runs the tracker of a journal until its input ends.
HOLDS = """
import sys
from tracker.embedded import embed
print(embed(sys.argv[1]), flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["sqlite:{}/tracker.db", "file://{}/tracker?lease=1"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


@pytest.fixture(autouse=True)
def stops(journal: str) -> Iterator[None]:
    """Stop the tracker with the test."""
    yield
    stop_embedded(journal)


@pytest.fixture
def other(journal: str) -> Iterator[subprocess.Popen[str]]:
    """Start another process, which has the journal."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLDS, journal], text=True, **pipes)
    yield process
    process.kill()
    process.wait()


def jobs(address: str) -> list[str]:
    with TrackerClient(address, retry_for=5, credentials=Credentials()) as client:
        return client.jobs()


def embed_in(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_what_was_reported_is_there_when_it_starts_again(journal: str) -> None:
    with TrackerClient(embed(journal), credentials=Credentials()) as client:
        define(client)
        report(client, sent("monday"), closed("monday"))
    stop_embedded(journal)
    with TrackerClient(embed(journal), credentials=Credentials()) as client:
        report(client, received("monday"), producer="cook")
        Assertions(client).assert_ended("shop", "orders", "berlin", "monday", elements=1)


def test_one_process_runs_it_once(journal: str) -> None:
    assert embed(journal) == embed(journal)


def test_another_process_of_the_machine_finds_it(journal: str, other: subprocess.Popen[str]) -> None:
    address = embed_in(other)
    assert embed(journal) == address
    stop_embedded(journal)  # who has found it does not stop it
    assert jobs(address) == []


def test_a_process_ends_without_a_word_and_frees_the_journal(journal: str, other: subprocess.Popen[str]) -> None:
    address = embed_in(other)
    with TrackerClient(address, credentials=Credentials()) as client:
        define(client)
    _, errors = other.communicate()
    assert (other.returncode, errors) == (0, "")
    assert embed(journal) == address
    assert jobs(address) == ["shop"]


def test_a_process_that_ends_leaves_the_journal_to_other_machines_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = f"file://{tmp_path}/tracker?lease=3600"  # one that is not given back is not free before the test's end
    ran = subprocess.run([sys.executable, "-c", HOLDS, journal], text=True, input="", capture_output=True, check=True)
    assert ran.stdout.startswith("unix:")
    monkeypatch.setattr("tracker.journal.replicated._machine", lambda: "another machine")
    assert jobs(embed(journal)) == []
    stop_embedded(journal)


def test_after_its_process_was_killed_the_next_one_runs_it(journal: str, other: subprocess.Popen[str]) -> None:
    with TrackerClient(embed_in(other), credentials=Credentials()) as client:
        define(client)
    other.kill()
    other.wait()
    assert jobs(embed(journal)) == ["shop"]


def test_who_called_the_process_that_was_killed_reaches_the_next_one(
    journal: str, other: subprocess.Popen[str]
) -> None:
    with TrackerClient(embed_in(other), credentials=Credentials()) as client:
        define(client)
        other.kill()
        other.wait()
        embed(journal)
        assert client.jobs() == ["shop"]


def test_one_that_cannot_be_reached_is_refused_with_what_to_do(
    journal: str, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(embed_in(other).removeprefix("unix:")).unlink()
    monkeypatch.setattr("tracker.embedded._PAUSE_S", 0)
    with pytest.raises(JournalLockedError, match=r"in use by .*tracker serve --journal"):
        embed(journal)


def test_other_users_of_the_machine_do_not_reach_it(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path(embed(journal).removeprefix("unix:")).parent.stat().st_mode & 0o077 == 0
    stop_embedded(journal)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = tmp_path / f"substream-tracker-{os.getuid()}"  # by somebody who was first
    made.mkdir()
    made.chmod(0o777)
    with pytest.raises(PermissionError, match="set TMPDIR"):
        embed(journal)


def test_a_journal_that_has_another_form_is_refused(journal: str) -> None:
    with pytest.raises(ValueError, match="no directory"):
        embed("file:relative")


def test_a_journal_that_has_moved_to_a_service_refers_to_it(
    journal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Server(tmp_path, f"sqlite:{tmp_path}/service.db", waits=None)
    moves = ["import", journal, "--into", service.journal, "--moved-to"]
    with TrackerClient(embed(journal), credentials=Credentials()) as client:
        define(client)
        client.subscribe("shop", "cook")
        report(client, sent("monday"), closed("monday"))
        log = client.job("shop").log_id
    assert main([*moves, service.address]) == 1
    assert "is in use by" in capsys.readouterr().err
    stop_embedded(journal)
    assert main([*moves, service.address]) == 0
    assert main([*moves, service.address]) == 0  # as after a kill
    assert f"tracker serve --journal '{service.journal}' --listen {service.address}" in capsys.readouterr().out
    assert main([*moves, "elsewhere:1"]) == 1
    assert f"names {service.address} as the one that continues" in capsys.readouterr().err
    with pytest.raises(JournalError, match=f"name '{service.address}' as the server instead of this journal"):
        embed(journal)
    service.start()
    try:
        with TrackerClient(service.address, credentials=Credentials()) as client:
            assert client.job("shop").log_id == log
            assert [each.name for each in client.subscriptions("shop")] == ["cook"]
            report(client, received("monday"), producer="cook")
            Assertions(client).assert_ended("shop", "orders", "berlin", "monday", elements=1)
    finally:
        service.kill()


def test_a_journal_with_a_tracker_takes_no_other_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = f"file://{tmp_path}/first", f"file://{tmp_path}/second"
    for journal in (first, second):
        with TrackerClient(embed(journal), credentials=Credentials()) as client:
            define(client)
        stop_embedded(journal)
    assert main(["import", first, "--into", second, "--moved-to", "a:1"]) == 1
    assert "has jobs; name an empty one" in capsys.readouterr().err
    embed(first)  # and it goes on
    stop_embedded(first)
