"""The rooms of both packages: each knows those below it, and no others. Nothing is imported here, only read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "spark_client"
_LONGEST = 400  #: lines of a module
_LARGEST = 350  #: lines of a class

_GROUND = {"errors", "advice"}  #: modules of no room: every room may know what is raised, and with which advice
#: What each room may import, itself and the ground apart.
ROOMS = {
    "spark_internals": set[str](),
    "storage": set[str](),
    "plan": {"spark_internals"},
    "counting": {"plan", "storage", "spark_internals"},
    "channels": {"plan", "storage", "counting", "spark_internals"},
    "sinks": {"plan", "storage"},
    "datasource": {"plan", "spark_internals"},
    "release": {"plan", "counting", "storage", "spark_internals"},
    "runtime": {"plan", "release", "counting", "storage", "spark_internals"},
}
ROOMS["api"] = {*ROOMS}

#: The rooms of the tracker that programs are made of, likewise.
TRACKER_ROOMS = {
    "contract": set[str](),
    "wire": {"contract"},
    "core": {"contract"},
    "journal": set[str](),
    "client": {"contract", "wire"},
    "sharded": {"client", "contract"},
    "relay": {"client", "contract", "wire"},
    "server": {"contract", "core", "journal", "wire"},
}
_TRACKER_GROUND = {"python310"}


def modules_of(package: str) -> dict[str, Path]:
    """A package's modules and their files."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / package).rglob("*.py"))
    }


MODULES = modules_of(_PACKAGE)
_ANY = {**MODULES, **modules_of("tracker")}


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that some code imports anywhere; of `from a import b` that is `a.b`, if there is one, or `a`.

    What is imported relatively is left out: it is of the same room.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for each in node.names:
                full = f"{node.module}.{each.name}"
                yield full if full in _ANY else str(node.module)


def room_of(module: str) -> str:
    """The room of a module, or the module's own name if it is in none."""
    return module.split(".")[1] if "." in module else module


TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
IMPORTS = {module: {name for name in imported(tree) if name in MODULES} for module, tree in TREES.items()}
PARTS = [module for module in MODULES if room_of(module) in ROOMS]


def imported_rooms(room: str) -> set[str]:
    """The other rooms of the tracker that a room's modules name in imports, but not for type checkers alone."""
    found: set[str] = set()
    for path in (ROOT / "tracker" / room).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
        found.update(name for name in imported(tree) if name.startswith("tracker."))
    return {room_of(name) for name in found} - {room}


@pytest.mark.parametrize("room", TRACKER_ROOMS)
def test_a_room_of_the_tracker_knows_only_rooms_below_it(room: str) -> None:
    assert imported_rooms(room) - _TRACKER_GROUND <= TRACKER_ROOMS[room]


@pytest.mark.parametrize("module", PARTS)
def test_a_room_knows_only_rooms_below_it(module: str) -> None:
    own = room_of(module)
    known = {room_of(each) for each in IMPORTS[module]} - {own} - _GROUND
    assert known <= ROOMS[own], f"{module} imports from {known - ROOMS[own]}, and {own} must not know of it"


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_absolute(module: str) -> None:
    assert not [node for node in ast.walk(TREES[module]) if isinstance(node, ast.ImportFrom) and node.level]


def test_no_modules_import_one_another() -> None:
    # A package's own `__init__` is left out: that of spark_client collects what users import.
    list(TopologicalSorter({module: names - {_PACKAGE} for module, names in IMPORTS.items()}).static_order())


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_the_package_is_imported_in_a_function(module: str) -> None:
    functions = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    local = {name for function in functions for name in imported(function) if name.startswith(_PACKAGE)}
    assert not local, f"{module} hides imports of {local} in functions: move what both sides need below them"


@pytest.mark.parametrize("module", [each for each in MODULES if room_of(each) != "spark_internals"])
def test_only_one_room_uses_what_spark_keeps_to_itself(module: str) -> None:
    private = [name for name in imported(TREES[module]) if name.startswith(("py4j", "pyspark.sql.pandas"))]
    for node in ast.walk(TREES[module]):
        own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        if isinstance(node, ast.Attribute) and node.attr.startswith(("_j", "_sc", "_gateway")) and not own:
            private.append(node.attr)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "py4j" in node.value:
            private.append(node.value)
    assert not private, f"{module} uses {private}: give spark_internals a function for it"


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_classes_are_short(module: str) -> None:
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert lines <= _LONGEST, f"{module} has {lines} lines: take apart what it does"
    classes = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.ClassDef)]
    long = {each.name: (each.end_lineno or 0) - each.lineno + 1 for each in classes}
    assert max(long.values(), default=0) <= _LARGEST, f"{module} has a class that does too much: {long}"
