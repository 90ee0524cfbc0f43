"""Python sources as syntax trees."""

from __future__ import annotations

import ast
import gc


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
