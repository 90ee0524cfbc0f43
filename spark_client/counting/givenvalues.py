"""Values of Python as rows of a schedule: what files, paths and databases have instead of its types."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from spark_client.errors import UsageError
from spark_client.windows.substreams import Substreams

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")


def when_of(value: Any, rule: Substreams, where: str) -> Any:
    """Return a substream's name or a time in its window, of a text.

    Args:
        value: the text; what is none is returned.
        rule: of the source.
        where: it was found, for the message.

    Raises:
        UsageError: it is no time, and substreams are windows.
    """
    if not isinstance(value, str):
        return value
    if not rule.windows:
        return as_column_has_it(value, rule.name_type)
    try:
        if len(value) == len("2026-03-01"):
            return date.fromisoformat(value)
        return datetime.fromisoformat(f"{value[:-1]}+00:00" if value.endswith("Z") else value)
    except ValueError:
        raise UsageError(
            f"{where}: {value!r} is no time in ISO 8601, and the source's substreams are windows: write 2026-03-01, or "
            "2026-03-01T07:00:00Z"
        ) from None


def as_column_has_it(text: str, kind: str) -> str:
    """Return a value as the source's column has it: Spark takes a path's ``07`` for the number 7.

    >>> as_column_has_it("07", "int"), as_column_has_it("07", "string")
    ('7', '07')
    """
    return str(int(text)) if kind in _WHOLE else text


def count_of(value: Any) -> Any:
    """Return a number of rows: a database's sum, or a CSV file's text, as an integer if it is one; else as it is.

    >>> count_of(Decimal("20")), count_of("20"), count_of(2.5)
    (20, 20, 2.5)
    """
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return int(value) if isinstance(value, str) and value.strip().isdigit() else value
