"""Content of a wheel and of an sdist. `python -m scripts.release.dist_check` builds them."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import tomllib

from scripts.release.building import check_contents
from scripts.release.dist_check import Checks
from scripts.release.environments import ROOT, ReleaseError

EXTRAS = {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}

FILES = subprocess.run(
    ["git", "ls-files", "tracker", "spark_client"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
INFORMATION = "substream_tracker-0.1.0.dist-info"


def distributions(folder: Path, wheel: set[str], sdist: set[str]) -> tuple[Path, Path]:
    """Make empty files of these names, as an sdist and a wheel."""
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


def test_each_extra_that_a_user_installs_is_tried_where_nothing_else_is() -> None:
    assert set(Checks(Path(), Path()).all) == {"base", *EXTRAS} - {"demo", "dev"}


def test_no_page_and_no_refusal_names_an_extra_that_is_not_there() -> None:
    named = {
        extra
        for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in FILES))
        if page.suffix in (".md", ".py") and page.name != "CHANGELOG.md"
        for extras in re.findall(r"(?:pip install|--from|substream-tracker)[^\n\]]*\[([\w,-]+)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert named - EXTRAS == set()
    assert {"server", "spark", "delta", "object-store"} <= named
