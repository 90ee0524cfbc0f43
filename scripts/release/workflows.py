"""Lints the host's workflows: `python -m scripts.release.workflows`.

actionlint checks their syntax and expressions; zizmor looks for what an attacker could use, without asking the host.
Neither runs a workflow. Exit status: 0 nothing was found; 1 something was; 2 a tool is missing.
"""

from __future__ import annotations

import subprocess
import sys

from scripts.go_tools import ACTIONLINT, MissingError, install_tool

from .environments import ROOT, tools

WORKFLOWS = ROOT / ".github" / "workflows"


def main() -> int:
    try:
        install_tool(ACTIONLINT)
    except MissingError as missing:
        print(f"workflows-check: {missing}", file=sys.stderr)
        return 2
    zizmor = [str(tools().home / "bin" / "zizmor"), "--offline", "--persona", "pedantic", "--no-progress"]
    linters = [[str(ACTIONLINT.path), "-color"], [*zizmor, str(WORKFLOWS)]]
    statuses = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in linters]
    if not any(statuses):
        print(f"{len(list(WORKFLOWS.glob('*.yml')))} workflows: nothing found by actionlint and zizmor")
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
