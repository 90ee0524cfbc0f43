"""How Spark writes a column as text, which is the only way to learn what a `Column` of its own is made of.

Relies on ``str(column)`` (``pyspark.sql.classic.column``), such as ``Column<'avg(delay)'>``: a form for people, that no
release promises. Fails closed: a text that is not understood counts as unknown, so more columns are read, or an
aggregate is refused. Since Spark 4.0.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import Column

_PLAIN: Final = re.compile(r"(?:Column<')?(\w+)(?:'>)?")
_CALL: Final = re.compile(r"Column<'(\w+)\((.*)\)'>", re.DOTALL)


def plain_name(value: Column | str) -> str | None:
    """Return the name of a plain column; None: it is an expression, or has an unusual name.

    >>> plain_name("origin")
    'origin'
    """
    found = _PLAIN.fullmatch(value if isinstance(value, str) else str(value))
    return None if found is None else found[1]


def call_in(value: Column) -> tuple[str, str]:
    """Return the function that a column calls, and the text of its arguments; two empty texts: it is no call of a
    function."""
    found = _CALL.fullmatch(str(value))
    return ("", "") if found is None else (found[1], found[2])
