"""Runs the tests of Spark's private interfaces, and a choice of the Spark tests, on every supported release of Spark.

    python scripts/test_matrix.py                  # all
    python scripts/test_matrix.py 4.1 4.3
    python scripts/test_matrix.py 4.1 --tests tests/spark_internals

Each release has an environment of its own in `.cache/matrix`, with that PySpark, this checkout, and everything else at
the versions of constraints.txt. An environment is made once and works offline then; it is made again when something
else is wanted in it. A release that fails does not keep the next from being tried. The exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "matrix"
#: The last maintenance release of each that is published; pyproject.toml has the range.
RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
#: What Spark's Python package brings itself.
OF_SPARK = re.compile(r"(pyspark|py4j)==")
EXTRAS = ("cli", "server", "spark")
TOOLS = ("hypothesis", "pytest", "pytest-timeout")
#: The contract tests, and the tests in which Spark's own life matters most.
TESTS = (
    "tests/spark_internals",
    "tests/spark/test_release.py",
    "tests/spark/test_watermark.py",
    "tests/spark/test_available_now.py",
)
#: They would have Spark run from elsewhere.
FOREIGN = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH")


@dataclass(frozen=True)
class Outcome:
    """What came of one release.

    Attributes:
        release: of Spark.
        failed: whether the tests failed, or could not run.
        said: in a few words.
        seconds: that the tests took.
    """

    release: str
    failed: bool
    said: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help="such as 4.1 or 4.1.4 (default: all)")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help="others than the usual ones")
    given = parser.parse_args()
    wanted: list[str] = given.releases
    chosen = [each for each in RELEASES if not wanted or any(matches(each, name) for name in wanted)]
    if unknown := [name for name in wanted if not any(matches(each, name) for each in RELEASES)]:
        parser.error(f"{unknown[0]} is none of {', '.join(RELEASES)}")
    outcomes: list[Outcome] = []
    for number, release in enumerate(chosen, 1):
        print(f"\nSpark {release} ({number} of {len(chosen)})", flush=True)
        outcomes.append(run(release, given.tests))
    print()
    for each in outcomes:
        print(f"{each.release:8} {'failed' if each.failed else 'passed':8} {each.said:32} {each.seconds:5.0f} s")
    return int(any(each.failed for each in outcomes))


def matches(release: str, name: str) -> bool:
    """Whether a release is meant by a name: its own, or the beginning of it."""
    return f"{release}.".startswith(f"{name}.")


def run(release: str, tests: Sequence[str]) -> Outcome:
    """Test one release."""
    try:
        python = environment(release)
    except subprocess.CalledProcessError as error:
        return Outcome(release, True, f"could not be installed ({error.returncode})", 0.0)
    record = HOME / release / "tests.xml"
    record.unlink(missing_ok=True)
    environ = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    begun = time.monotonic()
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", f"--junit-xml={record}"]
    status = subprocess.run([*command, *tests], cwd=ROOT, env=environ, check=False).returncode
    return Outcome(release, status != 0, counts(record), time.monotonic() - begun)


def counts(record: Path) -> str:
    """How many tests there were, from pytest's record of them."""
    if not record.exists():
        return "the tests did not run to their end"
    suite = next(ElementTree.parse(record).iter("testsuite"))
    numbers = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)


def environment(release: str) -> Path:
    """The environment of a release, made if it is not there as it should be; its Python.

    Raises:
        subprocess.CalledProcessError: something could not be installed.
    """
    home = HOME / release
    python, complete, checkout = home / "bin" / "python", home / "complete", home / "checkout"
    pins, requirements = [*others(), f"pyspark=={release}"], list(required())
    wanted = "\n".join([sys.version, *pins, *requirements])
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not complete.exists() or complete.read_text() != wanted:
        print(f"installing into {home.relative_to(ROOT)} (a few minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        constraints = home / "constraints.txt"
        constraints.write_text("\n".join(pins) + "\n")
        subprocess.run([*install, "--constraint", str(constraints), *requirements], check=True)
        complete.write_text(wanted)
    here = f"{ROOT}\n{(ROOT / 'pyproject.toml').read_text()}"
    if not checkout.exists() or checkout.read_text() != here:
        subprocess.run([*install, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], check=True)
        checkout.write_text(here)
    return python


def others() -> Iterator[str]:
    """The pins of constraints.txt, but for Spark's."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return (line for line in lines if line and not OF_SPARK.match(line))


def required() -> Iterator[str]:
    """What the environment needs besides this checkout: the package's dependencies, those of the tests, its builder."""
    pyproject: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional: dict[str, list[str]] = pyproject["project"]["optional-dependencies"]
    yield from pyproject["build-system"]["requires"]
    yield from pyproject["project"]["dependencies"]
    own = f"{pyproject['project']['name']}["  # an extra that includes another one; both are in EXTRAS
    yield from (each for extra in EXTRAS for each in optional[extra] if not each.startswith(own))
    yield from (each for each in optional["dev"] if each.partition(">=")[0] in TOOLS)


if __name__ == "__main__":
    sys.exit(main())
