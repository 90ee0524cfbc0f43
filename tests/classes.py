"""JVMs with Spark that start sooner: an archive of the classes that they load.

Starting such a JVM is mostly loading some ten thousand classes. An archive of them (class data sharing) halves the
processor time of a start, and the tests kill and start many drivers. `tests.spark.archive` makes one. It holds for one
JVM and one class path; a JVM that cannot use it starts as without it, and prints nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  #: for JVMs that live for seconds
OPTIONS = "SPARK_SUBMIT_OPTS"  #: the environment variable with what drivers' JVMs are started with
MADE = Path(__file__).parents[1] / ".cache" / "spark-classes.jsa"  #: where `make test` has it made


def reading(archive: Path) -> str:
    """Return the options of a JVM that uses an archive if it can.

    Example:
        >>> reading(Path("/tmp/classes.jsa"))
        '-XX:SharedArchiveFile=/tmp/classes.jsa -Xlog:cds*=off'
    """
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds*=off"


def share() -> None:
    """Have every driver that this process and its children start use what `make test` has made, if it is there."""
    if MADE.is_file() and MADE.stat().st_size and " " not in str(MADE):  # spark-submit splits its options at blanks
        os.environ.setdefault(OPTIONS, reading(MADE))
