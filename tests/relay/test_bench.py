"""`tracker bench --only relay` measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.test_bench import bench


@pytest.mark.slow
def test_a_relay_beside_none(tmp_path: Path) -> None:
    kinds = ("time of an epoch", "reports to the tracker", "the tracker's processor time")
    assert bench(tmp_path / "figures.json", "--only", "relay") == [
        f"relay (memory), {workers} workers: {kind}" for workers in (2, 8) for kind in kinds
    ]
