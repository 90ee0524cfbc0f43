"""Commands that cannot be undone ask on a terminal, and show what they drop; no output makes a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import launcher
from tracker.client import JobSpec, TrackerClient

TRACKER = [sys.executable, "-m", "tracker.cli.main"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with launcher() as servers:
        yield servers.start(tmp_path_factory.mktemp("server"), "memory").address


@pytest.fixture
def job(address: str) -> str:
    """Return a job with one element in flight, and a staged epoch of the producer ``p``."""
    name = f"job-{uuid.uuid4()}"
    with TrackerClient(address) as client:
        client.define_job(JobSpec(job=name, deployment="d1", segments={"in": []}, fronts=["f"]))
        producer = client.open_producer(name, "p", run="r")
        first = producer.epoch()
        first.sent("in", "LGA", "monday", label=7)
        first.report(commit=True)
        staged = producer.epoch()
        staged.received("in", "LGA", "monday", label=7)
        staged.report(units=["all"])
    return name


COMMANDS = {
    "abandon": (["LGA", "monday"], "1 elements in flight are given up"),
    "finish-front": (["f"], "nothing of the 1 open substreams waits for it"),
    "forget-producer": (["p"], "its staged epochs 1 are dropped"),
    "delete-job": (["--force"], "1 open substreams and"),
}


def on_a_terminal(command: list[str], answer: str) -> tuple[int, str]:
    """Return the exit status of a command that a person answers, and all that the terminal shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(TRACKER[0], [*TRACKER, *command])
    shown = b""
    try:
        while b"[y/N]" not in shown and (more := os.read(terminal, 4096)):
            shown += more
        os.write(terminal, f"{answer}\n".encode())
        while more := os.read(terminal, 4096):
            shown += more
    except OSError:  # the command has ended
        pass
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def called(command: str, address: str, job: str) -> list[str]:
    return [command, job, *COMMANDS[command][0], "--server", address]


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_a_no_changes_nothing_and_a_yes_is_carried_out(address: str, job: str, command: str) -> None:
    with TrackerClient(address) as client:
        before = client.job(job)
        status, shown = on_a_terminal(called(command, address, job), "n")
        assert (status, client.job(job)) == (2, before)
    assert COMMANDS[command][1] in shown
    assert "nothing was done" in shown
    status, shown = on_a_terminal(called(command, address, job), "y")
    assert (status, " is " in shown) == (0, True), shown


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_a_script_is_not_asked_and_sees_what_was_dropped(address: str, job: str, command: str, yes: list[str]) -> None:
    ran = subprocess.run([*TRACKER, *called(command, address, job), *yes], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert COMMANDS[command][1] in ran.stderr
    assert "[y/N]" not in ran.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_name_that_the_output_cannot_show_is_escaped(address: str, job: str, encoding: str) -> None:
    with TrackerClient(address) as client:
        report = client.open_producer(job, "q", run="r").epoch()
        report.sent("in", "größe", "✓", label=1)
        report.report(commit=True)
    for form in ([], ["--json"]):
        ran = run([*TRACKER, "substreams", job, "--server", address, *form], PYTHONIOENCODING=encoding)
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert b"\\u2713" in ran.stdout


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("tracker jobs > /dev/full", 1),
        ("tracker jobs >&-", 0),
        ("tracker jobs 2>&-", 0),
        ("tracker job $'\\xff'", 2),
        ("tracker jobs | true", 0),
    ],
)
def test_no_output_and_no_argument_makes_a_traceback(address: str, line: str, status: int) -> None:
    script = f'tracker() {{ {" ".join(TRACKER)} "$@" --server {address}; }}; set -o pipefail; {line}'
    ran = run(["bash", "-c", script])
    assert b"Traceback" not in ran.stderr
    assert b"Exception ignored" not in ran.stderr
    assert ran.returncode == status, ran.stderr


def test_an_interrupt_while_modules_are_loaded_makes_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ran = run([*TRACKER, "jobs"], PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert (ran.returncode, ran.stderr) == (128 + signal.SIGINT, b"")


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment})
