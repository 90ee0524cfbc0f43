"""The state of a release in any store: drivers that follow each other, requests of a batch, and a store that fails."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import types as T  # noqa: N812

from examples.services.s3 import S3
from spark_client.errors import TrackingError, UsageError
from spark_client.release.parts import RowTally
from spark_client.release.state import PartialState
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream
from tests.journal.object_stores import s3  # noqa: F401 - a fixture
from tracker.store import NoAnswerError, open_store

DAY = Substream("a", "day", None)


class Rows:
    """A stand-in for a DataFrame that is written: a file with its number of rows."""

    schema = (T.StructField("of_no_form_in_arrow", T.VariantType()),)  # so Spark writes it

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def write(self) -> Rows:
        return self

    def options(self, **_: str) -> Rows:
        return self

    def parquet(self, url: str) -> None:
        open_store(url.replace("s3a://", "s3://")).put("part-0.parquet", b"%d" % self._number)


@pytest.fixture(params=["disk", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "checkpoint" / "state")
    pytest.importorskip("obstore")
    server: S3 = request.getfixturevalue("s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return f"s3a://state/{tmp_path.name}/state"


def batch(state: PartialState, epoch: int, rows: int) -> None:
    """Take a batch of one substream's rows in."""
    part = state.write_part(epoch, cast(Any, Rows(rows)))
    state.add(part, epoch, {DAY: RowTally(rows)}, set())
    state.publish(epoch)


def rows_of(location: str, epoch: int) -> dict[int, tuple[int, bytes | None]]:
    """Return the rows that the next driver finds before an epoch, by batch: as counted, and as written."""
    state = PartialState(Folder(location))
    state.load(epoch)
    found = {}
    for last, name in state.of(DAY):
        ((urls, _),) = state.selections({DAY: [name]})
        written = open_store(urls[0].replace("s3a://", "s3://")).get("part-0.parquet")
        found[last] = state.tally(DAY, [name]).rows, written
    return found


def test_of_two_drivers_the_later_one_counts_whoever_writes_last(location: str) -> None:
    zombie, successor = PartialState(Folder(location)), PartialState(Folder(location))
    zombie.load(0)
    batch(zombie, 0, 1)
    successor.load(1)
    batch(successor, 1, 5)
    zombie.load(1)
    batch(zombie, 1, 7)
    assert rows_of(location, 2) == {0: (1, b"1"), 1: (5, b"5")}


def test_a_driver_that_stood_still_takes_no_number_of_an_earlier_one(location: str) -> None:
    """Two others come while it takes its number, and the second has removed the number of the first."""
    others = [PartialState(Folder(location)) for _ in range(2)]

    class Slow(type(Folder(location))):  # type: ignore[misc]  # a directory has a class of its own
        def create(self, name: str, content: Any) -> Any:
            while others:
                others.pop().load(0)
            return super().create(name, content)

    earlier = PartialState(Folder(location))
    earlier.load(0)
    late = PartialState(Slow(location))
    late.load(0)
    assert (others, Folder(location).names()) == ([], ["driver-000004.json"])
    batch(late, 0, 1)
    assert rows_of(location, 1) == {0: (1, b"1")}


def test_of_what_an_act_has_kept_nothing_stays_that_has_no_rows(location: str) -> None:
    state = PartialState(Folder(location))
    state.load(0)
    kept, none = (state.write_part(0, cast(Any, Rows(number))) for number in (4, 0))
    state.carry(kept, {DAY: RowTally(4)})
    state.carry(none, {})
    state.publish(0)
    assert [name for name in Folder(location).names() if name.endswith("/")] == [f"{kept.rpartition('/')[2]}/"]


def test_what_a_driver_wrote_before_it_died_is_no_part_and_goes(location: str) -> None:
    killed = PartialState(Folder(location))
    killed.load(0)
    batch(killed, 0, 1)
    killed.load(1)
    left = killed.write_part(1, cast(Any, Rows(9)))  # it dies here
    state = PartialState(Folder(location))
    for epoch in (1, 2, 3):
        state.load(epoch)
        batch(state, epoch, 5)
    assert rows_of(location, 4) == {0: (1, b"1"), 1: (5, b"5"), 2: (5, b"5"), 3: (5, b"5")}
    names = Folder(location).names()
    assert f"{left.rpartition('/')[2]}/" not in names
    assert sum(name.startswith("version-") for name in names) == 2
    assert sum(name.startswith("driver-") for name in names) == 1


def test_a_batch_asks_little_of_its_store_and_lists_nothing(location: str) -> None:
    asked: Counter[str] = Counter()

    class Counted(type(Folder(location))):  # type: ignore[misc]  # a directory has a class of its own
        def __getattribute__(self, name: str) -> Any:
            if name in {"read", "put", "create", "names", "delete", "write", "remove"}:
                asked[name] += 1
            return super().__getattribute__(name)

    state = PartialState(Counted(location))
    for epoch in range(2):
        state.load(epoch)
        batch(state, epoch, 1)
    asked.clear()
    for epoch in range(2, 12):
        state.load(epoch)
        batch(state, epoch, 1)
    assert asked == {"write": 10, "put": 20, "delete": 10}, "a part, its index and a version; an old version goes"


def test_what_an_epoch_acts_on_is_what_the_first_driver_wrote_down(location: str) -> None:
    notes = Folder(location)
    assert notes.create("7.json", {"up_to": 12}) == {"up_to": 12}
    assert notes.create("7.json", {"up_to": 9}) == {"up_to": 12}, "a driver that stood still comes too late"
    assert notes.names() == ["7.json"]


def test_a_state_that_counted_no_acts_has_one_for_each_batch(tmp_path: Path) -> None:
    """Version 0.2 wrote none, and knew of the batch before its last one which rows were late."""
    state = PartialState(Folder(tmp_path))
    for epoch in range(3):
        state.load(epoch)
        batch(state, epoch, 1)
    newest = max(tmp_path.glob("version-*.json"))
    written = json.loads(newest.read_text())
    newest.write_text(json.dumps({name: each for name, each in written.items() if name not in ("acts", "settled")}))
    state = PartialState(Folder(tmp_path))
    state.load(3)
    assert (state.version, state.acts, state.settled) == (2, 3, 1)


def test_a_state_that_knew_drains_alone_names_each_end(tmp_path: Path) -> None:
    """Version 0.2 wrote whether a drain had closed what has ended."""
    state = PartialState(Folder(tmp_path))
    state.load(0)
    batch(state, 0, 1)
    (newest,) = tmp_path.glob("version-*.json")
    written = json.loads(newest.read_text())
    newest.write_text(
        json.dumps({**written, "ended": [[DAY, True, False], [Substream("b", "day", None), False, True]]})
    )
    state = PartialState(Folder(tmp_path))
    state.load(1)
    assert state.ended == {DAY: ("drained", False), Substream("b", "day", None): ("", True)}


@pytest.mark.parametrize(("batches", "found"), [(0, "missing"), (1, "that of batch 0"), (4, "that of batch 3")])
def test_a_state_of_another_batch_is_named(tmp_path: Path, batches: int, found: str) -> None:
    state = PartialState(Folder(tmp_path))
    for epoch in range(batches):
        state.load(epoch)
        batch(state, epoch, 1)
    state.load(2)
    with pytest.raises(TrackingError, match=f"is {found}, and Spark goes on with batch 2"):
        state.must_follow(2, Folder(tmp_path))


@pytest.mark.parametrize(("limit", "by_drain"), [("_DRAINED", True), ("_CUT", False)])
def test_of_what_ended_early_the_newest_are_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, by_drain: bool
) -> None:
    monkeypatch.setattr(f"spark_client.release.state.{limit}", 2)
    state = PartialState(Folder(tmp_path))
    for name, elements in [("a", 1), ("b", 2), ("a", 3), ("c", 4)]:
        state.note_cut(Substream("", name, None), elements, by_drain)
    assert [state.released_before(Substream("", name, None)) for name in "abc"] == [4, 0, 4]


def test_a_store_that_does_not_answer_is_named_with_what_to_do(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(location)
    state = PartialState(folder)
    state.load(0)
    batch(state, 0, 1)

    def nothing(_: str, __: bytes | Iterable[bytes]) -> None:
        raise NoAnswerError("connection reset")

    with monkeypatch.context() as away:
        away.setattr(folder.store, "put", nothing)
        state.load(1)
        with pytest.raises(TrackingError, match=re.escape(location) + r"/\S+_index.json: connection reset.*start the"):
            batch(state, 1, 5)
    state.load(1)  # the store is back, and the batch is tried again
    batch(state, 1, 6)
    assert rows_of(location, 2) == {0: (1, b"1"), 1: (6, b"6")}


def test_a_store_that_nobody_knows_is_refused_by_name() -> None:
    pytest.importorskip("obstore")
    with pytest.raises(UsageError, match=r"^nowhere://bucket/x: .*It takes a path, or a URL such as s3a://"):
        Folder("nowhere://bucket/x")
