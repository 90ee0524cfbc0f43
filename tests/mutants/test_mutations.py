"""What counts as a mutant, and that each is a program: what does not parse would be killed for nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import AREAS, ROOT
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
    }


@pytest.mark.parametrize("area", AREAS)
def test_a_mutant_parses_and_is_another_program(area: str) -> None:
    for path in sorted((ROOT / "tracker" / area).rglob("*.py")):
        source = path.read_bytes()
        same = ast.dump(ast.parse(source))
        for mutant in mutants(ROOT, str(path.relative_to(ROOT)))[::20]:
            assert ast.dump(ast.parse(mutant.applied(source))) != same, mutant
