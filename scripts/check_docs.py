"""Check what the documentation says against what is there.

For every Markdown file of the project: relative links and their anchors resolve, Python blocks parse, and every
`make` target and `tracker` command that a shell block or inline code names exists. Exits 1 with one line a fault.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings give."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+\s+(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def make_targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def tracker_commands() -> set[str]:
    """The subcommands that the command line says it has."""
    shown = subprocess.run(
        [sys.executable, "-m", "tracker.cli.main", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    return set(re.findall(r"^ {2,6}([a-z][a-z-]*)\b", shown, re.MULTILINE))


def check_page(page: Path, targets: set[str], commands: set[str]) -> list[str]:
    """The faults of one page."""
    text = page.read_text()
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
                ast.parse(block)
            except SyntaxError as error:
                faults.append(f"{name}: a Python block does not parse: {error}")
        elif language in ("sh", "bash", "console"):
            code.extend(line.lstrip("$ ") for line in block.splitlines())
    code.extend(INLINE.findall(FENCE.sub("", text)))
    for line in code:
        if (made := re.match(r"make ([a-z-]+)", line)) and made.group(1) not in targets:
            faults.append(f"{name}: `make {made.group(1)}` is not a target")
        ran = re.match(r"(?:\.venv/bin/)?tracker ([a-z][a-z-]*)", line)
        if ran and ran.group(1) not in commands:
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
    targets, commands = make_targets(), tracker_commands()
    faults = [
        fault for page in listed if (ROOT / page).exists() for fault in check_page(ROOT / page, targets, commands)
    ]
    print("\n".join(faults) if faults else f"{len(listed)} pages: links, examples and commands hold")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
