"""Python sources as syntax trees."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path
from typing import NamedTuple


def parsed(code: str) -> ast.Module:
    """Return the tree of a source, in a process whose other threads may parse, too.

    Before 3.11.8, a process had one count of how deep a tree is. The collector of garbage may let in another thread,
    which parses when it shows a traceback, and `ast.parse` ended with "recursion depth mismatch" (gh-106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(code)
    finally:
        if collects:
            gc.enable()


class Definition(NamedTuple):
    """Class or function in a module."""

    name: str
    line: int
    docstring: str
    is_class: bool
    is_property: bool

    @property
    def is_test(self) -> bool:
        """Return whether this is a test, whose docstring states what holds."""
        return not self.is_class and self.name.startswith("test_")


@cache
def definitions(path: Path) -> list[Definition]:
    """Return the classes and functions of a module, which are kept for one rule after the other: a tree is large."""
    found = []
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
            text = ast.get_docstring(node) or ""
            found.append(Definition(node.name, node.lineno, text, isinstance(node, ast.ClassDef), is_property))
    return found
