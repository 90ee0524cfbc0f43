"""First words of docstrings: a function's is a verb in the imperative, so that a reader sees what it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.trees import parsed

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["tracker", "spark_client", "examples", "benchmarks", "scripts", "experiments", "integrations", "tests"]
#: First words of a noun clause, or of a verb in the third person.
_BANNED = re.compile(
    "What|Whether|Who|Whoever|Which|How|Where|Why|Returns|Yields|Makes|Writes|Reads|Removes|Starts|Stops|Ends|Runs|Waits"
    "|Gives|Takes|Puts|Lets|Sends|Adds|Keeps|Opens|Closes|Moves|Holds|Builds|Checks|Measures|Prints|Tells"
)


def beginnings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each function's docstring; a property describes a value."""
    for node in ast.walk(parsed(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and not any("property" in ast.unparse(each) for each in node.decorator_list):
                yield node.lineno, text.split()[0].rstrip(",:")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_docstring_begins_with_a_verb(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "gen" not in path.parts
        for line, word in beginnings(path)
        if _BANNED.fullmatch(word)
    ]
    assert not found, "\n".join(found)


def test_a_noun_clause_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('def f():\n    """Whether it works."""\n\n\n@property\ndef g():\n    """Whether it works."""\n')
    assert [*beginnings(module)] == [(1, "Whether")]
