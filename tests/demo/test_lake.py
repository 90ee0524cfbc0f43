"""`make demo-lake`, for three days: exact in both tables after each kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.services import jars

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(1800)]


def test_the_demo_of_the_lake_is_exact() -> None:
    pytest.importorskip("obstore")
    try:
        jars.lake(), jars.s3a(), jars.objects()
    except jars.MissingError as missing:
        pytest.skip(str(missing))
    command = [sys.executable, "-m", "examples.lake.demo", "--days", "3"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    for table in ("Delta", "Iceberg"):
        assert f"{table}: all " in done.stdout
