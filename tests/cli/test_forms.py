"""The form of answers: on a terminal, in a pipe, wide, and as JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Mapping

import pytest

from tests.cli.shell import Shell, table
from tests.client.conftest import spec
from tests.client.processes import TRACKER
from tracker.client import TrackerClient, label


def on_a_terminal(shell: Shell, *arguments: str, columns: int = 80, **variables: str) -> str:
    """Return the output of a command on a terminal of a width."""
    ours, theirs = pty.openpty()
    environment: Mapping[str, str] = {
        **{name: value for name, value in shell.environment.items() if name != "NO_COLOR"},
        "TERM": "xterm-256color",
        "COLUMNS": str(columns),
        **variables,
    }
    running = subprocess.Popen([*TRACKER, *arguments], env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 1 << 16):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert running.wait(60) == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.fixture
def stuck(client: TrackerClient, job: str) -> str:
    """Return a job in which an element is in flight on a segment of a long name, and one has come late."""
    client.define_job(spec(job, segments={"raw": [], "a segment whose name is long": []}))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch()
    report.sent("a segment whose name is long", "JFK", "monday", label(1), end_time=24)
    report.close("JFK", "sunday")
    report.report(commit=True)
    late = producer.epoch()
    late.sent("raw", "JFK", "sunday", label(2))
    late.report(commit=True)
    return job


def test_a_terminal_gets_a_bold_header_and_colour_where_something_is_amiss(shell: Shell, stuck: str) -> None:
    shown = on_a_terminal(shell, "substreams", stuck, columns=200)
    assert shown.startswith("\x1b[1mSCOPE")
    assert "\x1b[33m        1\x1b[0m" in shown  # IN FLIGHT


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(shell: Shell, stuck: str, variables: dict[str, str]) -> None:
    shown = on_a_terminal(shell, "substreams", stuck, columns=200, **variables)
    assert "\x1b[3" not in shown
    assert "a segment whose name is long 0/1" in shown


def test_a_pipe_gets_plain_lines(shell: Shell, stuck: str) -> None:
    assert "\x1b" not in shell("substreams", stuck)


def test_a_table_fits_the_terminal_and_a_wide_one_does_not_wrap(shell: Shell, stuck: str) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(shell, "substreams", stuck, columns=90)).splitlines()
    assert max(map(len, shown)) <= 90
    assert len(shown) > 2
    wide = on_a_terminal(shell, "substreams", stuck, "--output", "wide", columns=90).splitlines()
    assert len(wide) == 2
    assert "LAST SENDERS" in wide[0]


def test_wide_has_more_columns_in_a_pipe_too(shell: Shell, stuck: str) -> None:
    [row] = table(shell("substreams", stuck, "-o", "wide"))
    assert row["LAST SENDERS"] == "q"
    [row] = [row for row in table(shell("jobs", "-o", "wide")) if row["JOB"] == stuck]
    assert (row["SEGMENTS"], row["ORDERING"]) == ("2", "none")
    assert "  d1  Late" in shell("events", stuck, "--kind", "Late", "-o", "wide")


def test_late_events_are_yellow_on_a_terminal(shell: Shell, stuck: str) -> None:
    assert "\x1b[33m" in on_a_terminal(shell, "events", stuck, "--kind", "Late")


def test_json_has_no_colour_on_a_terminal(shell: Shell, stuck: str) -> None:
    assert json.loads(on_a_terminal(shell, "job", stuck, "--json"))["late_reports"] == 1


def test_the_form_comes_from_the_environment_and_the_command_line_goes_first(shell: Shell, stuck: str) -> None:
    shell.environment["TRACKER_OUTPUT"] = "json"
    assert json.loads(shell("job", stuck))["spec"]["job"] == stuck
    assert json.loads(shell("--json", "job", stuck))["spec"]["job"] == stuck
    assert shell("--output", "table", "job", stuck).startswith("job ")
    assert shell("--json", "job", stuck, "--output", "table").startswith("job ")
    assert "contradict" in shell("job", stuck, "--output", "table", "--json", status=2)


@pytest.mark.thorough
def test_a_list_longer_than_a_part_is_one_table(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch()
    for number in range(2_100):
        report.sent("raw", "s", f"{number:05}", label(number))
    report.report(commit=True)
    lines = shell("substreams", job, "--limit", "0").splitlines()
    assert len(lines) == 2_101
    assert sum(line.startswith("SCOPE") for line in lines) == 1
    shown = on_a_terminal(shell, "substreams", job, "--limit", "1500", columns=200, NO_COLOR="1").splitlines()
    assert sum("SCOPE" in line for line in shown) == 1
    assert shown[-1] == "… and more: only the first 1500 are shown; --limit 0 lists all"
    first, last = shown[1], shown[-2]
    assert first.index("raw 0/1") == last.index("raw 0/1")
