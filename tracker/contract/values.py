"""The enumerations, numbers and kinds of columns that all of the contract uses.

Times and durations are in nanoseconds, times since the Unix epoch; *end times* are the job's own 64-bit numbers, of
which the tracker knows only the order. The numbers of the enumerations are those of the wire, and snapshots keep them:
they never change.

`Shown` displays a value of the contract by the names that callers know, and in notebooks as a table of escaped text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from functools import cache
from html import escape
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tracker.python310 import StrEnum

_N = TypeVar("_N", bound="Numbered")

NO_END_TIME = 2**63 - 1  #: in a column of end times: the substream has none
EVERY_SCOPE = "*"  #: in place of a scope: all of them

U4: TypeAlias = NDArray[np.uint32]
U8: TypeAlias = NDArray[np.uint64]
I8: TypeAlias = NDArray[np.int64]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def moment(ns: int) -> datetime:
    """Return a time as a caller has it, in UTC and exact to the microsecond.

    >>> moment(1_500_000_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return _EPOCH + length(ns)


def moment_if_any(ns: int | None) -> datetime | None:
    """Return a time as a caller has it; None: there is none."""
    return None if ns is None else moment(ns)


def length(ns: int) -> timedelta:
    """Return a duration as a caller has it, exact to the microsecond."""
    return timedelta(microseconds=ns // 1000)


class Numbered(StrEnum):
    """An enumeration of words, each with the number that stands for it on the wire and in snapshots.

    >>> Reason("EXPIRED").number, Reason.of(2).value, f"{Reason.EXPIRED}"
    (2, 'EXPIRED', 'EXPIRED')
    """

    number: int

    def __new__(cls: type[_N], word: str, number: int) -> _N:
        member = str.__new__(cls, word)
        member._value_ = word
        member.number = number
        return member

    @classmethod
    def of(cls: type[_N], number: int) -> _N:
        """Return the member with a number.

        Raises:
            ValueError: no member has this number.
        """
        found = cls.by_number().get(number)
        if found is None:
            raise ValueError(f"{number} is not the number of a {cls.__name__}")
        return found

    @classmethod
    def by_number(cls: type[_N]) -> Mapping[int, _N]:
        """Return the members by their numbers, for those who look up many."""
        return _by_number(cls)


@cache
def _by_number(kind: type[_N]) -> Mapping[int, _N]:
    return {member.number: member for member in kind}


class Ordering(Numbered):
    """Ordering of ends: which wait for those of smaller end times."""

    NONE = "none", 1
    SCOPE = "scope", 2
    GLOBAL = "global", 3


class Mode(Numbered):
    """Mode of a producer's entries: in effect with the commit of their epoch, or on receipt."""

    STAGED = "staged", 1
    IMMEDIATE = "immediate", 2


class Reason(Numbered):
    """Reason for a substream's end."""

    COMPLETE = "COMPLETE", 1
    EXPIRED = "EXPIRED", 2
    ABANDONED = "ABANDONED", 3
    DEADLINE = "DEADLINE", 4
    THRESHOLD = "THRESHOLD", 5  #: most of what is expected was sent, and nothing came any more
    IDLE = "IDLE", 6  #: nothing of its scope came any more, or its fronts fell silent


class Outcome(Numbered):
    """Outcome of a report that was not refused."""

    APPLIED = "APPLIED", 1
    DUPLICATE = "DUPLICATE", 2  #: every unit had been reported before; for a call that was repeated, a success
    PARTIAL_DUPLICATE = "PARTIAL_DUPLICATE", 3  #: some had; nothing was applied
    ALREADY_COMMITTED = "ALREADY_COMMITTED", 4  #: the epoch had been; for a call that was repeated, a success


class DrainState(Numbered):
    """State of a drain."""

    NOT_DRAINING = "NOT_DRAINING", 1
    PENDING = "PENDING", 2  #: asked for before its deployment was defined
    DRAINING = "DRAINING", 3
    DRAINED = "DRAINED", 4
    TIMED_OUT = "TIMED_OUT", 5  #: not over in time; it goes on
    CANCELLED = "CANCELLED", 6


class DrainMode(Numbered):
    """Fate of what is open when a deployment is drained."""

    FINISH = "FINISH", 1  #: sources finish, which closes it
    HAND_OVER = "HAND_OVER", 2  #: sources stop, and the next deployment goes on with it


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
