"""A standby alone on a journal that no tracker can serve ends with the sentence that a start ends with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.client.processes import TRACKER
from tests.journal.object_stores import Place, directory
from tests.journal.redis_server import RedisServer, needs_redis
from tracker.journal import Record, open_journal
from tracker.server.backups import of_journal
from tracker.server.replayable import recover
from tracker.wire.codec import Method

__all__ = ["directory"]  # a fixture

_ENDS_S = 60


@pytest.fixture(
    params=["file", pytest.param("objects", marks=pytest.mark.thorough), pytest.param("redis", marks=needs_redis)]
)
def where(request: pytest.FixtureRequest, tmp_path: Path, directory: Place) -> Iterator[str]:
    """Yield an empty journal."""
    if request.param != "redis":
        yield f"sqlite:{tmp_path}/tracker.db" if request.param == "file" else directory.address()
        return
    server = RedisServer(tmp_path / "redis")
    yield server.address()
    server.kill()


def refusal(where: str) -> str:
    """Return the last line of a standby that ends."""
    command = [*TRACKER, "serve", "--standby", "--listen", "127.0.0.1:0", "--journal", where]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ENDS_S)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    return ran.stderr.splitlines()[-1]


def test_a_journal_that_ended_with_a_backup_names_who_continues(where: str) -> None:
    with closing(open_journal(where)) as journal:
        recover(journal, 1, 1)
    of_journal(where, final=True, moved_to="tracker.internal:7654")
    assert "name 'tracker.internal:7654' as the server instead of this journal" in refusal(where)


@pytest.mark.parametrize(
    ("unreadable", "sentence"),
    [(Record(55, 2, b""), "a newer version wrote it"), (Record(Method.RESTORED, 2, b""), "Restore it again")],
    ids=["of a newer version", "of a lost backup"],
)
def test_a_record_that_cannot_be_replayed_is_named(where: str, unreadable: Record, sentence: str) -> None:
    with closing(open_journal(where)) as journal:
        recover(journal, 1, 1)
        for record in (unreadable, *[Record(Method.TICK, 3, b"x")] * 3):  # a standby reads all but the newest two
            journal.append([record])
    assert sentence in refusal(where)
