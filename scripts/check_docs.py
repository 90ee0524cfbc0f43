"""Check the documentation against what is there. Nothing is run here: `tests/docs` runs the programs.

For every Markdown file of the project: relative links and their anchors resolve; Python blocks compile, and what they
import from this project exists; the command lines of shell blocks are taken by the program that they call (`tracker`
with all its options, `make` targets, Python modules and files); inline code names commands that exist. Exits 1 with one
line a fault.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.command_lines import refusal  # noqa: E402 - the project need not be installed
from tracker.cli.app import COMMANDS  # noqa: E402

PACKAGES = {"tracker", "spark_client", "examples", "experiments", "benchmarks"}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings give."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+\s+(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def make_targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_imports(block: str) -> list[str]:
    """List the names that a Python block imports from this project and that do not exist."""
    missing = []
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            module = importlib.import_module(node.module or "")
            missing += [
                f"{node.module}.{each.name}"
                for each in node.names
                if not hasattr(module, each.name) and importlib.util.find_spec(f"{node.module}.{each.name}") is None
            ]
    return missing


def check_page(page: Path, targets: set[str]) -> list[str]:
    """Return the faults of one page."""
    text = page.read_text()
    if page.name == "CHANGELOG.md":  # earlier versions had other commands
        text = text.partition("\n## [0")[0]
    name = page.relative_to(ROOT)
    faults = []
    for match in LINK.finditer(FENCE.sub("", text)):
        link = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            faults.append(f"{name}: link to {link}, which does not exist")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            faults.append(f"{name}: link to {link}, but there is no such heading")
    code = []
    for language, block in FENCE.findall(text):
        if language == "python":
            try:
                compile(block, str(name), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                faults += [
                    f"{name}: a Python block imports {each}, which is not there" for each in unknown_imports(block)
                ]
            except SyntaxError as error:
                faults.append(f"{name}: a Python block does not compile: {error}")
        elif language in ("sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                code.append(line.lstrip("$ "))
                if why := refusal(line.lstrip("$ ")):
                    faults.append(f"{name}: `{line.strip()}`: {why}")
    code.extend(INLINE.findall(FENCE.sub("", text)))
    for line in code:
        if (made := re.match(r"make ([a-z-]+)", line)) and made.group(1) not in targets:
            faults.append(f"{name}: `make {made.group(1)}` is not a target")
        ran = re.match(r"(?:\.venv/bin/)?tracker ([a-z][a-z-]*)", line)
        if ran and ran.group(1) not in COMMANDS:
            faults.append(f"{name}: `tracker {ran.group(1)}` is not a command")
    return faults


def main() -> int:
    """Check every page that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.split()
    targets = make_targets()
    faults = [fault for page in listed if (ROOT / page).exists() for fault in check_page(ROOT / page, targets)]
    print(
        "\n".join(faults) if faults else f"{len(listed)} pages: links resolve, Python compiles, command lines are taken"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
