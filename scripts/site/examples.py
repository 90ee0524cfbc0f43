"""The examples in docstrings, as Markdown has code."""

from __future__ import annotations

import re
from typing import Final

_DIRECTIVE: Final = re.compile(r" *# doctest: .*$", re.MULTILINE)


def fenced(text: str) -> str:
    """Return a docstring with fences around its examples, and without directives to doctest.

    >>> fenced("Adds.\\n\\n>>> 1 + 1  # doctest: +SKIP\\n2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    paragraphs = re.split(r"\n[ \t]*\n", text)
    return "\n\n".join(_fenced(each) if each.lstrip().startswith(">>>") else each for each in paragraphs)


def _fenced(example: str) -> str:
    return f"```pycon\n{_DIRECTIVE.sub('', example).strip()}\n```"
