"""Whatever replaces the leader: no confirmed commit is lost, no end is false or comes twice, no event is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failover.rounds import play, summary
from tests.journal.redis_server import RedisServer, needs_redis


@needs_redis
def test_a_leader_with_a_journal_in_redis_is_killed_put_to_sleep_and_stopped(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis")
    try:
        outcome = play(tmp_path / "trackers", redis.address(), ["kill", "sleep", "stop"])
    finally:
        redis.kill()
    assert not outcome.problems, summary(outcome)


@pytest.mark.slow
def test_a_leader_with_a_journal_in_a_file_is_killed_and_stopped(tmp_path: Path) -> None:
    outcome = play(tmp_path / "trackers", f"sqlite:{tmp_path / 'tracker.db'}", ["kill", "stop"] * 5)
    assert not outcome.problems, summary(outcome)


@needs_redis
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_leader_with_a_journal_in_redis_is_replaced_sixty_times(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis")
    try:
        outcome = play(tmp_path / "trackers", redis.address(), ["kill", "sleep", "stop"] * 20)
    finally:
        redis.kill()
    assert not outcome.problems, summary(outcome)
