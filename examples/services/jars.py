"""Jars of services, fetched once by scripts/fetch_jars.sh."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pyspark

_ROOT = Path(__file__).parents[2]


class MissingError(RuntimeError):
    """Something that a service needs is not on this machine; the message has how to install it."""


@cache
def _fetched(name: str) -> Path:
    run = subprocess.run(["bash", str(_ROOT / "scripts" / "fetch_jars.sh"), name], capture_output=True, text=True)
    if run.returncode != 0:
        raise MissingError(f"the jars of {name} could not be fetched: {run.stderr.strip() or run.stdout.strip()}")
    return _ROOT / run.stdout.strip()


def _for_spark(name: str, release: str, what: str) -> str:
    """Return a set of jars as the setting ``spark.jars`` takes it, if it is for this Spark."""
    if not pyspark.__version__.startswith(f"{release}."):
        raise MissingError(f"{what} fetched for Spark {release}, and this is {pyspark.__version__}")
    return ",".join(sorted(str(jar) for jar in _fetched(name).glob("*.jar")))


def broker() -> Path:
    """Return the directory of a Kafka broker's jars; fetch them if they are not there.

    Raises:
        MissingError: Maven is, or it cannot reach a registry.
    """
    return _fetched("broker")


def connector() -> str:
    """Return Spark's Kafka connector, as the setting ``spark.jars`` takes it; fetch it if need be.

    Raises:
        MissingError: Maven is, or it cannot reach a registry; or this Spark runs on another Scala.
    """
    return _for_spark("connector", "4", "the connector is")


def lake() -> str:
    """Return Delta and Iceberg for Spark 4.1, as the setting ``spark.jars`` takes them; fetch them if need be.

    Raises:
        MissingError: Maven is, or it cannot reach a registry; or this Spark is another one.
    """
    return _for_spark("lake", "4.1", "Delta and Iceberg are")


def s3a() -> str:
    """Return Hadoop's client of S3 for Spark 4.1, as the setting ``spark.jars`` takes it; fetch it if need be.

    Raises:
        MissingError: Maven is, or it cannot reach a registry; or this Spark is another one.
    """
    return _for_spark("s3a", "4.1", "Hadoop's client of S3 is")


def of_peer(name: str) -> Path:
    """Return the directory of jars that `benchmarks` needs for a peer; fetch them if they are not there.

    Args:
        name: `flink`, `storm` or `streams`.

    Raises:
        MissingError: Maven is, or it cannot reach a registry.
    """
    return _fetched(name)


def objects() -> Path:
    """Return the directory of an object store's jars; fetch them if they are not there.

    Raises:
        MissingError: Maven is, or it cannot reach a registry.
    """
    return _fetched("objects")


def hdfs() -> Path:
    """Return the directory of the jars of a file system of Hadoop; fetch them if they are not there.

    Raises:
        MissingError: Maven is, or it cannot reach a registry.
    """
    return _fetched("hdfs")


def jvm(classes: Path, *options: str) -> list[str]:
    """Return the command of a JVM that lives for a short time in little memory, up to its main class.

    Args:
        classes: a directory of jars.
        options: of the JVM.

    Raises:
        MissingError: there is no Java.
    """
    return [java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options, "-cp", f"{classes}/*"]


def java() -> str:
    """Return the program that runs them.

    Raises:
        MissingError: there is none.
    """
    found = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
    if found is None:
        raise MissingError("missing: Java 17 or newer. Install it with: apt-get install openjdk-17-jre-headless")
    return str(found)
