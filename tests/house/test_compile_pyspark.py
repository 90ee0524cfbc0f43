"""The installation's step that spares Spark's Python processes to compile PySpark each time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from scripts.compile_pyspark import compile_zip


def origin(archive: Path, module: str) -> str:
    """Return the place from which a process imports a module that is in a zip."""
    program = f"import {module} as found; print(found.__spec__.cached or found.__file__, found.value)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_modules_of_a_zip_are_imported_compiled_and_what_was_there_stays(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("package/__init__.py", "value = 1\n")
        written.writestr("package/module.py", "value = 2\n")
        written.writestr("package/tests/test_module.py", "value = 3\n")
        written.writestr("package/data.txt", "data")
        before = {entry.filename: (entry.header_offset, entry.CRC) for entry in written.infolist()}
    assert compile_zip(archive) == 2
    assert compile_zip(archive) == 0, "it can be run again"
    with zipfile.ZipFile(archive) as changed:
        after = {entry.filename: (entry.header_offset, entry.CRC) for entry in changed.infolist()}
        assert changed.testzip() is None
    assert before.items() <= after.items(), "a process that reads the file meanwhile finds what it looked up"
    assert after.keys() - before.keys() == {"package/__init__.pyc", "package/module.pyc"}
    assert origin(archive, "package.module") == f"{archive}/package/module.pyc 2"
    assert [each.name for each in tmp_path.iterdir()] == ["package.zip"]


def test_spark_s_own_zip_was_compiled_by_the_installation() -> None:
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    if not archive.exists():
        pytest.skip("PySpark without a zip of its own")
    with zipfile.ZipFile(archive) as installed:
        compiled = "pyspark/sql/streaming/python_streaming_source_runner.pyc" in installed.namelist()
    assert compiled, "python scripts/compile_pyspark.py has not run since PySpark was installed"
