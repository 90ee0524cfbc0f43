"""What a wheel and an sdist must have. `python -m scripts.release.dist_check` builds them."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts.release.building import check_contents
from scripts.release.environments import ROOT, ReleaseError

FILES = subprocess.run(
    ["git", "ls-files", "tracker", "spark_client"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
INFORMATION = "substream_tracker-0.1.0.dist-info"


def distributions(folder: Path, wheel: set[str], sdist: set[str]) -> tuple[Path, Path]:
    """Empty files of these names, as an sdist and a wheel."""
    built, source = folder / "some.whl", folder / "some.tar.gz"
    with zipfile.ZipFile(built, "w") as archive:
        for name in sorted(wheel):
            archive.writestr(name, "")
    with tarfile.open(source, "w:gz") as packed:
        for name in sorted(sdist):
            packed.addfile(tarfile.TarInfo(f"some-0.1.0/{name}"), io.BytesIO())
    return source, built


WHEEL = {*FILES, f"{INFORMATION}/METADATA", f"{INFORMATION}/licenses/LICENSE"}
SDIST = {*FILES, "pyproject.toml", "README.md", "LICENSE"}


def test_whole_ones_are_right(tmp_path: Path) -> None:
    check_contents(*distributions(tmp_path, WHEEL, SDIST))


@pytest.mark.parametrize(
    ("wheel", "sdist", "why"),
    [
        (WHEEL - {"tracker/core/job.py"}, SDIST, "some.whl lacks tracker/core/job.py"),
        (WHEEL - {"tracker/page/static/index.html"}, SDIST, "some.whl lacks tracker/page/static/index.html"),
        (WHEEL | {"tests/conftest.py"}, SDIST, "some.whl has what git has not: tests/conftest.py"),
        (WHEEL - {f"{INFORMATION}/licenses/LICENSE"}, SDIST, "some.whl has no license"),
        (WHEEL, SDIST - {"README.md"}, "some.tar.gz lacks README.md"),
    ],
)
def test_what_is_missing_or_foreign_is_named(tmp_path: Path, wheel: set[str], sdist: set[str], why: str) -> None:
    with pytest.raises(ReleaseError, match=why):
        check_contents(*distributions(tmp_path, wheel, sdist))
