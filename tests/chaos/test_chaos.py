"""The short version: a round in which each kind is killed once is exact; where units are ignored, it is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import faults
from tests.chaos.rounds import Round

pytestmark = pytest.mark.spark


@pytest.mark.thorough
@pytest.mark.timeout(3600)  # killed drivers take long to come back on a busy machine
def test_a_job_whose_parts_are_each_killed_once_equals_a_batch(tmp_path: Path) -> None:
    kinds = ["kill worker", "kill executor", "kill driver", "kill tracker", "cut network"]
    outcome = Round(3, tmp_path / "round", faults(3, kinds), feed_files=8, without=None, say=print).play()
    assert outcome.problems == []
    assert all(outcome.injected[kind] == 1 for kind in kinds)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [2001, 2005, 2003], ids=["iceberg", "delta", "files"])
def test_a_job_in_a_store_that_fails_equals_a_batch(tmp_path: Path, seed: int) -> None:
    kinds = ["kill driver", "break the store's answers", "kill worker", "kill store", "kill tracker"]
    outcome = Round(seed, tmp_path / "round", faults(seed, kinds), 8, None, print, lake=True).play()
    assert outcome.problems == []
    assert all(outcome.injected[kind] == 1 for kind in kinds)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_check_finds_damage_where_each_attempt_counts(tmp_path: Path) -> None:
    outcome = Round(3, tmp_path / "round", [], feed_files=8, without="units", say=print).play()
    assert outcome.injected["task failures"] > 0
    assert outcome.damage != [], outcome.problems
