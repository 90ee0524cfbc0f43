"""Builds the sdist, and the wheel from the sdist, and checks what is in them."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

from .environments import DIST, ROOT, ReleaseError, tools

_PACKAGES = ("tracker", "spark_client")
#: Files that are no modules, and without which something does not work.
_DATA = (
    "tracker/py.typed",
    "spark_client/py.typed",
    "tracker/load/scenarios/smoke.toml",
    "tracker/page/static/index.html",
    "tracker/wire/gen/tracker_pb2.pyi",
)


def built() -> Path:
    """Return the wheel in `dist/`, as `python -m scripts.release.dist_check` has left it; build it if there is none."""
    found = list(DIST.glob("*.whl"))
    return found[0] if len(found) == 1 else build()[1]


def build(into: Path = DIST) -> tuple[Path, Path]:
    """Build what git has of the source tree. Return the sdist and the wheel.

    Args:
        into: the folder; distributions that it has are replaced.

    Raises:
        ReleaseError: the tree cannot be built, or twine finds something wrong in its metadata.
    """
    made = tools()
    with tempfile.TemporaryDirectory() as folder:
        source = _copied(Path(folder))
        for old in (*into.glob("*.tar.gz"), *into.glob("*.whl")):
            old.unlink()
        # The backend is among the tools, pinned: nothing is downloaded.
        made.run("-m", "build", "--no-isolation", "--outdir", str(into), str(source))
    [sdist], [wheel] = into.glob("*.tar.gz"), into.glob("*.whl")
    made.run("-m", "twine", "check", "--strict", str(sdist), str(wheel))
    return sdist, wheel


def _copied(folder: Path) -> Path:
    """Copy the files that git has, as they are now: other files beside them are in no release."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        file = ROOT / name
        if file.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    return folder


def check_contents(sdist: Path, wheel: Path) -> None:
    """Check that the wheel has every module and file that is needed and nothing else, and the sdist its source.

    Raises:
        ReleaseError: something is missing, or does not belong there.
    """
    listed = subprocess.run(
        ["git", "ls-files", *_PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = {name for name in listed if (ROOT / name).is_file()}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.endswith("/")}
    information = {name for name in inside if name.split("/")[0].endswith(".dist-info")}
    if missing := files - inside:
        raise ReleaseError(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    if foreign := inside - files - information:
        raise ReleaseError(f"{wheel.name} has what git has not: {', '.join(sorted(foreign))}")
    if missing := set(_DATA) - inside:
        raise ReleaseError(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    if not any(name.endswith("/licenses/LICENSE") for name in information):
        raise ReleaseError(f"{wheel.name} has no license")
    with tarfile.open(sdist) as packed:
        source = {name.partition("/")[2] for name in packed.getnames()}
    if missing := (files | {"pyproject.toml", "README.md", "LICENSE"}) - source:
        raise ReleaseError(f"{sdist.name} lacks {', '.join(sorted(missing))}")
