"""The Spark of the rounds: a home of their own, as executors work beneath it, and how its processes start sooner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.classes import OPTIONS, QUICK, reading

ARCHIVE = "CHAOS_ARCHIVE"  #: the environment variable that names it
_REPOSITORY = Path(__file__).parents[2]


def spark_home(path: Path) -> Path:
    """Make a directory that looks like Spark's, with nothing of its own."""
    installed = Path(pyspark.__file__).parent
    path.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "python", "sbin"):
        if (installed / name).exists() and not (path / name).exists():
            (path / name).symlink_to(installed / name)
    return path


def archive(home: Path) -> Path | None:
    """Make an archive of the classes that a job loads; None if this JVM cannot.

    Args:
        home: of `spark_home`: an archive holds for its class path only.
    """
    target = home / "classes.jsa"
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(_REPOSITORY)}
    environment.pop(OPTIONS, None)
    program = [sys.executable, "-m", "tests.spark.archive", str(target), "local-cluster[1,1,1024]"]
    subprocess.run(program, env=environment, capture_output=True, check=False, cwd=home)
    return target if target.exists() else None


def java_options() -> str:
    """Return the options of the JVMs of drivers and executors."""
    made = os.environ.get(ARCHIVE)
    return f"{QUICK} {reading(Path(made))}" if made else QUICK
