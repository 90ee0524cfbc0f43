"""Short runs of the checker: whatever strikes the trackers and their Redis, clients see one tracker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checker.cluster import Cluster
from tests.checker.crowd import Size
from tests.checker.faults import KINDS
from tests.checker.history import recorded
from tests.checker.plan import Fault, Plan, draw, shrink
from tests.checker.plants import PLANTS
from tests.checker.run import run
from tests.journal.redis_server import needs_redis


@pytest.mark.thorough
@needs_redis
def test_a_leader_is_cut_off_killed_and_put_to_sleep(tmp_path: Path) -> None:
    both = {"requests": True, "answers": True, "late": True}
    faults = (
        Fault("cut journal", 0.3, 2.0, "leader", both),
        Fault("kill", 2.5, 0.1),
        Fault("sleep", 4.0, 1.3),
    )
    outcome = run(Plan(1, 6, faults, Size(groups=1, producers=2, epochs=12)), tmp_path / "run")
    assert not outcome.verdict.findings, outcome.verdict.shown()
    assert outcome.verdict.figures["commits"]


@pytest.mark.thorough
@needs_redis
def test_redis_comes_back_older_without_the_leader_after_a_hand_over(tmp_path: Path) -> None:
    faults = (
        Fault("half open", 0.3, 0.0, "leader", {"callers": False, "every": 1}),
        Fault("move", 0.8, 0.5, "leader", {"by": "move", "kill": "", "after": 0}),
        Fault("older redis", 3.0, 1.0, "leader", {"how": "older", "dead": True}),
    )
    outcome = run(Plan(1, 5, faults, Size(groups=1, producers=2, epochs=12)), tmp_path / "run")
    assert not outcome.verdict.findings, outcome.verdict.shown()


@needs_redis
def test_a_store_killed_before_it_could_lose_anything_loses_nothing(tmp_path: Path) -> None:
    with recorded(tmp_path / "history.jsonl") as history:
        cluster = Cluster(tmp_path, "redis", 1, history)
        assert cluster.store is not None
        try:
            found, end = KINDS["older redis"].strike(cluster, "leader", {"how": "older", "dead": True})
            cluster.store.kill()
            end()
        finally:
            cluster.end()
    assert found["missed"]


@needs_redis
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(6))
def test_everything_strikes_at_random(tmp_path: Path, seed: int) -> None:
    outcome = run(draw(seed, 40), tmp_path / "run")
    assert not outcome.verdict.findings, outcome.verdict.shown()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("journal", ["sqlite", "objects"])
def test_everything_strikes_at_random_with_other_journals(tmp_path: Path, journal: str) -> None:
    outcome = run(draw(1, 30, journal), tmp_path / "run")
    assert not outcome.verdict.findings, outcome.verdict.shown()


@needs_redis
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replica_with_an_older_tail_is_promoted_and_readers_are_told(tmp_path: Path) -> None:
    plan = Plan(1, 8, (Fault("promote older", 2.0, 1.0),))
    outcome = run(plan, tmp_path / "run")
    assert not outcome.verdict.findings, outcome.verdict.shown()
    history = outcome.history.read_text()
    assert '"lost": 0' not in history
    assert "LOG_CHANGED" in history


def test_a_seed_draws_the_same_plan_which_survives_its_file() -> None:
    plan = draw(7, 60)
    assert plan == draw(7, 60) != draw(8, 60)
    assert Plan.read(plan.as_json()) == plan
    for journal in ("redis", "sqlite", "objects"):
        drawn = {fault.kind for seed in range(40) for fault in draw(seed, 60, journal).faults}
        assert drawn == {name for name, kind in KINDS.items() if journal in kind.journals}


def test_a_failing_plan_is_cut_down_to_what_it_needs() -> None:
    plan = draw(7, 60)
    needed = (plan.faults[2], plan.faults[9])
    smallest = shrink(plan, lambda some: all(each in some.faults for each in needed) and some.size.producers > 1)
    assert smallest == replace(plan, faults=needed, size=Size(1, plan.size.producers, plan.size.epochs))


def test_each_planted_fault_names_kinds_of_faults_that_there_are() -> None:
    assert {kind for planted in PLANTS.values() for kind, *_ in planted.faults} <= KINDS.keys()
