"""Valid scenarios, and the refusals of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracker.load.scenario import ScenarioError, find, read, shipped


def test_what_is_shipped_can_be_run() -> None:
    assert shipped().keys() == {"smoke", "steady", "churn", "soak", "skew", "failures"}
    for name in shipped():
        assert read(find(name)).description


def test_a_file_says_the_same_as_what_is_shipped(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(shipped()["failures"])
    scenario = read(find(str(file)))
    assert scenario == read(find("failures"))
    assert scenario.failures.kill_server_every == 15


def test_a_scenario_survives_the_way_to_another_process() -> None:
    scenario = read(find("failures"))
    assert read(scenario.as_dict()) == scenario


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"ratee": 5}, "there is no 'ratee'; did you mean 'rate'?"),
        ({"xyz": 5}, "there is no 'xyz'; there are description, rate,"),
        ({"failures": {"repeats": 5}}, "there is no 'failures.repeats'; did you mean 'failures.repeat'?"),
        ({"failures": 0.5}, r"failures is a table: write \[failures\] and its settings below it, not 0.5"),
        ({"rate": 0}, "rate must be a number from 0.1 to 100,000, not 0"),
        ({"rate": "fast"}, "rate must be a number from 0.1 to 100,000, not 'fast'"),
        ({"segments": 1.5}, "segments must be a whole number from 1 to 20, not 1.5"),
        ({"producers": True}, "producers must be a whole number from 1 to 1,000, not True"),
        ({"arrival": "often"}, "arrival must be one of 'poisson', 'constant', not 'often'"),
        ({"description": 7}, "description must be a text, not 7"),
        ({"failures": {"repeat": 2}}, "failures.repeat must be a number from 0 to 1, not 2"),
        ({"processes": 9}, "9 processes for 8 producers: give each process one or more"),
        ({"hop": 5}, r"a lifetime of 5 s is too short .* make lifetime at least 20"),
        ({"open": 1_000_000}, "1,000,000 open substreams for 8 producers: .* so have 10 producers or more"),
        ({"rate": 100_000, "duration": 3600}, "at most 20,000,000, so lower rate or duration"),
        ({"open": 800_000, "duration": 3600}, "at most 50,000,000, so lower open, segments or duration, or lengthen"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_change(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read(said)


def test_a_file_that_is_not_there_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file or directory; name a TOML file, or one of the shipped"):
        find("smoek")
    file = tmp_path / "own.toml"
    file.write_text("rate 100")
    with pytest.raises(ScenarioError, match=r"own\.toml is not TOML: .*line 1"):
        find(str(file))
