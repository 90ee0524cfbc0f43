"""Acknowledged records survive a loss of power, at whatever moment: they had been synced."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tracker.journal import JournalLossError, Record, SqliteJournal

from .disk import watched


def records(first: int, count: int) -> list[Record]:
    return [Record(7, n, bytes([n % 251]) * 3000) for n in range(first, first + count)]


def came_back(where: Path, told: int, accept_loss: bool = False) -> str:
    """Return the fault of the journal that the disk kept; empty: none."""
    journal = SqliteJournal(where / "tracker.db")
    try:
        recovery = journal.recover(accept_loss)
        found = list(recovery.records)
        if recovery.number + len(found) < told:
            return f"{told} were acknowledged, and {recovery.number} and {len(found)} came back"
        if found != records(recovery.number, len(found)):
            return "they are not what was told"
        if recovery.number and recovery.state != {"after": recovery.number}:
            return f"the snapshot after {recovery.number} is {recovery.state}"
        return ""
    except JournalLossError as error:
        return str(error)
    finally:
        journal.close()


def lost_power(tmp_path: Path, seed: int) -> list[str]:
    """Append and write snapshots, and lose power now and then. Return the faults after it."""
    random = Random(seed)
    live = tmp_path / "live"
    live.mkdir()
    problems = []
    with watched(live) as disk:
        journal = SqliteJournal(live / "tracker.db")
        journal.recover()
        told = 0
        for step in range(60):
            told = journal.append(records(told, random.randrange(1, 4)))
            if random.random() < 0.15:
                journal.snapshot(told, {"after": told})
            if random.random() < 0.25 or step == 59:
                problem = came_back(disk.after_power_loss(tmp_path / f"after-{step}"), told)
                if problem:
                    problems.append(f"step {step}: {problem}")
        journal.close()
    return problems


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_survives_a_loss_of_power(tmp_path: Path, seed: int) -> None:
    assert lost_power(tmp_path, seed) == []


def test_what_a_repair_has_saved_survives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power is lost when the repair is done, and just before what was saved takes the damaged file's place."""
    live = tmp_path / "live"
    live.mkdir()
    with watched(live) as disk:
        journal = SqliteJournal(live / "tracker.db")
        journal.recover()
        for step in range(40):
            told = journal.append(records(step, 1))
        journal.close()
        size = (live / "tracker.db").stat().st_size
        with (live / "tracker.db").open("r+b") as file:  # the last pages hold the last records
            file.seek(size - 100)
            file.write(b"\xff" * 100)
            os.fsync(file.fileno())
        swap = SqliteJournal._swap

        def swap_after_a_look(self: SqliteJournal, aside: str) -> None:
            disk.after_power_loss(tmp_path / "between")
            swap(self, aside)

        monkeypatch.setattr(SqliteJournal, "_swap", swap_after_a_look)
        journal = SqliteJournal(live / "tracker.db")
        recovery = journal.recover(accept_loss=True)
        saved = len(list(recovery.records))
        assert 0 < saved < told
        assert came_back(disk.after_power_loss(tmp_path / "after"), saved, accept_loss=True) == ""
        journal.close()
    monkeypatch.undo()
    assert came_back(tmp_path / "between", saved, accept_loss=True) == ""


@pytest.mark.parametrize("without", ["synchronous", "snapshots"])
def test_what_was_not_synced_is_missed(tmp_path: Path, without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that does not sync loses what it acknowledged."""
    if without == "synchronous":
        plain = sqlite3.connect

        class Careless(sqlite3.Connection):
            def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
                return super().execute(statement.replace("synchronous=FULL", "synchronous=OFF"), *arguments)

        monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: plain(*given, factory=Careless, **options))
        assert any("came back" in problem for problem in lost_power(tmp_path, 0))
    else:
        monkeypatch.setattr("tests.journal.disk.Disk.sync", _without_snapshots)
        assert lost_power(tmp_path, 0)


def _without_snapshots(self, path: Path) -> None:  # type: ignore[no-untyped-def]
    """Keep a disk from noting any snapshot's sync."""
    if path.parent == self._live and "-snapshot-" not in path.name and path.is_file():
        self._content[path.stat().st_ino] = path.read_bytes()
        self._names[path.name] = path.stat().st_ino
