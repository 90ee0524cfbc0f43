"""A loss of power: what was published before it is there after it, whole.

A file that was never synced is empty afterwards, and a name that its directory's sync has not covered is gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_client.spark_internals.stores import Parquet
from spark_client.storage import directories, folder
from spark_client.storage.directories import publish, read_json, write_first, write_json, write_parquet
from spark_client.storage.folder import Folder

pytestmark = pytest.mark.spark


class Disk:
    """The part of a directory's content that has reached the disk, by this process."""

    def __init__(self, live: Path) -> None:
        self._live = live
        self._content: dict[int, bytes] = {}  # of files, by inode
        self._names: dict[int, dict[str, int]] = {}  # of directories, by inode
        self._kinds: dict[int, bool] = {}  # whether an inode is a directory's

    def sync(self, path: Path) -> None:
        """Note what was synced."""
        inode = path.stat().st_ino
        if path.is_dir():
            self._names[inode] = {each.name: each.stat().st_ino for each in path.iterdir()}
            self._kinds.update({each.stat().st_ino: each.is_dir() for each in path.iterdir()})
        else:
            self._content[inode] = path.read_bytes()

    def after_power_loss(self, where: Path) -> Path:
        """Make what is there when the machine is up again."""
        self._make(where, self._live.stat().st_ino)
        return where

    def _make(self, path: Path, inode: int) -> None:
        path.mkdir()
        for name, each in self._names.get(inode, {}).items():
            if self._kinds[each]:
                self._make(path / name, each)
            else:
                (path / name).write_bytes(self._content.get(each, b""))


@contextmanager
def watched(live: Path) -> Iterator[Disk]:
    """Yield a disk that follows what this process syncs."""
    disk, plain = Disk(live), os.fsync

    def fsync(file: int) -> None:
        plain(file)
        disk.sync(Path(os.readlink(f"/proc/self/fd/{file}")))

    os.fsync = fsync  # type: ignore[assignment]
    try:
        yield disk
    finally:
        os.fsync = plain


def _publish(spark: SparkSession, live: Path) -> None:
    publish(live / "results" / "a" / "epoch=3", write_parquet(spark.range(7)))
    state = Folder(live / "checkpoint" / "state")
    state.write("part", Parquet(spark.range(5)))
    state.put("version.json", {"parts": [3]})
    state.put("version.json", {"parts": [3, 4]})
    write_json(live / "query.json", "a")
    write_json(live / "query.json", "b")
    write_first(live / "notes" / "3.json", [1])


def _is_whole(spark: SparkSession, left: Path) -> bool:
    try:
        rows = spark.read.parquet(str(left / "results" / "a" / "epoch=3")).count()
        part = spark.read.parquet(str(left / "checkpoint" / "state" / "part")).count()
        version = json.loads((left / "checkpoint" / "state" / "version.json").read_text())
        notes = read_json(left / "query.json"), read_json(left / "notes" / "3.json")
    except Exception:
        return False
    return (rows, part, version, notes) == (7, 5, {"parts": [3, 4]}, ("b", [1]))


def test_what_was_published_survives_a_loss_of_power(spark: SparkSession, tmp_path: Path) -> None:
    (live := tmp_path / "live").mkdir()
    with watched(live) as disk:
        _publish(spark, live)
    assert _is_whole(spark, disk.after_power_loss(tmp_path / "left"))


@pytest.mark.parametrize("without", ["sync", "sync_all"])
def test_without_a_sync_something_is_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    def nothing(path: Any) -> None:
        pass

    monkeypatch.setattr(directories, without, nothing)
    (live := tmp_path / "live").mkdir()
    with watched(live) as disk:
        _publish(spark, live)
    assert not _is_whole(spark, disk.after_power_loss(tmp_path / "left"))


def test_a_part_of_the_state_is_lost_without_a_sync(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "sync_all", lambda _: None)
    (live := tmp_path / "live").mkdir()
    with watched(live) as disk:
        _publish(spark, live)
    assert not _is_whole(spark, disk.after_power_loss(tmp_path / "left"))
