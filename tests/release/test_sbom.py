"""Content of an SBOM. `python -m scripts.release.sbom` makes them."""

from __future__ import annotations

import pytest
import tomllib

from scripts.release.environments import ROOT, ReleaseError
from scripts.release.sbom import EXTRAS, check

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = {"numpy": "2.0", "grpcio": "1.67", PROJECT["name"]: PROJECT["version"]}


def document(**versions: str) -> dict[str, object]:
    components = [{"name": name, "version": version, "purl": f"pkg:pypi/{name}"} for name, version in versions.items()]
    main = {"name": PROJECT["name"], "version": PROJECT["version"]}
    return {"metadata": {"component": main}, "components": components}


def test_one_that_lists_what_is_installed_is_right() -> None:
    check(document(numpy="2.0", grpcio="1.67"), INSTALLED)


@pytest.mark.parametrize(
    "wrong", [{"numpy": "2.0"}, {"numpy": "2.1", "grpcio": "1.67"}, {"numpy": "2.0", "grpcio": "1.67", "pip": "1"}]
)
def test_one_that_lists_something_else_is_wrong(wrong: dict[str, str]) -> None:
    with pytest.raises(ReleaseError, match="differ"):
        check(document(**wrong), INSTALLED)


def test_it_describes_this_version() -> None:
    other = document(numpy="2.0", grpcio="1.67") | {"metadata": {"component": {"name": "other", "version": "1"}}}
    with pytest.raises(ReleaseError, match="describes other"):
        check(other, INSTALLED)


def test_every_extra_is_one_of_the_package() -> None:
    assert set(EXTRAS) - {""} <= set(PROJECT["optional-dependencies"])
