"""A user's function over results, as it is declared. Data: the function is the only code in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from pyspark.sql import types as T  # noqa: N812

FunctionKind: TypeAlias = Literal["rows", "pandas", "arrow"]


class FinishedGroup(NamedTuple):
    """Group of a finished substream for which a function is called.

    Attributes:
        scope: of the substream, as text; empty if the source has none.
        name: of the substream, as text; of a window its ISO 8601 interval.
        start: of the window, in UTC, or without a zone over a ``timestamp_ntz``; None: the substream is no window, or
            begins beyond the years 1 to 9999.
        end: likewise.
        keys: the values of the release's keys.
    """

    scope: str
    name: str
    start: datetime | None
    end: datetime | None
    keys: tuple[Any, ...]

    def __str__(self) -> str:
        keys = f", keys {self.keys}" if self.keys else ""
        return f"the substream {self.name!r} of the scope {self.scope!r}{keys}"


@dataclass(frozen=True, eq=False)
class ResultFunction:
    """A function that makes the results of rows, or of other results.

    Attributes:
        kind: what it takes: all rows that have ended in a batch, as a DataFrame, or those of one substream and key at a
            time, as a frame of pandas or a table of Arrow.
        function: it.
        schema: of what it makes: of a DataFrame all results' columns, else those that it adds to the substream's and
            the keys.
    """

    kind: FunctionKind
    function: Callable[..., Any]
    schema: T.StructType

    @property
    def name(self) -> str:
        """Return what errors call it."""
        function: Any = self.function
        try:
            return str(function.__name__)
        except AttributeError:  # an object that can be called
            return repr(function)
