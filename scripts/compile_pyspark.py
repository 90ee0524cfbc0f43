"""Puts compiled modules beside the sources in PySpark's zips: ``python scripts/compile_pyspark.py``.

Spark starts a Python process for each reader of a Python data source, and one for its tasks, with ``pyspark.zip`` and
Py4J's zip first on the path. They have sources only, and Python keeps nothing that it compiles for a zip: so each
process compiles them again, which takes about a second of CPU. It changes nothing but how long a start takes, can be
run again, and is undone by installing PySpark again.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark


def compile_zip(archive: Path) -> int:
    """Add the compiled form of each module that has none.

    Entries that are there stay where they are, so a process that reads the file meanwhile is not disturbed.

    Args:
        archive: a zip of sources.

    Returns:
        The number of modules that were compiled.
    """
    with zipfile.ZipFile(archive) as present:
        names = set(present.namelist())
        wanted = (name for name in names if name.endswith(".py") and "/tests/" not in name)
        sources = {name: present.read(name) for name in wanted if f"{name}c" not in names}
    if not sources:
        return 0
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        copy = Path(directory) / archive.name
        shutil.copy2(archive, copy)
        with zipfile.ZipFile(copy, "a", zipfile.ZIP_DEFLATED) as changed:
            for name, source in sorted(sources.items()):
                module = Path(directory) / "module.py"
                module.write_bytes(source)
                # Not checked against the source, whose time a zip keeps only roughly.
                unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
                shown = f"{archive}/{name}"
                compiled = py_compile.compile(
                    str(module), f"{module}c", dfile=shown, doraise=True, invalidation_mode=unchecked
                )
                changed.write(str(compiled), f"{name}c")
        os.replace(copy, archive)
    return len(sources)


def main() -> None:
    library = Path(pyspark.__file__).parent / "python" / "lib"
    archives = sorted(library.glob("*.zip"))
    if not archives:
        print(f"{library} has no zip of PySpark: nothing to compile")
    for archive in archives:
        try:
            number = compile_zip(archive)
        except OSError as error:
            print(f"{archive} stays as it is, so Python processes of Spark start slower: {error}", file=sys.stderr)
        else:
            print(f"{archive.name}: {number} modules compiled")


if __name__ == "__main__":
    main()
