"""Cases are objects: what is of one kind is known in its own file, and nobody else asks which kind it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.trees import parsed

ROOT = Path(__file__).resolve().parents[2] / "spark_client"
_ROOMS = ("destinations", "fronts", "windows")  #: of kinds
#: Modules outside a room that name a kind of it: they export it, make one, or are given one.
_NAMING = {
    "fronts": {"__init__", "debezium", "api/other_jobs"},
    "windows": {"__init__"},
}
#: The kinds of each room that are declared with its protocol.
_BESIDE = {"destinations": {"SeveralDestinations"}, "fronts": {"ManualFront"}}
#: The modules of each room that all others may name: they have its protocol, and what kinds are made of.
_PROTOCOL = {
    "destinations": {"destination"},
    "fronts": {"front"},
    "windows": {"belonging", "declaration", "eventtime", "lengths", "substreams"},
}


def kinds(room: str) -> set[str]:
    """Return the classes of a room, but for those of its protocol."""
    own = (path for path in (ROOT / room).glob("*.py") if path.stem not in _PROTOCOL[room])
    trees = (parsed(path.read_text(encoding="utf-8")) for path in own)
    found = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return found | _BESIDE.get(room, set())


def questions(code: str, names: set[str]) -> Iterator[str]:
    """Yield where code asks whether a value is of one of these classes."""
    for node in ast.walk(parsed(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked: ast.AST = node.args[1]
        elif isinstance(node, ast.MatchClass):
            asked = node.cls
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            asked = node
        else:
            continue
        named = (ast.unparse(each) for each in ast.walk(asked))
        if {name.rpartition(".")[2] for name in named if not name.startswith("pa.")} & names:  # pa: Arrow has a Table
            yield ast.unparse(node)


def outside(room: str) -> dict[str, str]:
    """Return the code of the modules that are not in a room."""
    return {
        path.relative_to(ROOT).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for path in ROOT.rglob("*.py")
        if path.parent != ROOT / room
    }


@pytest.mark.parametrize("room", _ROOMS)
def test_nobody_outside_a_room_asks_for_the_kind(room: str) -> None:
    names = kinds(room)
    found = {module: [*questions(code, names)] for module, code in outside(room).items()}
    assert not {module: asked for module, asked in found.items() if asked}


@pytest.mark.parametrize("room", _NAMING)
def test_few_modules_outside_a_room_name_its_kinds(room: str) -> None:
    modules = "|".join(path.stem for path in (ROOT / room).glob("*.py") if path.stem not in _PROTOCOL[room])
    naming = re.compile(rf"from spark_client\.{room}(\.({modules})\b| import .*\b({modules})\b)")
    assert {module for module, code in outside(room).items() if naming.search(code)} <= _NAMING[room]


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(front, Marks)",
        "isinstance(front, Frontier | fronts.Marks)",
        "issubclass(kind, (Frontier, Marks))",
        "type(front) is Marks",
        "match front:\n    case Marks():\n        pass",
    ],
)
def test_a_question_is_found(code: str) -> None:
    assert [*questions(code, {"Marks"})]


def test_one_who_makes_a_kind_does_not_ask() -> None:
    assert not [*questions("front = Marks('last')\nisinstance(front, Front)", {"Marks"})]
