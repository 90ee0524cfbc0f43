"""Faults that are planted in the trackers are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checker.plan import planted
from tests.checker.plants import PLANTS
from tests.checker.run import run
from tests.journal.redis_server import needs_redis

_TRIES = 3  # how far a run has come when a fault strikes is up to the machine


@needs_redis
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    for attempt in range(_TRIES):
        outcome = run(planted(name, attempt), tmp_path / str(attempt))
        found = {finding.kind for finding in outcome.verdict.findings}
        if found & set(PLANTS[name].found):
            return
    pytest.fail(outcome.verdict.shown())
