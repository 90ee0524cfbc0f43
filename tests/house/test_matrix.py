"""The environments in which other releases of Spark are tried have what the package asks for."""

from __future__ import annotations

import re

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
