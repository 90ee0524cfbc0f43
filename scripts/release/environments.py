"""Fresh environments in `.cache/dist`: made once, and offline then; made again when more is wanted."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "dist"
DIST = ROOT / "dist"
_CONSTRAINTS = ROOT / "constraints.txt"
_TOOLS = ROOT / "requirements" / "release.txt"
_STAMP = "complete"
_DOWNLOAD_S = 3600  # seconds
_BINARY = ("--only-binary", ":all:", "--no-binary", "pyspark")
#: Variables that would have Python or Spark load something from elsewhere.
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")


class ReleaseError(Exception):
    """Something that a release promises does not hold, or could not be made."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Args:
        home: its folder.
    """

    home: Path

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.home / "bin" / "python"

    def run(
        self, *arguments: str, directory: Path | None = None, status: int = 0, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python, as where the source tree does not exist.

        Args:
            arguments: of Python.
            directory: where it runs.
            status: the exit status that is right.
            timeout: seconds.

        Raises:
            ReleaseError: Python has another exit status.
        """
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != status:
            printed = f"{done.stdout[-2000:]}{done.stderr[-3000:]}"
            raise ReleaseError(f"{' '.join(arguments)[:200]}: exit status {done.returncode}, not {status}\n{printed}")
        return done


def environment() -> dict[str, str]:
    """Return the variables that a program of a fresh environment gets."""
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN and "TRACKER_" not in name}


def tools() -> Environment:
    """Return the environment of build, pip, twine, cyclonedx-py and zizmor, with the pinned versions."""
    made = Environment(HOME / "tools")
    if _is_new(made, _TOOLS.read_text()):
        subprocess.run([sys.executable, "-m", "venv", "--upgrade-deps", str(made.home)], check=True)
        made.run("-m", "pip", "install", "--quiet", "--requirement", str(_TOOLS), timeout=_DOWNLOAD_S)
        _complete(made, _TOOLS.read_text())
    return made


def with_extra(extra: str, wheel: Path, more: Sequence[str] = ()) -> Environment:
    """Make an environment with the wheel and an extra, the libraries in the versions of constraints.txt, and no more.

    Nothing is compiled: each library has to have a wheel for this machine, but for PySpark, which is published as an
    sdist of Python files.

    Args:
        extra: the extra; empty: none.
        wheel: the built wheel. It is installed anew each time; the libraries once.
        more: other packages that are wanted in it.
    """
    made = Environment(HOME / (extra or "base"))
    pip = ("-m", "pip", "--python", str(made.python))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = str([project["dependencies"], project["optional-dependencies"]])
    wanted = "\n".join([needed, _CONSTRAINTS.read_text(), *more])
    if _is_new(made, wanted):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made.home)], check=True)
        named = f"{wheel}[{extra}]" if extra else str(wheel)
        constrained = ("--constraint", str(_CONSTRAINTS), named, *more)
        tools().run(*pip, "install", "--quiet", *_BINARY, *constrained, timeout=_DOWNLOAD_S)
        _complete(made, wanted)
    tools().run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", str(wheel))
    tools().run(*pip, "check")
    return made


def _is_new(made: Environment, wanted: str) -> bool:
    """Return whether an environment has to be made; remove what is left of an earlier one."""
    stamp = made.home / _STAMP
    if stamp.exists() and stamp.read_text() == _digest(wanted):
        return False
    print(f"installing into {made.home.relative_to(ROOT)} (once)", flush=True)
    shutil.rmtree(made.home, ignore_errors=True)
    return True


def _complete(made: Environment, wanted: str) -> None:
    (made.home / _STAMP).write_text(_digest(wanted))


def _digest(wanted: str) -> str:
    return hashlib.sha256(f"{sys.version}\n{ROOT}\n{wanted}".encode()).hexdigest()
