"""Display of the contract's values: by the names that callers know, and in notebooks as tables of escaped text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from html import escape
from typing import Any


class Shown:
    """A dataclass that is shown by the names that callers know, in a notebook as a table.

    A field ``…_ns`` keeps a time or a duration exactly; the property without the suffix gives callers their form.
    """

    __slots__ = ()

    def shown(self: Any) -> dict[str, Any]:
        """Return the fields with their values, in the form for callers."""
        names = (each.name.removesuffix("_ns") for each in fields(self) if each.repr)
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"

    def _repr_html_(self) -> str:
        return table(self.shown())


def table(rows: Mapping[str, object]) -> str:
    """Return the HTML of a table with a row for each name and its value.

    >>> table({"job": "<b>"})
    '<table><tr><th>job</th><td>&lt;b&gt;</td></tr></table>'
    """
    lines = (f"<tr><th>{escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(lines)}</table>"


def _cell(value: object) -> str:
    match value:
        case _ if hasattr(value, "_repr_html_"):
            return str(value._repr_html_())
        case Mapping():
            return table(value)
        case list() | tuple():
            return "<br>".join(map(_cell, value))
        case _:
            return escape(str(value))
