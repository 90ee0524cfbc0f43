"""The places of one query on the file system: no two may be one directory, or one inside the other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

from spark_client.errors import UsageError
from spark_client.runtime.queryplan import QueryPlan
from spark_client.storage.directories import local_pattern
from spark_client.storage.folder import Folder

_WILD = re.compile(r"[*?\[{]")


class Place(NamedTuple):
    """A directory of a query.

    Attributes:
        purpose: names the directory in a message.
        path: of the directory, with all links followed; of a folder in a store, its URL.
        written: whether the query writes there; else it only reads.
    """

    purpose: str
    path: Path
    written: bool = True


class Places:
    """The directories of the queries that one `Tracking` has started.

    Two directories collide that are the same, or one inside the other: one query or part of it would take the other's
    files for its own, so a result would never be written, or a receipt be read as a row. Names count as they are on the
    disk: through links, and in every spelling. A directory whose name begins with ``_`` or ``.`` may lie inside another
    one, since Spark reads over such names.
    """

    def __init__(self) -> None:
        self._of: dict[Path, list[Place]] = {}

    def take(self, plan: QueryPlan, read: Iterable[tuple[str, str]]) -> None:
        """Note the directories of a query, before it writes into any.

        Args:
            plan: of the query, with those beside it.
            read: what its source reads: a purpose, and a path, a URI or a pattern of paths.
        """
        checkpoint = _path(plan.checkpoint)
        own = [Place("checkpointLocation", checkpoint), *_places(plan)]
        for one, other in combinations([*own, *_read(read)], 2):
            if one.written and one[:2] != other[:2] and not (one.path == checkpoint and _is_default(other, checkpoint)):
                _check(one, other, "")
        for theirs in (place for query, places in self._of.items() if query != checkpoint for place in places):
            for place in own:
                if place.purpose != theirs.purpose:
                    _check(place, theirs, " of another query")
        self._of[checkpoint] = own


def _is_default(place: Place, checkpoint: Path) -> bool:
    """Return whether a directory is where a checkpoint keeps late rows, or early results of a release, by itself."""
    own = checkpoint / "tracker"
    return place.path == own / "late" or (place.path.name == "early" and place.path.is_relative_to(own))


def _check(one: Place, other: Place, whose: str) -> None:
    outer, inner = sorted((one.path, other.path), key=lambda path: len(path.parts))
    if inner != outer and (not inner.is_relative_to(outer) or inner.relative_to(outer).parts[0][0] in "_."):
        return
    collide = "are the same directory" if inner == outer else "are one inside the other"
    raise UsageError(
        f"{one.purpose} ({one.path}) and {other.purpose}{whose} ({other.path}) {collide}: one would take the other's "
        "files for its own. Give each a directory of its own, beside the other"
    )


def _places(plan: QueryPlan) -> Iterator[Place]:
    yield Place("late_path", _path(plan.late))
    for each in plan.releases or [plan]:
        called = f" of {each.name!r}" if each.name else ""
        yield from (Place(f"{purpose}{called}", _path(path)) for purpose, path in each.destination.directories())
        if isinstance(each.receipts, Folder):
            yield Place("the path of the receipts", _path(each.receipts))


def _read(read: Iterable[tuple[str, str]]) -> Iterator[Place]:
    """Return what a query reads on this file system, a pattern as the deepest directory that holds all it matches."""
    for purpose, pattern in read:
        if urlparse(pattern).scheme in ("", "file"):
            path = local_pattern(pattern, purpose)
            wild = _WILD.search(path)
            yield Place(purpose, _real(path if wild is None else os.path.dirname(path[: wild.start()])), written=False)


def _path(folder: Folder) -> Path:
    return Path(folder.real)


def _real(path: str) -> Path:
    return Path(os.path.realpath(path))
