"""The rooms of both packages: each knows those below it, and no others. Nothing is imported here, only read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.house.trees import parsed

ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "spark_client"
_LONGEST = 700  #: lines of a module
_LARGEST = 450  #: lines of a class
_LONGEST_BODY = 80  #: lines of a function, without its signature and docstring
_MOST = 7  #: parameters of a constructor
#: Public classes, whose arguments users give by name.
_READ_BY_NAME = {"BoundedOutOfOrderness", "Manifests", "Producer", "SuccessMarkers", "Tracking"}

_GROUND = {"errors", "advice", "columns"}  #: modules of no room, which every room may know
#: Rooms that each room may import, itself and the ground apart.
ROOMS = {
    "storage": set[str](),
    "spark_internals": {"storage"},
    "trackers": {"storage"},
    "windows": {"spark_internals"},
    "aggregates": {"spark_internals"},
    "fronts": {"windows", "storage", "spark_internals"},
    "plan": {"windows", "fronts", "aggregates", "spark_internals"},
    "counting": {"windows", "fronts", "plan", "storage", "trackers", "spark_internals"},
    "destinations": {"windows", "fronts", "plan", "storage", "counting", "spark_internals"},
    "datasource": {"windows", "plan", "storage", "trackers", "spark_internals"},
    "release": {
        "windows",
        "fronts",
        "aggregates",
        "plan",
        "counting",
        "destinations",
        "storage",
        "trackers",
        "spark_internals",
    },
    "runtime": {
        "windows",
        "fronts",
        "plan",
        "release",
        "counting",
        "destinations",
        "storage",
        "trackers",
        "spark_internals",
    },
}
ROOMS["api"] = {*ROOMS}
#: Beside the jobs of `api`: it reads what they leave, and what came before them.
ROOMS["shadow"] = {"release", "storage", "spark_internals", "windows"}

#: The rooms of the tracker that programs are made of, likewise.
TRACKER_ROOMS = {
    "contract": set[str](),
    "wire": {"contract"},
    "core": {"contract"},
    "store": set[str](),
    "journal": {"store"},
    "backup": {"store"},
    "client": {"contract", "wire"},
    "sharded": {"client", "contract"},
    "kafka": {"client"},
    "security": {"contract", "web", "wire"},
    "web": {"wire"},
    "relay": {"client", "contract", "security", "web", "wire"},
    "replay": {"contract"},
    "page": {"client", "contract"},
    "server": {"backup", "contract", "core", "journal", "page", "security", "web", "wire"},
    "embedded": {"client", "journal", "server"},
    "dev": {"client", "server"},
    "notify": {"client", "contract", "store", "web"},
    "testing": {"client", "contract", "embedded", "server"},
}
_TRACKER_GROUND = {"lateness", "python310"}


def modules_of(package: str) -> dict[str, Path]:
    """Return a package's modules and their files."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / package).rglob("*.py"))
    }


MODULES = modules_of(_PACKAGE)
_ANY = {**MODULES, **modules_of("tracker")}


def imported(tree: ast.AST, package: str = "") -> Iterator[str]:
    """Yield the modules that some code imports anywhere; of `from a import b` that is `a.b`, if there is one, or `a`.

    A relative import is of the same room, and is left out unless the code's package is given.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for each in node.names:
                full = f"{source}.{each.name}"
                yield full if full in _ANY else source


def room_of(module: str) -> str:
    """Return the room of a module, or the module's own name if it is in none."""
    return module.split(".")[1] if "." in module else module


TREES = {module: parsed(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
IMPORTS = {module: {name for name in imported(tree) if name in MODULES} for module, tree in TREES.items()}
PARTS = [module for module in MODULES if room_of(module) in ROOMS]


def imported_rooms(room: str) -> set[str]:
    """Return the other rooms of the tracker that a room's modules name in imports, but not for type checkers alone."""
    found: set[str] = set()
    for path in (ROOT / "tracker" / room).rglob("*.py"):
        tree = parsed(path.read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("package", [_PACKAGE, "tracker"])
def test_no_modules_import_one_another(package: str) -> None:
    # A package's own `__init__` is left out: that of spark_client collects what users import.
    modules = modules_of(package)
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        parent = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = imported(parsed(path.read_text(encoding="utf-8")), parent)
        graph[module] = {name for name in names if name in modules} - {package, module}
    list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_the_package_is_imported_in_a_function(module: str) -> None:
    functions = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    local = {name for function in functions for name in imported(function) if name.startswith(_PACKAGE)}
    assert not local, f"{module} hides imports of {local} in functions: move what both sides need below them"


#: Imports of Spark in other rooms: its documented modules, and names from them that have a small letter.
_PUBLIC = {
    "pyspark",
    "pyspark.errors",
    "pyspark.inheritable_thread_target",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming",
    "pyspark.sql.streaming.listener",
    "pyspark.sql.streaming.query",
    "pyspark.sql.types",
}
#: Attributes of the JVM's side of a session, a query or a plan.
_OF_THE_JVM = {"executedPlan", "lastExecution", "optimizedPlan", "queryExecution", "sessionState", "streamingQuery"}
#: Files of a checkpoint, as parts of a path.
_OF_CHECKPOINTS = {"commits", "metadata", "offsets", "sources"}
#: Keys, classes and properties, as parts of a text.
_NAMES = (
    "batchTimestampMs",
    "logOffset",
    "org.apache.spark.",
    "py4j",
    "spark.jobGroup",
    "streaming.queryId",
    "sql.batchId",
)


def private_uses(code: str) -> list[str]:
    """List the uses of Spark that no release promises: imports, attributes, files of checkpoints, names."""
    tree, found = parsed(code), list[str]()
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if _is_private(each.name)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names if each.name.islower()]
            found += [name for name in [str(node.module), *names] if _is_private(name)]
        elif isinstance(node, ast.Attribute):
            underscored = node.attr.startswith("_") and not node.attr.startswith("__") and not _is_own(node.value)
            found += [node.attr] if underscored or node.attr in _OF_THE_JVM else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            found += [ast.unparse(name)] if ast.unparse(name).startswith(("'_", '"_')) else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            parts = set(node.value.split("/"))
            found += [node.value] if parts & _OF_CHECKPOINTS or any(name in node.value for name in _NAMES) else []
    return found


def _is_private(module: str) -> bool:
    return module.partition(".")[0] in ("pyspark", "py4j") and module not in _PUBLIC


def _is_own(value: ast.expr) -> bool:
    """Return whether an attribute is of the class that the code is in."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


@pytest.mark.parametrize("module", [each for each in MODULES if room_of(each) != "spark_internals"])
def test_only_one_room_uses_what_spark_keeps_to_itself(module: str) -> None:
    found = private_uses(MODULES[module].read_text(encoding="utf-8"))
    assert not found, f"{module} uses {found}: give spark_internals a function for it"


@pytest.mark.parametrize(
    "code",
    [
        "rows._jdf",
        "self._rows._jdf",
        "spark.sparkContext._jvm",
        "session._sc",
        "rows.sparkSession._wrapped",
        "getattr(query, '_jsq')",
        "plan.queryExecution()",
        "from pyspark.sql.pandas.types import to_arrow_schema",
        "from pyspark.sql import pandas",
        "from pyspark.sql.datasource_internal import InputPartition",
        "import py4j.protocol",
        "(checkpoint / 'commits' / '3').exists()",
        "os.listdir(f'{checkpoint}/offsets')",
        "checkpoint / 'sources/0'",
        "read_json(checkpoint / 'metadata')",
        "offset['logOffset']",
        "task.getLocalProperty('sql.streaming.queryId')",
        "jvm.org.apache.spark.sql.SparkSession.sessionState",
    ],
)
def test_a_private_use_is_found(code: str) -> None:
    assert private_uses(code)


def test_what_is_public_is_no_private_use() -> None:
    assert not private_uses(
        '"""What py4j does with commits."""\n'
        "from pyspark import inheritable_thread_target\n"
        "from pyspark.sql import DataFrame, functions as F\n"
        "self._rows = super()._rows(cls._kind, rows.__class__, 'the commits of a query')\n"
    )


def _documents(module: str) -> str:
    return ast.get_docstring(TREES[module]) or ""


@pytest.mark.parametrize("module", [each for each in MODULES if each.startswith("spark_client.spark_internals.")])
def test_each_module_of_that_room_states_its_reliance_and_failure(module: str) -> None:
    said = _documents(module)
    missing = [words for words in ("Relies on", "Fails ", "Since Spark") if words.lower() not in said.lower()]
    assert not missing, f"{module} does not say: {', '.join(missing)}"
    tests = (ROOT / "tests" / "spark_internals").glob("test_*.py")
    assert any(f"{module} import" in path.read_text(encoding="utf-8") for path in tests), f"nothing tests {module}"


def too_long(tree: ast.AST) -> list[str]:
    """Return the classes, functions and constructors of some code that do too much, each with how much."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (lines := _lines(node, node)) > _LARGEST:
            found.append(f"{node.name}: {lines} lines")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            if (lines := _lines(body[0], node)) > _LONGEST_BODY:
                found.append(f"{node.name}: {lines} lines")
        if isinstance(node, ast.ClassDef) and node.name not in _READ_BY_NAME:
            found += [
                f"{node.name}: {count} parameters"
                for each in node.body
                if isinstance(each, ast.FunctionDef) and each.name == "__init__"
                if (count := len([*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]) - 1) > _MOST
            ]
    return found


def _lines(first: ast.stmt, last: ast.stmt) -> int:
    return (last.end_lineno or 0) - first.lineno + 1


@pytest.mark.parametrize("module", [each for each in _ANY if not each.startswith("tracker.wire.gen")])
def test_modules_classes_functions_and_constructors_are_short(module: str) -> None:
    text = _ANY[module].read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= _LONGEST, f"{module} has {lines} lines: take apart what it does"
    assert not too_long(parsed(text)), f"{module}: give what belongs together an object of its own"


def test_what_is_too_long_is_found() -> None:
    body = "".join(f"    {number}\n" for number in range(_LONGEST_BODY))
    parameters = ", ".join(f"p{number}" for number in range(_MOST + 1))
    options = ",\n    ".join(f"p{number}" for number in range(_LONGEST_BODY))
    assert not too_long(parsed(f'def f(\n    {options},\n):\n    """Do."""\n{body}'))
    assert too_long(parsed(f"def f():\n{body}    1\n")) == [f"f: {_LONGEST_BODY + 1} lines"]
    assert too_long(parsed(f"class C:\n    def __init__(self, {parameters}): ...")) == ["C: 8 parameters"]
