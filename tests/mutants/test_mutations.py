"""Mutants, and that each is a program: one that does not parse would be killed for nothing."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.mutants.__main__ import AREAS, EQUAL, ROOT, sources
from tests.mutants.mutations import mutants

SOURCE = '''
LIMIT = 3


class Account:
    def take(self, n: int, limit: int = 5) -> bool:
        """At most 7."""
        if (self.held + n) > limit:
            raise ValueError(f"{limit + 1}")
        self.held = max(self.held, 0) + n
        self.log.append(n)
        return not (n and self.held is None)

    async def give(self, n: int) -> list[int]:
        found: list[int | None] = []
        self.held -= n
        await self.log.sync()
        return list(zip(found, found, strict=True))
'''


def test_each_operator_constant_condition_and_effect_is_turned_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    found = {(mutant.before, mutant.after) for mutant in mutants(tmp_path, "a.py")}
    assert found == {
        ("(self.held + n) > limit", "False"),  # a guard
        ("(self.held + n) > limit", "(self.held + n) >= limit"),
        ("self.held + n", "self.held - n"),
        ("self.held = max(self.held, 0) + n", "pass"),
        ("max(self.held, 0) + n", "max(self.held, 0) - n"),
        ("max", "min"),
        ("0", "1"),
        ("self.log.append(n)", "pass"),
        ("not (n and self.held is None)", "(n and self.held is None)"),
        ("n and self.held is None", "((n) or (self.held is None))"),
        ("self.held is None", "self.held is not None"),
        ("self.held -= n", "pass"),
        ("self.held -= n", "self.held += n"),
        ("await self.log.sync()", "pass"),
    }


@pytest.mark.parametrize(
    "area", ["client", *(pytest.param(area, marks=pytest.mark.thorough) for area in AREAS if area != "client")]
)
def test_a_mutant_parses_and_is_another_program(area: str) -> None:
    for path in sources(area):
        source = (ROOT / path).read_bytes()
        same = ast.dump(ast.parse(source))
        for mutant in mutants(ROOT, path)[::20]:
            assert ast.dump(ast.parse(mutant.applied(source))) != same, mutant


def test_what_is_listed_as_equal_is_there_once_and_says_why() -> None:
    listed = [tuple(each) for each in json.loads(EQUAL.read_text())]
    assert all(len(each) == 5 and each[4].endswith(".") for each in listed)
    keys = [each[:4] for each in listed]
    assert len(set(keys)) == len(keys)
    files = sorted({file for file, *_ in keys})
    known = {mutant.key for file in files for mutant in mutants(ROOT, file)}
    assert [key for key in keys if key not in known] == []


def test_no_two_mutants_of_a_line_are_mistaken_for_one_another(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(a):\n    return a[0], a[0], a[0] + 0\n")
    found = mutants(tmp_path, "a.py")
    assert len({mutant.key for mutant in found}) == len(found) == 5
