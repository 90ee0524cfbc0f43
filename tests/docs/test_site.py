"""The documentation as a site: every page is in it, and in its navigation. `make site` builds it, without warnings."""

from __future__ import annotations

import doctest
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from scripts.site import commands, examples, pages
from tracker.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
CONFIGURATION: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def named(navigation: object) -> Iterator[str]:
    """Yield the pages of the navigation, or of a part of it."""
    match navigation:
        case str():
            yield navigation
        case list():
            for each in navigation:
                yield from named(each)
        case dict():
            yield from named([*navigation.values()])


def test_every_page_is_in_the_navigation_once_and_the_other_way_round() -> None:
    docs = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    made = {*pages.ROOT_PAGES.values(), pages.COMMANDS, *(f"reference/{package}.md" for package in pages.PACKAGES)}
    assert not docs & made
    assert sorted(named(CONFIGURATION["nav"])) == sorted(docs | made)


def test_no_page_installs_from_a_registry_what_no_registry_has() -> None:
    """A reader who typed such a command would get an error, or one day somebody else's package."""
    command = re.compile(r"pip install[^\n`]*substream-tracker")
    pages_with_it = [
        page.name for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if command.search(page.read_text())
    ]
    assert pages_with_it == []


def test_what_builds_the_site_is_in_the_repository() -> None:
    """Once it was not: .gitignore took it for what was built."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "scripts"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    used = re.findall(r"scripts/[\w./]+\.py", (ROOT / "mkdocs.yml").read_text())
    assert len(used) >= 2
    assert set(used) <= set(listed)


def test_the_page_of_commands_has_the_help_of_each() -> None:
    sections = commands.reference().split("\n## ")[1:]
    assert {each.split()[1] for each in sections[1:]} == {*COMMANDS}
    for each in sections:
        name = each.partition("\n")[0]
        assert f"Usage: {name} " in each
        assert "show this help" in each


def test_the_reference_has_every_package_that_its_page_lists() -> None:
    listed = re.findall(r"^\| `([\w.]+)`", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    assert tuple(listed) == pages.PACKAGES


@pytest.mark.parametrize(
    ("target", "place", "name", "link"),
    [
        ("SECURITY.md", "README.md", "index.md", "SECURITY.md"),
        ("../images/page.png", "docs/howto/page.md", "howto/page.md", "../images/page.png"),
        ("../../README.md", "docs/howto/page.md", "howto/page.md", "../index.md"),
        ("https://example.org/a.md", "README.md", "index.md", "https://example.org/a.md"),
        ("#here", "docs/howto/page.md", "page.md", "#here"),
        ("chaos.json", "docs/design/reliability.md", "design/reliability.md", None),
    ],
)
def test_links_lead_where_the_page_is_in_the_site(target: str, place: str, name: str, link: str | None) -> None:
    assert pages.site_link(target, place, name) == link


@pytest.mark.parametrize("module", [pages, examples])
def test_the_examples_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).attempted
    assert doctest.testmod(module).failed == 0


def test_examples_in_docstrings_become_code_and_other_text_stays() -> None:
    assert examples.fenced("One.\n\nTwo >>> three.") == "One.\n\nTwo >>> three."
    assert examples.fenced(">>> a\n1\n\n>>> b\n2").count("```pycon") == 2
