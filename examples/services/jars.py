"""Where Kafka's jars are: fetched once by scripts/fetch_jars.sh."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class MissingError(RuntimeError):
    """Something that a service needs is not on this machine; the message says how to install it."""


@cache
def _fetched() -> tuple[Path, Path]:
    run = subprocess.run(["bash", str(_ROOT / "scripts" / "fetch_jars.sh")], capture_output=True, text=True)
    if run.returncode != 0:
        raise MissingError(f"Kafka's jars could not be fetched: {run.stderr.strip() or run.stdout.strip()}")
    broker, connector = run.stdout.split()
    return _ROOT / broker, _ROOT / connector


def broker() -> Path:
    """The directory of the broker's jars; fetches them if they are not there.

    Raises:
        MissingError: Maven is, or it cannot reach a registry.
    """
    return _fetched()[0]


def connector() -> str:
    """Spark's Kafka connector, as the setting ``spark.jars`` takes it; fetches it if it is not there.

    Raises:
        MissingError: Maven is, or it cannot reach a registry.
    """
    return ",".join(sorted(str(jar) for jar in _fetched()[1].glob("*.jar")))
