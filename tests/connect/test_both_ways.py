"""Tests of folders that use the public interface, with sessions of Spark Connect in place of classic ones.

Each file runs as it stands, in a process of its own, with sessions of the server that the option `--connect` names.
Tests of features that Connect refuses by name are skipped, and so are those that reach into the process of batches.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.services.connect import ConnectServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
SOON = "not slow and not thorough"
SHORT = ("spark/test_revisions.py",)
LONG = (
    "spark/test_available_now.py",
    "spark/test_early.py",
    "spark/test_fronts.py",
    "spark/test_hand_over.py",
    "spark/test_named_substreams.py",
    "spark/test_own_front.py",
    "spark/test_own_windows.py",
    "spark/test_probes.py",
    "spark/test_receipts.py",
    "spark/test_release.py",
    "spark/test_retries.py",
    "spark/test_revisions.py",
    "spark/test_schedule.py",
    "spark/test_sealing.py",
    "spark/test_together.py",
)


@pytest.mark.parametrize(
    ("file", "marks"),
    [(file, SOON) for file in SHORT] + [pytest.param(file, "not slow", marks=pytest.mark.thorough) for file in LONG],
)
def test_a_file_holds_over_connect(connect: ConnectServer, tmp_path: Path, file: str, marks: str) -> None:
    words = ["-p", "no:cacheprovider", "--basetemp", tmp_path / "tests", "--connect", connect.url, "-m", marks]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, words), f"tests/{file}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert re.search(r"\d+ passed", done.stdout), done.stdout
