"""The comparison finds what it is there to find; a check that cannot fail would be worth nothing."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from examples.flights import replay, truth


@pytest.fixture(scope="module")
def windows() -> pd.DataFrame:
    return truth.daily(replay.departures("2013-02-07", 3), replay.planes())


def name_of(window: Any) -> tuple[str, str, str]:
    return window["origin"], f"{window['day']:%Y-%m-%d}", window["carrier"]


def test_a_complete_table_is_exact_in_any_order(windows: pd.DataFrame) -> None:
    assert truth.compare(windows, windows.sample(frac=1, random_state=1)).exact


def test_windows_without_a_flight_that_left_are_compared_too(windows: pd.DataFrame) -> None:
    assert windows["mean_delay"].isna().any()


def test_a_missing_window_is_found(windows: pd.DataFrame) -> None:
    found = truth.compare(windows, windows.drop(index=7))
    assert not found.exact
    assert found.missing == [name_of(windows.loc[7])]
    assert "1 missing" in str(found)


def test_a_doubled_window_is_found(windows: pd.DataFrame) -> None:
    found = truth.compare(windows, pd.concat([windows, windows.loc[[7]]]))
    assert not found.exact
    assert found.doubled == [name_of(windows.loc[7])]
    assert not found.changed


@pytest.mark.parametrize("value", truth.VALUES)
def test_a_changed_value_is_found(windows: pd.DataFrame, value: str) -> None:
    row = windows[value].notna().idxmax()
    changed: Any = windows.copy()
    changed.loc[row, value] += 1
    found = truth.compare(windows, changed)
    assert not found.exact
    assert found.changed == [name_of(windows.loc[row])]


@pytest.mark.parametrize("value", truth.VALUES)
def test_a_value_that_became_null_is_found(windows: pd.DataFrame, value: str) -> None:
    row = windows[value].notna().idxmax()
    changed = windows.copy()
    changed.loc[row, value] = None
    assert truth.compare(windows, changed).changed == [name_of(windows.loc[row])]


def test_a_null_that_became_a_value_is_found(windows: pd.DataFrame) -> None:
    row = windows["mean_delay"].isna().idxmax()
    changed = windows.copy()
    changed.loc[row, "mean_delay"] = 0.0
    assert truth.compare(windows, changed).changed == [name_of(windows.loc[row])]


def test_the_second_copy_of_a_window_is_compared_as_well(windows: pd.DataFrame) -> None:
    second = windows.loc[[7]].assign(flights=99)
    found = truth.compare(windows, pd.concat([windows, second]))
    assert found.doubled == found.changed == [name_of(windows.loc[7])]


def test_a_window_that_should_not_be_there_is_found(windows: pd.DataFrame) -> None:
    found = truth.compare(windows.drop(index=7), windows)
    assert not found.exact
    assert found.unexpected == [name_of(windows.loc[7])]


def test_an_empty_table_is_not_exact(windows: pd.DataFrame) -> None:
    assert len(truth.compare(windows, windows.head(0)).missing) == len(windows)
    assert not truth.compare(windows.head(0), windows.head(0)).exact
