"""Examples in docstrings as code: mkdocstrings reads docstrings as Markdown, in which `>>>` would be a quotation."""

from __future__ import annotations

from typing import Any

import griffe

from scripts.site.examples import fenced


class Doctests(griffe.Extension):  # type: ignore[misc]
    """Extension that puts fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change an object's docstring; this is not called for the package that is loaded."""
        if obj.docstring is not None and "```pycon" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the package's docstring."""
        self.on_object(obj=pkg)
