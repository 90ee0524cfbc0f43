"""Commands in deployed files are taken by the programs that they start. For the chart, see test_chart.py."""

from __future__ import annotations

import pytest

from scripts.command_lines import refusal, refusal_of_words

from .commands import Command, Dockerfile, of_compose, of_units

COMMANDS = [*Dockerfile().commands(), *of_compose(), *of_units()]


def check(command: Command) -> None:
    """Assert that a command line is taken."""
    assert command.words[0] in ("tracker", "python"), "this test knows no other program"
    assert not refusal_of_words([*command.words], command.variables), command


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.place)
def test_a_command_line_is_taken_by_its_program(command: Command) -> None:
    check(command)


def test_every_kind_of_file_has_its_command_lines() -> None:
    started = {(command.place.split(",")[0], *command.words[:2]) for command in COMMANDS}
    assert {
        ("Dockerfile", "tracker", "serve"),
        ("Dockerfile", "python", "-m"),
        ("compose", "tracker", "serve"),
        ("compose", "tracker", "relay"),
        ("compose", "tracker", "jobs"),
        ("compose", "python", "deploy/spark/job.py"),
        ("tracker.service", "tracker", "serve"),
        ("tracker-relay.service", "tracker", "relay"),
    } <= started


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tracker serve --lisen 0.0.0.0:7654", "No such option"),
        ("tracker serv", "No such command"),
        ("TRACKER_SERVE_RETENTION=day tracker serve", "'day' is not a valid"),
        ("TRACKER_SERVE_LISTN=0.0.0.0:7654 tracker serve", "reads no variable TRACKER_SERVE_LISTN"),
        ("python -m tracker.web.prob", "there is no module"),
        ("python deploy/spark/jobs.py", "there is no file"),
    ],
)
def test_a_wrong_command_line_is_refused(line: str, why: str) -> None:
    assert why in refusal(line)
