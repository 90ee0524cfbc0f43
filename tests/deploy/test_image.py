"""Tests of the image without an engine. `python -m scripts.image_check` builds and runs it."""

from __future__ import annotations

import fnmatch
import subprocess
import sysconfig
from itertools import chain
from pathlib import Path

import pytest

from .commands import ROOT, Dockerfile

HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


def test_the_dockerfile_has_no_lint(tmp_path: Path) -> None:
    done = subprocess.run([HADOLINT, "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stdout + done.stderr
    worse = tmp_path / "Dockerfile"
    worse.write_text((ROOT / "Dockerfile").read_text().replace(":trixie-slim", ":latest", 1))
    assert "DL3007" in subprocess.run([HADOLINT, worse], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("stage", ["tracker", "spark"])
def test_an_image_runs_as_the_user_of_the_relay_by_number(stage: str) -> None:
    image = Dockerfile(stage)
    assert image.last("USER") == "10001:10001"
    assert "--uid 10001 " in image.last("RUN")


def test_the_image_runs_as_a_numbered_user_without_a_shell_in_between() -> None:
    image = Dockerfile()
    user, _, group = image.last("USER").partition(":")
    assert user.isdecimal()
    assert group.isdecimal()
    assert int(user) > 0
    assert image.words("ENTRYPOINT") == ("tracker",), "the container's arguments are a command of the tracker"
    assert image.last("VOLUME") in image.last("ENV"), "the journal is on the volume"


def copied() -> set[str]:
    """Return the names that the Dockerfile copies from the build context."""
    sources = [
        arguments.split()[:-1]
        for keyword, arguments in chain(*Dockerfile().stages.values())
        if keyword == "COPY" and not arguments.startswith("--from")
    ]
    return {each.removeprefix("./") for names in sources for each in names}


def test_the_build_context_is_what_the_dockerfile_copies_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "what is not named stays out"
    assert {line[1:] for line in lines if line.startswith("!")} == copied()
    assert all((ROOT / name).exists() for name in copied())


@pytest.mark.parametrize("unwanted", [".git/config", ".venv/bin/python", "tracker.db", "tests/conftest.py", ".env"])
def test_what_is_private_or_large_never_reaches_the_builder(unwanted: str) -> None:
    assert not any(unwanted == name or fnmatch.fnmatch(unwanted, f"{name}/*") for name in copied())
