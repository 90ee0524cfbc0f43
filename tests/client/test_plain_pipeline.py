"""The example without Spark does what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.client.processes import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_pipeline.py"


def test_every_batch_ends_with_all_its_images_each_time_it_runs(shared_server: Server) -> None:
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, str(EXAMPLE), shared_server.address],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert ran.stdout.splitlines() == [
            "cats: all 30 images are done",
            "dogs: all 20 images are done",
            "birds: all 10 images are done",
        ]
