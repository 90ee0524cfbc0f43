"""The dry run over the flights: its figures are those that pandas gives, and the page is written."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from examples.flights import dry_run, replay


def test_a_dry_run_counts_flights_after_the_release_of_their_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days = 21
    assert dry_run.main(tmp_path, days) == 0
    printed = capsys.readouterr().out
    [line] = [line.split() for line in printed.splitlines() if re.match(r"wait=1h +\d", line)]
    flights = replay.departures(days=days)
    late = flights[flights["known_at"] > flights["day"] + pd.Timedelta(hours=25)]
    assert [*map(int, line[1:5])] == [3 * days, len(late.groupby(["origin", "day"])), 0, len(late)]
    assert len(late) > 5
    assert "Take counts, if the source knows" in printed
    assert "watermark=1h" in (tmp_path / "report.html").read_text()
