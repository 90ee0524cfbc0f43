"""Pages of the site that are not in docs/: mkdocs calls this by its hooks.

README.md is the site's first page; CONTRIBUTING.md, CHANGELOG.md and SECURITY.md are pages beside it. Each package of
the API reference gets a page with its docstrings, the command line one with its help. Links are written for the
repository, so those that lead out of docs/ or into it are changed here; of those to files that are no pages only the
text is left.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

#: The pages that lie in the root of the repository, and their names in the site.
ROOT_PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
}
#: The page with the help of every command, which needs the project's own environment.
COMMANDS: Final = "reference/commands.md"
#: The packages of the API reference.
PACKAGES: Final = (
    "tracker.client",
    "tracker.sharded",
    "tracker.kafka",
    "tracker.testing",
    "spark_client",
    "spark_client.aggregates",
    "spark_client.debezium",
)
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    from mkdocs.structure.files import File  # only the site's environment has it, and tests use the rest of this

    root = posixpath.dirname(config.config_file_path)
    for source, name in ROOT_PAGES.items():
        with open(posixpath.join(root, source), encoding="utf-8") as page:
            files.append(File.generated(config, name, content=page.read()))
    python = posixpath.join(root, ".venv", "bin", "python")
    made = subprocess.run([python, "-m", "scripts.site.commands"], cwd=root, capture_output=True, text=True, check=True)
    files.append(File.generated(config, COMMANDS, content=made.stdout))
    for package in PACKAGES:
        files.append(File.generated(config, f"reference/{package}.md", content=f"# {package}\n\n::: {package}\n"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Change a page's links for the site."""
    name = page.file.src_uri
    of_root = {site: source for source, site in ROOT_PAGES.items()}
    place = of_root.get(name, f"docs/{name}")

    def change(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        changed = site_link(target, place, name)
        if changed is None:
            return text
        return f"{image}[{text}]({changed})"

    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(change, markdown[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, _LINK.sub(change, markdown[end:])])


def site_link(target: str, place: str, name: str) -> str | None:
    """Return where a link leads in the site, or None if the site does not have the file.

    Args:
        target: the link as it is written.
        place: the page's path in the repository.
        name: the page's path in the site.

    >>> site_link("docs/howto/relay.md#where", "README.md", "index.md")
    'howto/relay.md#where'
    >>> site_link("../../CHANGELOG.md", "docs/howto/upgrade.md", "howto/upgrade.md")
    '../CHANGELOG.md'
    >>> site_link("../examples/plain_pipeline.py", "docs/promises.md", "promises.md") is None
    True
    """
    if re.match(r"[a-z]+:|#", target):
        return target
    path, mark, anchor = target.partition("#")
    where = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
    if where in ROOT_PAGES:
        inside = ROOT_PAGES[where]
    elif where.startswith("docs/") and not where.endswith(".json"):
        inside = where.removeprefix("docs/")
    else:
        return None
    return posixpath.relpath(inside, posixpath.dirname(name) or ".") + mark + anchor
