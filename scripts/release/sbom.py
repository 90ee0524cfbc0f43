"""Lists what an installation is made of, as CycloneDX documents in `dist/`.

There is one document for each extra that is installed for itself: the base package, `server` (which the container image
has, too), `load` and `spark`. Each is made from a fresh environment with the wheel that `dist_check` has left,
validated against CycloneDX's schema, and compared with what pip finds in that environment. Exit status: 0 done; 1
something is wrong.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from .building import built
from .environments import DIST, ROOT, Environment, ReleaseError, tools, with_extra

EXTRAS: Final = ("", "server", "load", "spark")
SPECIFICATION: Final = "1.6"


def make(extra: str, wheel: Path) -> Path:
    """Write the document of one extra. Return its path.

    Raises:
        ReleaseError: the document is not valid, or differs from what is installed.
    """
    installed = with_extra(extra, wheel)
    path = DIST / f"sbom-{extra or 'base'}.cdx.json"
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library", "--spec-version", SPECIFICATION]
    options += ["--validate", "--output-reproducible", "--output-format", "JSON", "--output-file", str(path)]
    tools().run("-m", "cyclonedx_py", "environment", *options, str(installed.python))
    check(json.loads(path.read_text()), packages(installed))
    return path


def packages(installed: Environment) -> dict[str, str]:
    """Return an environment's packages, with versions."""
    program = (
        "import json; from importlib.metadata import distributions; "
        "print(json.dumps({d.metadata['Name'].lower().replace('_', '-'): d.version for d in distributions()}))"
    )
    found: dict[str, str] = json.loads(installed.run("-c", program).stdout)
    return found


def check(document: dict[str, Any], installed: dict[str, str]) -> None:
    """Check that a document describes this project and all that is installed, and nothing else.

    Raises:
        ReleaseError: the document does not.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    main = document["metadata"]["component"]
    if (main["name"], main["version"]) != (project["name"], project["version"]):
        raise ReleaseError(f"the SBOM describes {main['name']} {main['version']}")
    listed = {each["name"].lower().replace("_", "-"): each["version"] for each in document["components"]}
    expected = {name: version for name, version in installed.items() if name != project["name"]}
    if listed != expected:
        wrong = sorted(set(listed.items()) ^ set(expected.items()))
        raise ReleaseError(f"the SBOM and what is installed differ: {wrong}")
    if nameless := [each["name"] for each in document["components"] if not each.get("purl")]:
        raise ReleaseError(f"the SBOM has no address of {', '.join(nameless)}")


def main() -> int:
    try:
        wheel = built()
        for extra in EXTRAS:
            path = make(extra, wheel)
            count = len(json.loads(path.read_text())["components"])
            print(f"{path.relative_to(ROOT)}: {count} libraries, valid CycloneDX {SPECIFICATION}", flush=True)
    except ReleaseError as failed:
        print(f"sbom: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
