"""Progress on stderr: a bar on a terminal, of which nothing is left at the end, and lines elsewhere."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.cli.screens import Terminal
from tests.cli.shell import Shell
from tests.client.conftest import spec
from tests.client.processes import TRACKER
from tracker.client import TrackerClient, label

BAR = "━"


@pytest.fixture
def stuck(client: TrackerClient, job: str) -> str:
    """Return a job with two substreams, each of which an element keeps open."""
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch(0)
    for name in ("first", "second"):
        report.sent("raw", "s", name, label(name))
        report.close("s", name)
    report.report(commit=True)
    return job


def receive(client: TrackerClient, job: str, epoch: int, name: str) -> None:
    report = client.producer(job, "q", "r1").epoch(epoch)
    report.received("raw", "s", name, label(name))
    report.report(commit=True)


def test_a_drain_that_is_waited_for_moves_a_bar(client: TrackerClient, stuck: str, shell: Shell) -> None:
    with Terminal(shell, "drain", stuck, "d1", "--wait") as terminal:
        terminal.await_screen(lambda text: " 0%" in text and f"{stuck} is DRAINING: 2 substreams open" in text)
        receive(client, stuck, 1, "first")
        terminal.await_screen(lambda text: "50%" in text and "1 substreams open; 1 elements in flight" in text)
        assert re.fullmatch(rf"[{BAR}╸╺ ]+ +50% {stuck} is .*", terminal.text)
        receive(client, stuck, 2, "second")
        terminal.await_screen(lambda text: "0 elements in flight; open runs: q" in text)
        client.producer(stuck, "q", "r1").close()
        assert terminal.finish() == 0
        assert BAR not in terminal.text
        assert "%" not in terminal.text
        assert terminal.text.splitlines()[0].split() == ["state", "DRAINED"]
        assert terminal.is_as_before()


def test_without_a_terminal_there_are_lines_on_stderr(client: TrackerClient, stuck: str, shell: Shell) -> None:
    waiting = subprocess.Popen(
        [*TRACKER, "drain", stuck, "d1", "--wait", "--json"],
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert waiting.stderr is not None
        first = waiting.stderr.readline()
        receive(client, stuck, 1, "first")
        receive(client, stuck, 2, "second")
        client.producer(stuck, "q", "r1").close()
        printed, _ = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
        waiting.communicate()
    assert waiting.returncode == 0
    assert json.loads(printed)["state"] == "DRAINED"
    assert first.startswith(f"{stuck} is DRAINING: 2 substreams open")


@pytest.mark.thorough
@pytest.mark.parametrize(("only", "shown"), [(("stdin", "stderr"), True), (("stdin", "stdout", "stderr"), False)])
def test_a_long_list_into_a_file_is_counted_on_the_terminal(
    client: TrackerClient, job: str, shell: Shell, only: tuple[str, ...], shown: bool
) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch()
    for number in range(2_100):
        report.sent("raw", "s", f"{number:05}", label(number))
    report.report(commit=True)
    with Terminal(shell, "substreams", job, "--limit", "0", only=only) as terminal:
        printed = terminal.finish_and_read_stdout()
        assert (b"2,000 substreams" in terminal.written) == shown
        if shown:
            assert len(printed.splitlines()) == 2_101
            assert not terminal.text, "nothing is left of the bar"


@pytest.mark.thorough
def test_load_moves_a_bar_and_leaves_only_the_figures(shell: Shell) -> None:
    pytest.importorskip("matplotlib", reason="`tracker load` is not installed here")
    with Terminal(shell, "load", "smoke", "--start", "--duration", "1", lines=60) as terminal:
        assert terminal.finish() == 0
        assert BAR.encode() in terminal.written
        assert b"reports due" in terminal.written
        assert BAR not in terminal.text
        assert "every substream was announced exactly once" in terminal.text
