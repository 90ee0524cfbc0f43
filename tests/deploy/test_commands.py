"""Whatever a deployed file starts is taken by the program that it starts."""

from __future__ import annotations

import pytest

from scripts.check_docs import refusal

from .commands import Command, Dockerfile

COMMANDS = [*Dockerfile().commands()]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.place)
def test_a_command_line_is_taken_by_its_program(command: Command) -> None:
    assert command.words[0] in ("tracker", "python"), "this test knows no other program"
    assert not refusal(command.line)


def test_a_wrong_command_line_is_refused() -> None:
    assert refusal("tracker serve --lisen 0.0.0.0:7654")
    assert refusal("python -m tracker.web.prob")
