"""Completion, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.client.conftest import spec
from tracker.client import TrackerClient


@pytest.fixture
def path(tmp_path: Path, shell: Shell) -> str:
    """Return a PATH with the command `tracker` on it."""
    program = tmp_path / "tracker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tracker.cli.main "$@"\n')
    program.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def run(shell: Shell, path: str, *command: str) -> list[str]:
    environment = {**shell.environment, "PATH": path}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout.split()


_BASH = """
source <(tracker completion bash)
COMP_WORDS=({words}); COMP_CWORD={last}
_tracker_completion tracker
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["tracker", "dr"], ["drain"]),
        (["tracker", "context", "s"], ["show", "set"]),
        (["tracker", "jobs", "--out"], ["--output"]),
        (["tracker", "jobs", "--output", "w"], ["wide"]),
    ],
)
def test_bash_completes_commands_options_and_values(
    shell: Shell, path: str, words: list[str], completed: list[str]
) -> None:
    script = _BASH.format(words=" ".join(words), last=len(words) - 1)
    assert run(shell, path, "bash", "--norc", "-c", script) == completed


@pytest.mark.thorough
def test_bash_completes_the_jobs_that_the_tracker_has(shell: Shell, path: str, client: TrackerClient, job: str) -> None:
    client.define_job(spec(f"completed-{job}"))
    script = _BASH.format(words="tracker substreams compl", last=2)
    assert run(shell, path, "bash", "--norc", "-c", script) == [f"completed-{job}"]
    shell.environment["TRACKER_SERVER"] = "127.0.0.1:1"
    assert run(shell, path, "bash", "--norc", "-c", script) == []


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(shell: Shell, path: str) -> None:
    script = "tracker completion fish | source; complete --do-complete 'tracker dr'"
    assert run(shell, path, "fish", "--no-config", "-c", script)[0] == "drain"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(shell: Shell, path: str) -> None:
    """Without a terminal there is no editor to drive: the script registers, and its question is answered."""
    script = "autoload -U compinit; compinit -u -D; source <(tracker completion zsh); echo $_comps[tracker]"
    assert run(shell, path, "zsh", "-f", "-c", script) == ["_tracker_completion"]
    shell.environment |= {"_TRACKER_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "tracker dr"}
    assert "drain" in " ".join(run(shell, path, "tracker"))
