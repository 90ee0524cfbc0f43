"""Logs and their standbys, whatever keeps the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.object_stores import Place, directory
from tests.journal.redis_server import RedisServer, needs_redis
from tests.journal.test_objects import opened, read, records, standby
from tracker.journal import JournalError, LostTrackError

__all__ = ["directory"]  # a fixture


@pytest.fixture(params=["objects", pytest.param("redis", marks=needs_redis)])
def address(request: pytest.FixtureRequest, directory: Place, tmp_path: Path) -> Iterator[str]:
    """Yield the address of an empty journal."""
    if request.param == "objects":
        yield directory.address()
        return
    server = RedisServer(tmp_path / "redis")
    yield server.address()
    server.kill()


def test_a_closed_journal_takes_no_record(address: str) -> None:
    leader, _, _ = opened(address)
    leader.append(records(1))
    leader.close()
    with pytest.raises(JournalError, match="is closed"):
        leader.append(records(1))


def test_a_standby_leaves_out_what_was_set_aside(address: str) -> None:
    leader, _, _ = opened(address)
    told = records(6)
    for record in told[:3]:
        leader.append([record])
    waiting = standby(address)
    leader.close()
    leader, _, _ = opened(address)
    leader.set_aside(2, told[1], "it ends the process", answered=False)
    for record in told[3:]:
        leader.append([record])
    _, following = waiting.follow()
    assert [number for number, _ in read(following, 3)] == [1, 3, 4]
    leader.close()
    waiting.close()


def test_a_standby_begins_again_where_a_replayed_record_is_set_aside(address: str) -> None:
    leader, _, _ = opened(address)
    told = records(6)
    for record in told[:5]:
        leader.append([record])
    waiting = standby(address)
    _, following = waiting.follow()
    assert [number for number, _ in read(following, 3)] == [1, 2, 3]
    leader.close()
    leader, _, _ = opened(address)
    leader.set_aside(2, told[1], "an operator leaves it out", answered=False)
    leader.append([told[5]])
    with pytest.raises(LostTrackError, match="record 2 has been left out"):
        read(following, 1)
    _, following = waiting.follow()
    assert [number for number, _ in read(following, 3)] == [1, 3, 4]
    leader.close()
    waiting.close()
