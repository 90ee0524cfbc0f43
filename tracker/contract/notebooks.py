"""How a notebook shows values: as small tables, in which every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from html import escape
from typing import Any


class Shown:
    """A dataclass that a notebook shows as a table of its fields."""

    __slots__ = ()

    def _repr_html_(self: Any) -> str:
        return table({each.name: getattr(self, each.name) for each in fields(self)})


def table(rows: Mapping[str, object]) -> str:
    """Return the HTML of a table with a row for each name and its value.

    >>> table({"job": "<b>"})
    '<table><tr><th>job</th><td>&lt;b&gt;</td></tr></table>'
    """
    lines = (f"<tr><th>{escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(lines)}</table>"


def _cell(value: object) -> str:
    match value:
        case Shown():
            return value._repr_html_()
        case Mapping():
            return table(value)
        case list() | tuple():
            return "<br>".join(map(_cell, value))
        case _:
            return escape(str(value))
