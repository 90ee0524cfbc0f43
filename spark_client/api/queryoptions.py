"""Settings of each writer of tracked queries: options, a name, a trigger."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeVar

from spark_client.api.refusals import check_option, check_trigger
from spark_client.destinations.sink import Sink, check_writes
from spark_client.errors import UsageError

W = TypeVar("W", bound="QueryOptions")


class _Kind(NamedTuple):
    """Kind of an option: how a value is spelled, None if it is none of this kind; and what it takes."""

    spell: Callable[[Any], str | None]
    takes: str


_PATH: Final = _Kind(lambda value: os.fspath(value) if isinstance(value, str | os.PathLike) else None, "a path")
_BOOLEAN: Final = _Kind(
    lambda value: str(value).lower() if str(value).lower() in ("true", "false") else None, "True or False"
)
_COUNT: Final = _Kind(
    lambda value: str(int(value)) if re.fullmatch("0*[1-9][0-9]*", str(value)) else None, "a whole number, 1 or more"
)

#: The options that are not Spark's writer's, each as it is spelled.
OWN: Final[Mapping[str, _Kind]] = {
    "checkpointLocation": _PATH,
    "path": _PATH,
    "late_path": _PATH,
    "early_path": _PATH,
    "compact_from": _COUNT,
    "seal": _BOOLEAN,
}
_ALIKE: Final = 0.85  # of `difflib`, from which on a name is a typing error: no option of Spark's is so near
_SPELLED: Final = {name.lower().replace("_", ""): name for name in OWN}


def spelled(key: str) -> str:
    """Return the name of an option as `OWN` has it; any other as it is.

    >>> spelled("LATE-path"), spelled("compression")
    ('late_path', 'compression')
    """
    return _SPELLED.get(_plain(key), key)


def _plain(key: str) -> str:
    return "".join(sign for sign in str(key).lower() if sign not in "-_. ")


class QueryOptions:
    """Settings for the start of a query.

    Attributes:
        options_given: by name; the names of `OWN` as they are spelled there.
        name: of the query; None: it has none.
        trigger_given: as Spark takes it.
        to_late: a sink for late rows; None: they go to files.
    """

    def __init__(self) -> None:
        self.options_given: dict[str, str] = {}
        self.name: str | None = None
        self.trigger_given: dict[str, Any] = {}
        self.to_late: Sink | None = None

    def option(self: W, key: str, value: Any) -> W:
        """Set one option, as Spark's.

        Args:
            key: those of `OWN` in any spelling: ``late-path`` and ``latePath`` are ``late_path``.

        Raises:
            UsageError: the value is none that the option takes, or the name is nearly that of one.
        """
        check_option(key, value)
        own = spelled(key)
        if own not in OWN:
            for meant in get_close_matches(_plain(key), _SPELLED, 1, _ALIKE):
                raise UsageError(f"option({key!r}): there is none of that name; write {_SPELLED[meant]!r}")
            self.options_given[key] = str(value).lower() if isinstance(value, bool) else str(value)
        elif text := OWN[own].spell(value):
            self.options_given[own] = text
        else:
            raise UsageError(f"option({own!r}, {value!r}): takes {OWN[own].takes}")
        return self

    def options(self: W, **options: Any) -> W:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def late(self: W, to: Sink) -> W:
        """Set late rows, and rows of no substream, aside in a sink: rows of `LATE_SCHEMA`, each epoch once.

        >>> daily.writeStream.late(DeltaTable("s3a://lake/late"))                         # doctest: +SKIP
        """
        check_writes(to, "late", "; for a directory .option('late_path', path)")
        self.to_late = to
        return self

    def queryName(self: W, name: str) -> W:  # noqa: N802
        """Name the query, in Spark's pages and in logs."""
        self.name = name
        return self

    def trigger(self: W, **trigger: Any) -> W:
        """Choose when batches are made, as Spark's: ``processingTime="1 second"`` or, to take what is there,
        ``availableNow``.

        With ``availableNow`` the backlog is taken in batches if its source bounds them (``maxFilesPerTrigger``,
        ``maxOffsetsPerTrigger``, `receive`'s ``max_epochs_per_trigger``), and all that they have ended is released
        before ``awaitTermination`` returns. Channels of files and tables are taken in one batch before Spark 4.2.
        """
        check_trigger(trigger)
        self.trigger_given = trigger
        return self
