"""Runs the tests of Spark's private interfaces, and a choice of the Spark tests, on every supported release of Spark.

    python scripts/test_matrix.py                  # all
    python scripts/test_matrix.py 4.1 4.3
    python scripts/test_matrix.py 4.1 --tests tests/spark_internals
    python scripts/test_matrix.py --table          # writes the table of what was seen, and runs nothing

Each release has an environment of its own in `.cache/matrix`, with that PySpark, this checkout, and everything else at
the versions of constraints.txt. An environment is made once and works offline then; it is made again when something
else is wanted in it. A release that fails does not keep the next from being tried. The exit status is 1 if one failed.

Each run writes what it has seen of each feature into `docs/reference/spark_versions.json`, in place of what an earlier
run has seen of it on that release, and the table of `docs/reference/spark.md` from that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "matrix"
#: The last maintenance release of each that is published; pyproject.toml has the range.
RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
#: Distributions that Spark's Python package brings itself.
OF_SPARK = re.compile(r"(pyspark|py4j)==")
EXTRAS = ("cli", "server", "spark")
TOOLS = ("hypothesis", "pytest", "pytest-timeout")
SEEN = ROOT / "docs" / "reference" / "spark_versions.json"
PAGE = ROOT / "docs" / "reference" / "spark.md"
BEGIN, END = "<!-- made by scripts/test_matrix.py -->\n", "<!-- until here -->\n"


@dataclass(frozen=True)
class Feature:
    """Something that users have on some releases of Spark.

    Attributes:
        name: as the page has it.
        tests: the files and folders of tests that are run for it.
        since, before: the releases that have it; it is refused by name on others, and nothing is run there.
    """

    name: str
    tests: tuple[str, ...]
    since: tuple[int, int] = (3, 5)
    before: tuple[int, int] = (5, 0)

    def is_in(self, release: str) -> bool:
        """Return whether a release has the feature."""
        return self.since <= tuple(map(int, release.split(".")[:2])) < self.before


#: The tests in which Spark's own life matters most.
FEATURES = (
    Feature("releases", ("tests/spark/test_release.py",)),
    Feature("ends between batches, `availableNow`", ("tests/spark/test_available_now.py",)),
    Feature("an exact watermark", ("tests/spark/test_watermark.py",), since=(4, 0)),
    Feature("channels", ("tests/spark/test_inbox.py",), since=(4, 0)),
    Feature('`format("tracker")`', ("tests/spark/test_events.py",), since=(4, 0)),
    Feature("keyed state", ("tests/spark/test_keyed_state.py",), since=(4, 1)),
    Feature("releases over Spark Connect", ("tests/connect",), since=(4, 1), before=(4, 3)),
    Feature("what Spark does not promise", ("tests/spark_internals",)),
)
#: They would have Spark run from elsewhere.
FOREIGN = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH")


@dataclass(frozen=True)
class Outcome:
    """Outcome of the tests on one release.

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
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="others than those of all features")
    parser.add_argument("--table", action="store_true", help="write the page's table, and run nothing")
    given = parser.parse_args()
    if given.table:
        write_table()
        return 0
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
    """Return whether a name means a release: its own, or the beginning of it."""
    return f"{release}.".startswith(f"{name}.")


def run(release: str, tests: Sequence[str] | None) -> Outcome:
    """Test one release, and write down what was seen.

    Args:
        tests: paths; None: the tests of each feature that it has.
    """
    try:
        python = environment(release)
    except subprocess.CalledProcessError as error:
        return Outcome(release, True, f"could not be installed ({error.returncode})", 0.0)
    record = HOME / release / "tests.xml"
    record.unlink(missing_ok=True)
    environ = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    begun = time.monotonic()
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", f"--junit-xml={record}"]
    chosen = tests or [path for feature in FEATURES if feature.is_in(release) for path in feature.tests]
    status = subprocess.run([*command, *chosen], cwd=ROOT, env=environ, check=False).returncode
    if record.exists():
        note(release, record)
        write_table()
    return Outcome(release, status != 0, counts(record), time.monotonic() - begun)


def note(release: str, record: Path) -> None:
    """Write down what pytest has recorded of each feature, in place of what an earlier run has seen of it."""
    seen: dict[str, dict[str, Any]] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    for feature in FEATURES:
        places = tuple(path.removesuffix(".py").replace("/", ".") for path in feature.tests)
        cases = [
            case
            for case in ElementTree.parse(record).iter("testcase")
            if any(f"{case.get('classname')}.".startswith(f"{place}.") for place in places)
        ]
        found = [
            next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
            for case in cases
        ]
        if found:
            failed = found.count("failure") + found.count("error")
            numbers = {"passed": found.count("passed"), "failed": failed, "skipped": found.count("skipped")}
            seen.setdefault(release, {})[feature.name] = {**numbers, "on": datetime.now(UTC).date().isoformat()}
    SEEN.write_text(json.dumps(seen, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def table() -> str:
    """Return what was seen as a table: a row for each feature, a column for each release.

    A cell has how many tests have passed; "not run": none was run; "–": the release has nothing of it.
    """
    seen: dict[str, dict[str, Any]] = json.loads(SEEN.read_text())
    rows = [[each.name, *(cell(each, release, seen.get(release, {})) for release in RELEASES)] for each in FEATURES]
    lines = [["", *RELEASES], ["---"] * (len(RELEASES) + 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def cell(feature: Feature, release: str, seen: dict[str, Any]) -> str:
    """Return what was seen of a feature on a release."""
    if not feature.is_in(release):
        return "–"
    if feature.name not in seen:
        return "not run"
    numbers = seen[feature.name]
    shown = [f"{numbers[kind]} {kind}" for kind in ("passed", "failed", "skipped") if numbers[kind]]
    return ", ".join(shown)


def write_table() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


def counts(record: Path) -> str:
    """Return the number of tests, from pytest's record of them."""
    if not record.exists():
        return "the tests did not run to their end"
    suite = next(ElementTree.parse(record).iter("testsuite"))
    numbers = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)


def environment(release: str) -> Path:
    """Make the environment of a release, if it is not there as it should be. Return its Python.

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
    """Return the pins of constraints.txt, but for Spark's."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return (line for line in lines if line and not OF_SPARK.match(line))


def required() -> Iterator[str]:
    """Yield the requirements besides this checkout: the package's dependencies, those of the tests, its builder."""
    pyproject: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional: dict[str, list[str]] = pyproject["project"]["optional-dependencies"]
    yield from pyproject["build-system"]["requires"]
    yield from pyproject["project"]["dependencies"]
    own = f"{pyproject['project']['name']}["  # an extra that includes another one; both are in EXTRAS
    yield from (each for extra in EXTRAS for each in optional[extra] if not each.startswith(own))
    yield from (each for each in optional["dev"] if each.partition(">=")[0] in TOOLS)
    yield "zstandard"  # Spark Connect's client needs it since 4.2


if __name__ == "__main__":
    sys.exit(main())
