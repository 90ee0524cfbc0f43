"""The exports of the Spark client are there, and the processes that Spark starts load little of it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import spark_client
from tests.house.trees import parsed

_SOURCE = Path(spark_client.__file__)
#: Modules that only a driver needs: each takes a tenth of a second or more of every process that loads it.
_HEAVY = {
    *("pandas", "pyarrow.dataset", "spark_client.api.session", "spark_client.release.aggregation"),
    *("spark_client.release.query", "tracker.server"),
}


def declared_for_types() -> dict[str, str]:
    """Return the exports as type checkers see them: name and origin."""
    tree = parsed(_SOURCE.read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}


@pytest.mark.parametrize("name", spark_client.__all__)
def test_an_export_is_what_type_checkers_take_it_for(name: str) -> None:
    exported = getattr(spark_client, name)
    origin = declared_for_types()[name]
    module, _, attribute = origin.rpartition(".")
    assert exported is getattr(sys.modules[module], attribute)


def test_all_that_is_declared_is_exported() -> None:
    assert sorted(declared_for_types()) == sorted(spark_client.__all__) == sorted(spark_client._ORIGINS)
    assert {*spark_client.__all__} <= {*dir(spark_client)}
    with pytest.raises(AttributeError, match="'spark_client' has no attribute 'Trackings'"):
        _ = spark_client.Trackings


@pytest.mark.parametrize(
    ("process", "module"),
    [
        ("a reader of events", "spark_client.datasource.events"),
        ("a task with a probe", "spark_client.counting.probes"),
        ("a task with a user's function", "spark_client.release.grouped"),
    ],
)
def test_a_process_that_spark_starts_loads_nothing_that_only_drivers_need(process: str, module: str) -> None:
    """Spark starts one for each reader of a Python source, and imports by module what was pickled by reference."""
    program = f"import json, sys, pyspark.sql, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not _HEAVY & set(json.loads(done.stdout)), process


#: Imports every module in a process that has of PySpark what `pyspark-client` has of it.
_WITHOUT_A_JVM = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("py4j", "pyspark.core", "pyspark.java_gateway", "pyspark.sql.classic")):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import pyspark.util, spark_client
assert pyspark.util.is_remote_only()
for module in pkgutil.walk_packages(spark_client.__path__, "spark_client."):
    importlib.import_module(module.name)
"""


def test_every_module_loads_without_what_reaches_a_jvm() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_A_JVM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
