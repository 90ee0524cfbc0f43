"""The environments in which other releases of Spark are tried, and the table of what was seen there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tomllib

from scripts import test_matrix

PROJECT = tomllib.loads((test_matrix.ROOT / "pyproject.toml").read_text())["project"]


def test_everything_that_is_installed_for_a_release_of_spark_comes_from_elsewhere() -> None:
    assert not [each for each in test_matrix.required() if each.startswith(PROJECT["name"])]


def test_an_extra_that_another_one_includes_is_installed_too() -> None:
    included = {
        extra
        for outer in test_matrix.EXTRAS
        for each in PROJECT["optional-dependencies"][outer]
        for extra in re.findall(rf"{PROJECT['name']}\[(\w+)\]", each)
    }
    assert included <= set(test_matrix.EXTRAS)


def test_the_page_shows_what_the_last_run_has_seen() -> None:
    shown = test_matrix.PAGE.read_text().partition(test_matrix.BEGIN)[2].partition(test_matrix.END)[0]
    assert shown.strip() == test_matrix.table().strip()


def test_the_tests_of_each_feature_are_there() -> None:
    assert not [path for each in test_matrix.FEATURES for path in each.tests if not (test_matrix.ROOT / path).exists()]


RECORD = """<testsuites><testsuite>
<testcase classname="tests.spark.test_release" name="a"/>
<testcase classname="tests.spark.test_release.TestX" name="b"><failure/></testcase>
<testcase classname="tests.spark.test_released" name="c"/>
<testcase classname="tests.connect.test_connect" name="d"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_run_replaces_what_it_has_run_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_matrix, "SEEN", tmp_path / "seen.json")
    before = {"passed": 9, "failed": 0, "skipped": 0, "on": "2026-01-01"}
    test_matrix.SEEN.write_text(json.dumps({"4.1.4": {"releases": before, "channels": before}}))
    (tmp_path / "tests.xml").write_text(RECORD)
    test_matrix.note("4.1.4", tmp_path / "tests.xml")
    seen = json.loads(test_matrix.SEEN.read_text())["4.1.4"]
    shown = {each.name: test_matrix.cell(each, "4.1.4", seen) for each in test_matrix.FEATURES}
    assert shown["releases"] == "1 passed, 1 failed"
    assert shown["releases over Spark Connect"] == "1 skipped"
    assert shown["channels"] == "9 passed"
    assert shown["keyed state"] == "not run"
    assert test_matrix.cell(test_matrix.FEATURES[5], "3.5.9", {}) == "–"
