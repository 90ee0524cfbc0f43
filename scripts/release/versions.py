"""The version is the same everywhere that has it, and is set everywhere at once.

    python -m scripts.release.versions                       # lists the places; exit status 1 if one differs
    python -m scripts.release.versions --tag v0.2.0          # also: the tag is the version's, and nothing is unreleased
    python -m scripts.release.versions --set 0.2.0           # sets it; what was unreleased becomes the version's

pyproject.toml leads. The others are the package's `__version__`, the chart's version and its image's tag, the images'
labels, the changelog's newest heading, and what docs/design/releasing.md tells to check out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
_UNRELEASED = "## [Unreleased]"
_CHANGELOG = "CHANGELOG.md"


class Place(NamedTuple):
    """A place that has the version: the file, and an expression whose group `version` it is."""

    file: str
    pattern: str

    def found(self, root: Path) -> list[str]:
        """Return the versions that are there."""
        expression = re.compile(self.pattern, re.MULTILINE)
        return [each.group("version") for each in expression.finditer((root / self.file).read_text())]


_NUMBER = rf"(?P<version>{VERSION})"
PYPROJECT = Place("pyproject.toml", rf'^version = "{_NUMBER}"$')
PLACES = (
    PYPROJECT,
    Place("deploy/helm/substream-tracker/Chart.yaml", rf"^version: {_NUMBER}$"),
    Place("deploy/helm/substream-tracker/Chart.yaml", rf'^appVersion: "{_NUMBER}"$'),
    Place("tracker/__init__.py", rf'^__version__ = "{_NUMBER}"$'),
    Place("Dockerfile", rf'^LABEL org\.opencontainers\.image\.version="{_NUMBER}"$'),
    Place("docs/design/releasing.md", rf"^git tag --sign v{_NUMBER} "),
)


def faults(root: Path = ROOT, tag: str | None = None) -> list[str]:
    """Return the faults, a line each.

    Args:
        root: the source tree.
        tag: the tag of which a release is made; None: none is made.
    """
    version = tomllib.loads((root / PYPROJECT.file).read_text())["project"]["version"]
    wrong = []
    for place in PLACES:
        found = place.found(root)
        if found != [version]:
            wrong.append(f"{place.file}: expected version {version} once, found {', '.join(found) or 'none'}")
    changelog = (root / _CHANGELOG).read_text()
    headings = re.findall(rf"^## \[({VERSION})\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    if headings[:1] != [version]:
        wrong.append(f"{_CHANGELOG}: its newest version is {', '.join(headings[:1]) or 'missing'}, not {version}")
    if changelog.count(_UNRELEASED) != 1:
        wrong.append(f"{_CHANGELOG}: `{_UNRELEASED}` must be there once")
    elif tag is not None and (kept := _unreleased(changelog)):
        wrong.append(f"{_CHANGELOG}: there are unreleased changes: {kept.splitlines()[0]} …; use --set VERSION first")
    if tag not in (None, f"v{version}"):
        wrong.append(f"the tag is {tag}, and the version is {version}: the tag must be v{version}")
    return wrong


def _unreleased(changelog: str) -> str:
    return re.split(r"^## ", changelog.partition(_UNRELEASED)[2], maxsplit=1, flags=re.MULTILINE)[0].strip()


def notes(root: Path = ROOT) -> str:
    """Return the changelog's text of its newest version, without the heading."""
    sections = re.split(rf"^## \[{VERSION}\].*$", (root / _CHANGELOG).read_text(), flags=re.MULTILINE)
    return sections[1].strip() + "\n"


def set_version(version: str, root: Path = ROOT) -> None:
    """Set the version everywhere; what was unreleased in the changelog becomes this version's, of today.

    Raises:
        ValueError: the text is no version, or nothing is unreleased.
    """
    if not re.fullmatch(VERSION, version):
        raise ValueError(f"{version!r} is no version such as 0.2.0 or 0.2.0rc1")
    changelog = root / _CHANGELOG
    text = changelog.read_text()
    if not _unreleased(text):
        raise ValueError(f"{_CHANGELOG} has nothing unreleased: there is nothing to release")
    today = datetime.now(UTC).date().isoformat()
    for place in PLACES:
        file = root / place.file
        file.write_text(
            re.sub(place.pattern, lambda match: _with(match, version), file.read_text(), flags=re.MULTILINE)
        )
    changelog.write_text(text.replace(_UNRELEASED, f"{_UNRELEASED}\n\n## [{version}] - {today}", 1))


def _with(match: re.Match[str], version: str) -> str:
    start, end = (position - match.start() for position in match.span("version"))
    whole = match.group()
    return f"{whole[:start]}{version}{whole[end:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="of which a release is made; its notes are written to dist/notes.md")
    parser.add_argument("--set", metavar="VERSION", help="set the version everywhere")
    arguments = parser.parse_args()
    if arguments.set:
        try:
            set_version(arguments.set)
        except ValueError as refused:
            print(f"versions: {refused}", file=sys.stderr)
            return 2
    wrong = faults(tag=arguments.tag)
    if arguments.tag and not wrong:
        (ROOT / "dist").mkdir(exist_ok=True)
        (ROOT / "dist" / "notes.md").write_text(notes())
    print("\n".join(wrong) if wrong else f"{PYPROJECT.found(ROOT)[0]} in {len(PLACES) + 1} places")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
