"""The state of a release, and a driver that stood still and does not know that another has taken over."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_client.release.parts import RowTally
from spark_client.release.state import PartialState
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.windows.substreams import Substream

pytestmark = pytest.mark.spark


def test_a_fenced_driver_leaves_its_successors_state_alone(spark: SparkSession, tmp_path: Path) -> None:
    substream = Substream("a", "w", None)
    zombie, successor = PartialState(Folder(tmp_path)), PartialState(Folder(tmp_path))
    zombie.load(1)
    successor.load(1)
    successor.add(successor.write_part(1, spark.range(5)), 1, {substream: RowTally(5)}, set())
    successor.publish(1)
    with pytest.raises(Exception, match="fenced"):
        zombie.write_part(1, spark.range(5).selectExpr("CAST(raise_error('fenced') AS bigint) AS id"))
    another = PartialState(Folder(tmp_path))
    another.load(2)
    ((_, part),) = another.of(substream)
    ((paths, _),) = another.selections({substream: [part]})
    assert another.tally(substream, [part]).rows == spark.read.parquet(*paths).count() == 5


def test_what_a_driver_publishes_beside_its_successor_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    substream = Substream("a", "w", None)
    zombie, successor = PartialState(Folder(tmp_path)), PartialState(Folder(tmp_path))
    zombie.load(1)
    successor.load(1)
    for driver, rows in ((successor, 5), (zombie, 7)):  # the zombie goes on last
        driver.add(driver.write_part(1, spark.range(rows)), 1, {substream: RowTally(rows)}, set())
        driver.publish(1)
    another = PartialState(Folder(tmp_path))
    another.load(2)
    ((_, part),) = another.of(substream)
    assert another.tally(substream, [part]).rows == 5
    another.publish(2)
    another.drop([substream])
    for epoch in (3, 4):  # what both have left behind goes
        another.publish(epoch)
    assert [path.name for path in tmp_path.glob("epoch-*")] == []


def test_a_substream_has_rows_if_any_of_its_parts_has(spark: SparkSession, tmp_path: Path) -> None:
    both, neither, other = (Substream(scope, "w", None) for scope in ("both", "neither", "other"))

    def has_rows(state: PartialState) -> dict[str, bool]:
        return {each.scope: state.has_rows(each, [name for _, name in state.of(each)]) for each in state.substreams}

    state = PartialState(Folder(tmp_path), compact_from=3)
    state.load(0)
    for epoch, bare in enumerate([{both, neither}, {neither}, {both}]):
        rows = dict.fromkeys([both, neither] if epoch < 2 else [both, other], RowTally(1))
        state.add(state.write_part(epoch, spark.range(2 - len(bare))), epoch, rows, set(), bare=bare)
        state.publish(epoch)
    known = {"both": True, "neither": False, "other": True}
    assert has_rows(state) == known
    state.begin(0, Place.of([1], ["log"]), 2)
    state.compact(3, lambda found: spark.range(sum(len(each.substreams) for each in found)))
    state.publish(3)
    again = PartialState(Folder(tmp_path))
    again.load(4)
    assert has_rows(state) == has_rows(again) == known
    assert len(list(tmp_path.glob("merged-*"))) == 1


def test_rows_of_the_current_batch_stay_when_earlier_ones_are_released(spark: SparkSession, tmp_path: Path) -> None:
    """The tracker may have forgotten the end meanwhile, and opened the substream again with them."""
    substream = Substream("", "x", None)
    state = PartialState(Folder(tmp_path))
    for epoch in (0, 1):
        state.load(epoch)
        state.add(state.write_part(epoch, spark.range(1)), epoch, {substream: RowTally(1)}, set())
        if epoch == 0:
            state.publish(epoch)
    state.drop([substream], up_to=state.epoch)
    state.publish(1)
    again = PartialState(Folder(tmp_path))
    again.load(2)
    assert [epoch for epoch, _ in again.of(substream)] == [1]
