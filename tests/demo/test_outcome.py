"""The output, pictures and files of the demonstrations for a released table, and their exit status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from examples.flights import delays, demo, picture, program, replay, truth
from examples.flights.outcome import Outcome, judge

DAYS, SPAN = 3, 5
Judge = Callable[[pd.DataFrame], Outcome]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return replay.departures("2013-02-07", DAYS)


@pytest.fixture(scope="module")
def windows(flights: pd.DataFrame) -> pd.DataFrame:
    return truth.daily(flights, replay.planes())


@pytest.fixture(scope="module")
def files(flights: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> list[replay.File]:
    return replay.Replay(flights, pd.Timedelta(hours=SPAN), tmp_path_factory.mktemp("replay")).files


@pytest.fixture(scope="module")
def exact(flights: pd.DataFrame, windows: pd.DataFrame, files: list[replay.File]) -> pd.DataFrame:
    """Return every window, released by the file with the last flight of its airport's day."""
    released = windows.merge(truth.complete(flights), on=["origin", "day"])
    released["file"] = [next(file.number for file in files if file.until > at) for at in released["complete"]]
    return released.drop(columns="complete")


@pytest.fixture
def judged(flights: pd.DataFrame, windows: pd.DataFrame, files: list[replay.File]) -> Judge:
    def hold_to_truth(released: pd.DataFrame) -> Outcome:
        return judge("some way", released, windows, truth.complete(flights), files)

    return hold_to_truth


def test_windows_released_with_their_last_flight_are_released_at_once(exact: pd.DataFrame, judged: Judge) -> None:
    outcome = judged(exact)
    assert outcome.at_once == 1
    assert outcome.windows["hours"].between(0, SPAN).all()
    assert (outcome.released, outcome.wrong, outcome.never, outcome.lost) == (len(exact), 0, 0, 0)


def test_a_window_kept_longer_is_not_released_at_once(exact: pd.DataFrame, judged: Judge) -> None:
    later: Any = exact.copy()
    later.loc[7, "file"] += 2
    outcome = judged(later)
    assert outcome.windows.loc[7, "files"] == 2
    assert outcome.windows.loc[7, "hours"] == judged(exact).windows.loc[7, "hours"] + 2 * SPAN  # type: ignore[operator]
    assert outcome.at_once < 1


def test_lost_rows_make_a_window_wrong_and_are_counted(exact: pd.DataFrame, judged: Judge) -> None:
    poorer: Any = exact.copy()
    poorer.loc[7, "flights"] -= 1
    outcome = judged(poorer)
    assert (outcome.wrong, outcome.lost) == (1, 1)
    assert outcome.windows.loc[7, "wrong"]


def test_a_window_that_never_came_out_is_counted(exact: pd.DataFrame, judged: Judge) -> None:
    outcome = judged(exact.drop(index=7))
    assert (outcome.never, outcome.released) == (1, len(exact) - 1)


@pytest.mark.parametrize("fault", ["none", "missing", "doubled", "changed", "killed too early", "killed too late"])
def test_the_exit_status_tells_whether_the_table_is_exact(
    exact: pd.DataFrame,
    judged: Judge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    changed: Any = exact.copy()
    changed.loc[7, "worst_delay"] += 1
    released = {
        "missing": exact.drop(index=7),
        "doubled": pd.concat([exact, exact.loc[[7]]]),
        "changed": changed,
    }.get(fault, exact)
    before = {"killed too early": 0, "killed too late": len(exact)}.get(fault, 40)
    result = demo.Result(judged(released), [judged(exact), judged(exact.iloc[:50])], before)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the tests' own process goes on after it
    kept = tmp_path / "artifacts"
    options = demo.Options(days=DAYS, span=SPAN)
    status = program.carry_out(lambda *_: result, kept, lambda result: demo.conclude(result, options))
    assert status == (0 if fault == "none" else 1)
    assert "some way" in (kept / "outcome.txt").read_text()


def test_what_a_user_can_mend_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(*_: object) -> None:
        raise replay.DataMissingError("pip install it")

    assert program.carry_out(run, tmp_path / "artifacts", lambda _: ("", True)) == 2
    assert "demo: pip install it" in capsys.readouterr().err


def test_the_delays_are_printed_drawn_and_kept_window_by_window(
    exact: pd.DataFrame,
    judged: Judge,
    tmp_path: Path,
) -> None:
    later = exact.assign(file=(exact["file"] + 2).clip(upper=exact["file"].max()))
    result = demo.Result(judged(exact), [judged(later), judged(exact.iloc[:50])], before=40)
    text, is_exact = delays.conclude(result, demo.Options(days=DAYS, span=SPAN), tmp_path)
    assert is_exact
    assert (tmp_path / "release-delay.png").read_bytes().startswith(b"\x89PNG")
    kept = pd.read_csv(tmp_path / "windows.csv")
    assert len(kept) == 3 * len(exact)
    median = judged(later).windows["hours"].median()
    assert f" {median:.1f} h " in text


def test_all_that_a_picture_shows_lies_inside_its_frame(
    exact: pd.DataFrame,
    judged: Judge,
) -> None:
    """Titles and labels are measured as they are drawn, with names and counts as long as they come."""
    poorer = exact.assign(flights=exact["flights"] - 1)
    ways = [replace(judged(poorer.iloc[:50]), name=f"watermark, {hours} hours") for hours in (1, 24)]
    figure = picture.figure([judged(exact), *ways])
    FigureCanvasAgg(figure).draw()  # the layout is made while it is drawn
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= drawn.x0 < drawn.x1 <= width
    assert 0 <= drawn.y0 < drawn.y1 <= height
