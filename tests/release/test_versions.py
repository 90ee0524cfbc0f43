"""The version is the same everywhere, and is set everywhere at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.release.versions import PLACES, ROOT, faults, notes, set_version


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the files that have the version, with something unreleased."""
    for name in {"CHANGELOG.md", *(place.file for place in PLACES)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]\n", "## [Unreleased]\n\n- A change.\n", 1))
    return tmp_path


def test_the_version_is_the_same_everywhere() -> None:
    assert faults() == []


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.file} {place.pattern[:12]}")
def test_a_place_that_was_forgotten_is_found(tree: Path, place: object) -> None:
    file = tree / place.file  # type: ignore[attr-defined]
    [version] = place.found(tree)  # type: ignore[attr-defined]
    file.write_text(file.read_text().replace(version, "9.9.9"))
    assert faults(tree)


def test_it_is_set_everywhere_and_what_was_unreleased_is_its_own(tree: Path) -> None:
    set_version("7.1.0rc2", tree)
    assert faults(tree, "v7.1.0rc2") == []
    assert notes(tree).startswith("- A change.")
    assert "## [" not in notes(tree)
    assert faults(tree, "v7.1.0") == ["the tag is v7.1.0, and the version is 7.1.0rc2: the tag must be v7.1.0rc2"]


def test_nothing_is_released_of_which_something_is_unreleased(tree: Path) -> None:
    [version] = PLACES[0].found(tree)
    assert "there are unreleased changes: - A change. …" in faults(tree, f"v{version}")[0]
    set_version("7.1.0", tree)
    with pytest.raises(ValueError, match="nothing unreleased"):
        set_version("7.1.1", tree)


def test_what_is_no_version_is_refused(tree: Path) -> None:
    with pytest.raises(ValueError, match="'v1' is no version such as"):
        set_version("v1", tree)
