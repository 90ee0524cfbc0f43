"""Completeness of a table of a lake, as its commits carry it: which substreams have all of their results there.

Each commit carries a note with what is complete by then: windows as stretches of time, which grow as one window
follows another, and other substreams by name. A commit repeats what those before it had, so those may expire. A note is
cut to `LARGEST` by leaving out the oldest: that is no longer known to be complete.

Nothing here imports Spark, so that readers without it can ask, too.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from spark_client.windows.substreams import Substream

NOTE: Final = "tracker"  #: the property of an Iceberg snapshot that has the note; Delta has `userMetadata`
COMMITS: Final = 100  #: newest commits that are looked at: other writers', without a note, may be among them
LARGEST: Final = 16_000  #: characters of a note: a table of Iceberg's has those of all of its snapshots in one file


class Completed(NamedTuple):
    """Part of a table that is complete.

    Attributes:
        scope: of the substreams; empty if the source has none.
        name: of a substream; or ``"start/end"``, of windows that follow each other.
        since: the start of these windows; None: it is no window.
        up_to: the end of the last of these windows; None: it is no window.
    """

    scope: str
    name: str
    since: datetime | None = None
    up_to: datetime | None = None


class Completeness:
    """Complete parts of a table, the oldest first.

    Args:
        parts: in the order in which they became complete; windows may overlap.
    """

    def __init__(self, parts: Iterable[Completed]) -> None:
        names: dict[Completed, None] = {}
        stretches: dict[tuple[str, bool], list[tuple[datetime, datetime]]] = {}
        for part in parts:
            if part.since is None or part.up_to is None:
                names[part] = None
            else:
                stretches.setdefault((part.scope, _is_wall(part.since)), []).append((part.since, part.up_to))
        windows = [_window(scope, *each) for (scope, _), found in stretches.items() for each in _joined(found)]
        self.parts = [*names, *sorted(windows, key=lambda part: part.name.partition("/")[2])]

    @classmethod
    def of(cls, notes: Iterable[str | None]) -> Completeness:
        """Return what the notes of commits have together.

        Args:
            notes: the newest first; what is no note of ours is left out.
        """
        return cls(part for note in reversed([*notes]) for part in _parts(note or "{}"))

    def and_also(self, completed: Iterable[Substream]) -> Completeness:
        """Return this and more, cut to what a note can carry."""
        known = Completeness([*self.parts, *(part for each in completed for part in _part(*each))])
        first = bisect_left(range(len(known.parts)), True, key=lambda cut: len(_listed(known.parts[cut:])) <= LARGEST)
        known.parts = known.parts[first:]
        return known

    def note(self, query: str, epoch: int) -> str:
        """Return what a commit carries, as JSON.

        >>> Completeness([Completed("a", "file-1"), Completed("b", "file-1")]).note("5c1d", 7)
        '{"query": "5c1d", "epoch": 7, "names": {"file-1": ["a", "b"]}}'
        """
        return f'{{"query": {json.dumps(query)}, "epoch": {epoch}{_listed(self.parts)}}}'

    def has(self, scope: str, window: str | Sequence[datetime]) -> bool:
        """Return whether a substream is complete: all of its results are in the table.

        Args:
            window: its name; or start and end of a stretch of time, as in the column ``window`` of a collected row.
        """
        if isinstance(window, str):
            asked = [*_windows(scope, window), Completed(scope, window)]
        else:
            start, end = window
            asked = [Completed(scope, "", *(each.astimezone(timezone.utc) for each in (start, end)))]
            asked += [Completed(scope, "", start, end)] if _is_wall(start) else []
        return any(_within(one, part) for part in self.parts if part.scope == scope for one in asked)


def completeness(table: Any) -> list[Completed]:
    """Return what is complete in a table, from the table alone.

    Args:
        table: `DeltaTable` or `IcebergTable`, which the active Spark session reads; or, without Spark, a table of
            ``deltalake`` or of ``pyiceberg``.

    >>> completeness(deltalake.DeltaTable("s3://lake/daily"))                               # doctest: +SKIP
    [Completed(scope='shop-1', name='2026-03-01T00:00:00Z/2026-03-09T00:00:00Z', ...)]
    """
    return _of(table).parts


def complete(table: Any, scope: str, window: str | Sequence[datetime]) -> bool:
    """Return whether a table has all results of a substream, or of all windows in a stretch of time.

    Args:
        table: a table of Delta or Iceberg, as for `completeness`.
        scope: the text of the scope; empty if the source has none.
        window: the name of the substream; or start and end, as in the column ``window`` of a collected row.

    >>> complete(DeltaTable("s3a://lake/daily"), "shop-1", row.window)                      # doctest: +SKIP
    True
    """
    return _of(table).has(scope, window)


def _of(table: Any) -> Completeness:
    if hasattr(table, "commit_notes"):
        from pyspark.sql import SparkSession

        return Completeness.of(table.commit_notes(SparkSession.active()))
    if hasattr(table, "history") and callable(getattr(table, "version", None)):  # deltalake's
        return Completeness.of(delta_notes(table.history(COMMITS)))
    return Completeness.of(_line(table))


def delta_notes(history: Iterable[Mapping[str, Any]]) -> Iterator[str | None]:
    """Yield the notes of a Delta table's commits.

    Args:
        history: the newest first. The notes from before a table was set back are not known.
    """
    for commit in history:
        if commit["operation"] == "RESTORE":
            return
        yield commit.get("userMetadata")


def _line(table: Any) -> Iterator[str | None]:
    """Yield the notes of a table of pyiceberg: of the current snapshot, and of those that it follows."""
    snapshot = table.current_snapshot()
    for _ in range(COMMITS):
        if snapshot is None:
            return
        yield snapshot.summary.additional_properties.get(NOTE)
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)


def _parts(note: str) -> list[Completed]:
    try:
        content = json.loads(note)
        names = [Completed(scope, name) for name, scopes in content.get("names", {}).items() for scope in scopes]
        windows = [(scope, name) for name, scopes in content.get("windows", {}).items() for scope in scopes]
    except (ValueError, TypeError, AttributeError):
        return []
    return names + [part for scope, name in windows for part in _windows(scope, name)]


def _listed(parts: Iterable[Completed]) -> str:
    """Return parts as fields of JSON, after others."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for part in parts:
        kinds.setdefault("names" if part.since is None else "windows", {}).setdefault(part.name, []).append(part.scope)
    return "".join(f', "{kind}": {json.dumps(found)}' for kind, found in kinds.items())


def _part(scope: str, name: str, end_time: int | None) -> list[Completed]:
    return [Completed(scope, name)] if end_time is None else _windows(scope, name)


def _windows(scope: str, name: str) -> list[Completed]:
    """Return the window of a name; nothing if it is none, or lies beyond what Python calls a time."""
    try:
        start, end = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in name.split("/"))
    except ValueError:
        return []
    return [Completed(scope, name, start, end)]


def _window(scope: str, start: datetime, end: datetime) -> Completed:
    name = "/".join(each.isoformat().replace("+00:00", "Z") for each in (start, end))
    return Completed(scope, name, start, end)


def _joined(stretches: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return stretches of time that have gaps between them."""
    joined: list[tuple[datetime, datetime]] = []
    for start, end in sorted(stretches):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _within(one: Completed, part: Completed) -> bool:
    if one.since is None or one.up_to is None or part.since is None or part.up_to is None:
        return one == part
    return _is_wall(one.since) == _is_wall(part.since) and part.since <= one.since and one.up_to <= part.up_to


def _is_wall(time: datetime) -> bool:
    """Return whether a time is a wall clock's, without a zone."""
    return time.tzinfo is None
