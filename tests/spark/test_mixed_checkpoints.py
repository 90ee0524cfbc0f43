"""A checkpoint is whole or refused: pieces that are gone, or from another time, give no result of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.client.processes import Server
from tests.spark.feed import Feed, row
from tests.spark.test_away import Job

pytestmark = pytest.mark.spark

Spoil = Callable[[Path, list[Path]], None]


def _without_state(checkpoint: Path, copies: list[Path]) -> None:
    shutil.rmtree(checkpoint / "tracker" / "state")


def _without_the_newest_version(checkpoint: Path, copies: list[Path]) -> None:
    max((checkpoint / "tracker").rglob("version-*.json")).unlink()


def _without_what_the_batches_acted_on(checkpoint: Path, copies: list[Path]) -> None:
    shutil.rmtree(checkpoint / "tracker" / "events")


def _acting_on_what_earlier_batches_did(checkpoint: Path, copies: list[Path]) -> None:
    shutil.rmtree(checkpoint / "tracker" / "events")
    shutil.copytree(copies[-2] / "tracker" / "events", checkpoint / "tracker" / "events")


def _of_earlier_batches(batches: int) -> Spoil:
    def spoil(checkpoint: Path, copies: list[Path]) -> None:
        shutil.rmtree(checkpoint / "tracker")
        shutil.copytree(copies[-1 - batches] / "tracker", checkpoint / "tracker")

    return spoil


def _with_sparks_part_of_earlier_batches(checkpoint: Path, copies: list[Path]) -> None:
    tracker = copies[-1] / "tracker"
    shutil.rmtree(checkpoint)
    shutil.copytree(copies[0], checkpoint)
    shutil.rmtree(checkpoint / "tracker")
    shutil.copytree(tracker, checkpoint / "tracker")


def test_a_checkpoint_with_a_part_that_is_gone_or_of_another_time_is_refused_and_whole_it_goes_on(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    kept = Job(spark, tracker, job, feed, tmp_path)
    copies: list[Path] = []
    for number in range(4):
        feed.put(row(number, number))
        kept.run()
        copies.append(tmp_path / f"copy{number}")
        shutil.copytree(kept.checkpoint, copies[-1])
    feed.put(row(4, 4, last=True))
    for spoil in (
        _without_state,
        _without_the_newest_version,
        _without_what_the_batches_acted_on,
        _acting_on_what_earlier_batches_did,
        _of_earlier_batches(1),
        _of_earlier_batches(2),
        _with_sparks_part_of_earlier_batches,
    ):
        spoil(kept.checkpoint, copies)
        assert "Put back the whole checkpoint" in kept.refusal()
        assert not kept.out.exists() or kept.results() == []
        shutil.rmtree(kept.checkpoint)
        shutil.copytree(copies[-1], kept.checkpoint)
    kept.run()
    assert kept.results() == [("a", 0, 5)]
