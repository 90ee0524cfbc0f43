"""Promises of the replay: every row once, in the order in which it became known, under a name for ever."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from examples.flights import replay


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return replay.departures("2013-02-07", 7)  # a snow storm: the most cancelled flights of the year


@pytest.fixture
def cut(flights: pd.DataFrame, tmp_path: Path) -> replay.Replay:
    return replay.Replay(flights, pd.Timedelta(hours=5), tmp_path)


def test_every_row_has_a_name_of_its_own(flights: pd.DataFrame) -> None:
    assert flights["row_id"].is_unique


def test_rows_come_as_they_became_known_hours_out_of_schedule_order(flights: pd.DataFrame) -> None:
    assert flights["known_at"].is_monotonic_increasing
    behind = flights["sched_dep"].cummax() - flights["sched_dep"]
    assert behind.max() > pd.Timedelta(hours=3)


def test_a_flight_becomes_known_when_it_leaves_or_should_have(
    flights: pd.DataFrame,
) -> None:
    delay = flights["known_at"] - flights["sched_dep"]
    cancelled = flights["dep_delay"].isna()
    assert cancelled.any()
    assert (delay[cancelled] == pd.Timedelta(0)).all()
    assert (delay[~cancelled] == pd.to_timedelta(flights["dep_delay"][~cancelled].astype(int), unit="min")).all()


def test_only_the_last_row_of_an_airports_day_is_marked(flights: pd.DataFrame) -> None:
    for _, rows in flights.groupby(["origin", "day"]):
        assert rows["is_last"].sum() == 1
        assert rows["is_last"].iloc[-1]


def test_the_files_hold_every_row_once_and_none_before_its_time(flights: pd.DataFrame, cut: replay.Replay) -> None:
    seen = []
    before = flights["known_at"].min()
    for file in cut.publish():
        published = sorted(cut.published.iterdir())
        assert len(published) == file.number + 1
        rows = pd.read_parquet(published[-1])
        assert len(rows) == file.rows
        assert (rows["known_at"] >= before).all()
        assert (rows["known_at"] < file.until).all()
        before = file.until - pd.Timedelta(hours=5)
        seen += list(rows["row_id"])
    assert seen == list(flights["row_id"])


@pytest.mark.thorough
def test_the_whole_year_is_there() -> None:
    assert len(replay.departures()) == 336_776
