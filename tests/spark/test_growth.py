"""Nothing grows with time: neither what a release keeps for its state, nor what drivers that were killed leave behind.

The storage layer is driven without Spark here, so that ten thousand batches take seconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from spark_client.errors import TrackingError
from spark_client.release.parts import RowTally
from spark_client.release.state import PartialState
from spark_client.spark_internals.checkpoints import Batch
from spark_client.storage.directories import publish, remove, sweep, write_first, write_json
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.windows.substreams import Substream


class Rows:
    """A stand-in for a DataFrame that is written: a directory with a file."""

    @property
    def write(self) -> Rows:
        return self

    def options(self, **_: str) -> Rows:
        return self

    def parquet(self, path: str) -> None:
        Path(path).mkdir()
        (Path(path) / "part-0.parquet").write_bytes(b"rows")


def size(path: Path) -> tuple[int, int]:
    """Return the number of files beneath a directory, and of their bytes."""
    files = [found for found in path.rglob("*") if found.is_file()]
    return len(files), sum(found.stat().st_size for found in files)


def _run(path: Path, batches: int, at: Callable[[PartialState], None]) -> None:
    """Release 300 substreams a batch, which end three batches later, and a tenant in each that never ends."""
    rng = random.Random(1)
    state = PartialState(Folder(path))
    open_since: dict[Substream, int] = {}
    for epoch in range(batches):
        if epoch % 1000 == 999:  # another driver
            state = PartialState(Folder(path))
        state.load(epoch)
        mine = [Substream("a", f"{epoch}-{number}", None) for number in range(300)]
        stalled = Substream("stalled", f"day-{rng.randrange(20)}", None)
        part = state.write_part(epoch, Rows())  # type: ignore[arg-type]
        rows = {substream: RowTally(1, 1, epoch, epoch) for substream in [*mine, stalled]}
        state.add(part, epoch, rows, set(), Batch(epoch, "since", "until"))
        ended = [substream for substream, since in open_since.items() if since <= epoch - 3]
        state.drop(ended)
        for substream in ended:
            del open_since[substream]
        open_since.update(dict.fromkeys(mine, epoch))
        state.begin(epoch, Place.of([epoch], ["log"]), epoch - 1)
        state.compact(epoch, lambda _: Rows())  # type: ignore[arg-type, return-value]
        state.publish(epoch)
        at(state)


@pytest.mark.thorough
@pytest.mark.parametrize("batches", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_state_of_a_release_is_bounded_by_what_is_open(tmp_path: Path, batches: int) -> None:
    largest = [0, 0, 0]

    def at(state: PartialState) -> None:
        newest = max(tmp_path.glob("version-*.json"))
        ended = len(json.loads(newest.read_text())["dead"])
        assert ended < 1000 + sum(len(part.live) for part in state._parts.values())
        assert len(cast(Any, state._folder.store)._folders) < 150
        if state.epoch % 10 == 9:
            largest[:] = map(max, largest, [*size(tmp_path), newest.stat().st_size])

    _run(tmp_path, batches, at)
    print("files, bytes, bytes of a version:", largest)
    assert largest[0] < 150
    assert largest[1] < 1_000_000
    assert largest[2] < 100_000
    state = PartialState(Folder(tmp_path))
    state.load(batches)
    stalled = [substream for substream in state.substreams if substream.scope == "stalled"]
    assert len(stalled) == 20
    assert sum(state.tally(each, [name for _, name in state.of(each)]).rows for each in stalled) == batches


def test_what_drivers_that_were_killed_have_left_is_swept_up(tmp_path: Path) -> None:
    def die(path: str) -> None:
        Rows().parquet(path)
        raise KeyboardInterrupt

    publish(tmp_path / "epoch=1", Rows().parquet)
    write_json(tmp_path / "_query.json", "q")
    write_first(tmp_path / "note.json", 1)
    left = [tmp_path / "_epoch=2.0123abcd", tmp_path / "_000000000007.89abcdef", tmp_path / "_x.json.00000000"]
    for hidden in left[:2]:
        (hidden / "content" / "_temporary").mkdir(parents=True)
    left[2].write_text("1")
    (tmp_path / "_SUCCESS").touch()
    sweep(tmp_path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["_SUCCESS", "_query.json", "epoch=1", "note.json"]
    assert sorted(found.name for found in (tmp_path / "epoch=1").iterdir()) == ["part-0.parquet"]
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "epoch=3", die)
    remove(tmp_path / "epoch=1")
    sweep(tmp_path / "nowhere")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["_SUCCESS", "_query.json", "note.json"]


@pytest.mark.parametrize("swept_after", range(4))
def test_a_driver_whose_half_written_directory_was_swept_up_publishes_nothing(tmp_path: Path, swept_after: int) -> None:
    """Spark's tasks make the directories that they write into, so half of it may be there again."""

    def tasks(path: str) -> None:
        for number in range(4):
            Path(path).mkdir(parents=True, exist_ok=True)
            (Path(path) / f"part-{number}").touch()
            if number == swept_after:
                sweep(tmp_path)

    with pytest.raises((TrackingError, FileNotFoundError)):
        publish(tmp_path / "epoch=1", tasks)
    assert list(tmp_path.iterdir()) == []
    assert publish(tmp_path / "epoch=1", Rows().parquet)


def test_a_swept_up_small_file_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_client.storage import directories

    def write(write_it: Any) -> None:
        hidden = directories._hidden

        def swept(target: Path, content: Any) -> Path:
            path = hidden(target, content)
            sweep(tmp_path)
            return path

        with monkeypatch.context() as patch:
            patch.setattr(directories, "_hidden", swept)
            with pytest.raises(FileNotFoundError):
                write_it(tmp_path / "note.json", 1)

    write(write_json)
    write(write_first)
    assert list(tmp_path.iterdir()) == []
