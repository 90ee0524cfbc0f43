"""Runs the client's tests with the lowest and the highest versions of what it depends on.

    python scripts/test_bounds.py                  # both
    python scripts/test_bounds.py lowest

Each has an environment of its own in `.cache/bounds`, with the base package, its extra `cli` and pytest: no server, no
Spark. The server that the tests talk to runs in the environment that runs this program. Lowest means pyproject.toml's
lower bounds, on the oldest Python of this machine that it allows; highest means what the registry has, on this
machine's newest Python. An environment is made once and works offline then; it is made again when pyproject.toml asks
for something else.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "bounds"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES: list[str] = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]]
LOWER = re.compile(r"([\w-]+)>=([\d.]+)")
TOOLS = ("hypothesis", "pytest", "pytest-timeout")
VERSIONS = """
import platform, sys
from importlib.metadata import version
print(", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in sys.argv[1:])]))
"""
#: Building reports, sending them to a real server, and seeing the ends.
TESTS = (
    *(
        f"client/test_{name}.py"
        for name in ("client", "epochs", "imports", "labels", "pieces", "report", "subscriptions")
    ),
    "cli/test_commands.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bounds", nargs="*", metavar="BOUND", help="lowest or highest (default: both)")
    bounds = parser.parse_args().bounds or ["lowest", "highest"]
    if not {"lowest", "highest"}.issuperset(bounds):
        parser.error("a bound is `lowest` or `highest`")
    return max([run(bound) for bound in bounds])


def run(bound: str) -> int:
    """Test one bound; pytest's exit status."""
    python = environment(bound)
    names = sorted(name for name, _ in lower_bounds())
    said = subprocess.run([python, "-c", VERSIONS, *names], capture_output=True, text=True, check=True).stdout
    print(f"{bound}: {said.strip()}", flush=True)
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    # Protobuf warns before it refuses stubs of another version.
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-W", "error:Protobuf gencode", *tests]
    environ = {**os.environ, "SERVER_PYTHON": sys.executable}
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


def environment(bound: str) -> Path:
    """Make the bound's environment, if it is not there as it should be. Return its Python."""
    base = interpreter(bound)
    pins = [f"{name}=={version}" for name, version in lower_bounds()] if bound == "lowest" else []
    tools = [each for each in PROJECT["optional-dependencies"]["dev"] if each.partition(">=")[0] in TOOLS]
    wanted = "\n".join([base, str(ROOT), *DEPENDENCIES, *pins, *tools])
    home = HOME / bound
    python, complete = home / "bin" / "python", home / "complete"
    if not complete.exists() or complete.read_text() != wanted:
        print(f"{bound}: installing into {home.relative_to(ROOT)}", flush=True)
        subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *pins, *tools, "--editable", f"{ROOT}[cli]"], check=True)
        complete.write_text(wanted)
    return python


def lower_bounds() -> list[tuple[str, str]]:
    """Return the dependencies of the base package and its command line, with the lowest versions allowed."""
    return [match.groups() for match in map(LOWER.match, DEPENDENCIES) if match]  # type: ignore[misc]


def interpreter(bound: str) -> str:
    """Return the oldest or the newest Python of this machine that the project allows."""
    least = int(PROJECT["requires-python"].rpartition(".")[2])
    names = [shutil.which(f"python3.{minor}") for minor in range(least, 30)]
    found = {sys.version_info[1]: sys.executable}
    for path in [*filter(None, names), *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python"))]:
        minor = usable(path)
        if minor is not None and minor >= least:
            found.setdefault(minor, path)
    chosen = min(found) if bound == "lowest" else max(found)
    if bound == "lowest" and chosen > least:
        print(f"lowest: this machine has no Python 3.{least}, only 3.{chosen}", flush=True)
    return found[chosen]


def usable(path: str) -> int | None:
    """Return the minor version of a Python that can make environments."""
    ask = "import ensurepip, sys, venv; print(sys.version_info[1])"
    said = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
    return None if said.returncode else int(said.stdout)


if __name__ == "__main__":
    sys.exit(main())
