"""Fronts whose counts somebody has left beside the data: markers and manifests of loads, and control tables.

Each is a `ByCount`: rows are counted, not files, so it does not matter whether the promise is found before or after
the rows, and in which batches they come.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame

from spark_client.errors import UsageError
from spark_client.plan.schedule import ByCount
from spark_client.windows.substreams import Substreams

ReadFiles: TypeAlias = Callable[[list[str]], DataFrame]


class _OfFiles(ByCount):
    """What counts the rows of files that are named: see `SuccessMarkers` and `Manifests`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        when: str | None,
        scope: str | None,
        read: ReadFiles | None,
        revise: bool,
        refresh: float,
    ) -> None:
        super().__init__(revise, refresh)
        self.path = os.fspath(path)
        self.when = when
        self.scope = scope
        self.read_files = read

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        if (self.scope is None) != (rule.scope is None):
            have, has_not = ("this front", "the source") if rule.scope is None else ("the source", "this front")
            raise UsageError(
                f"{self!r}: {have} has a scope, and {has_not} has none: give scope= to both, or to neither"
            )
        if rule.calendar is not None and rule.calendar.by_row:
            raise UsageError(
                f"{self!r}: each row of the source has a time zone of its own, which no directory and no manifest has: "
                "give Schedule(function), with rows of (scope, when, count, zone)"
            )


class SuccessMarkers(_OfFiles):
    """Directories with a marker: trusts that a directory's files were all there before its marker.

    A directory such as ``dt=2026-03-01`` with a file ``_SUCCESS`` closes the substream that its path names, once as
    many rows of it were read as its files have. So it does not matter that Spark may find the marker before it has read
    the files. Where a file is newer than the marker, or came under its name after it, nothing is promised until there
    is a newer marker; nor where there are no files, since the first may be on its way.

    Args:
        path: the directory that the source reads, on a file system that the driver sees as a path.
        when: the column of the path (``dt``) that names the substream, or a time in its window: a date where windows
            are days, or a time in ISO 8601.
        scope: the column of the path that has the scope, if the source has one.
        marker: the marker's name.
        read: makes a DataFrame of a directory's files, to count its rows as the stream has them:
            ``lambda files: spark.read.schema(S).json(files)``. None: files are Parquet or ORC, whose footers have it.
        empty: a directory with a marker and without any file has 0 rows. Only where the marker never comes before the
            files.
        revise: another count than before takes its place, while the substream is open; without, it is refused.
        refresh: seconds between two looks at the directory.

    >>> SuccessMarkers("/data/in", when="dt")
    SuccessMarkers('/data/in')
    """

    trusts = "a directory's files are all there before its marker, and stay as they are"

    def __init__(
        self,
        path: str | os.PathLike[str],
        when: str,
        scope: str | None = None,
        *,
        marker: str = "_SUCCESS",
        read: ReadFiles | None = None,
        empty: bool = False,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(path, when, scope, read, revise, refresh)
        if not marker or "/" in marker or not marker.startswith(("_", ".")):
            raise UsageError(
                f"SuccessMarkers: marker={marker!r}: give the name of a file that begins with _ or ., which Spark does "
                "not read as data"
            )
        self.marker = marker
        self.empty = empty


class Manifests(_OfFiles):
    """Manifests of loads: trusts that each names all files of its load, or how many rows they have, when it appears.

    A manifest is a JSON (an object, a list, or a line for each), CSV or Parquet file. Its entries have the number of
    rows (``rows``), or files whose rows are counted (``files``: one, or a list). Entries of one substream are added up.
    Write it under another name first and rename it: half of a file of lines, CSV or JSON, cannot be told from a whole
    one.

    Args:
        path: the manifests, as a pattern: ``/data/manifests/*.json``.
        when: the field of an entry that names the substream, or a time in its window: a date where windows are days,
            or a time in ISO 8601. None: a manifest is of the substream with its own name, without the suffix.
        scope: the field that has the scope, if the source has one.
        rows: the field that has the number of rows.
        files: the field that has files: paths relative to the manifest, ``file:`` URIs, or with `read` any that Spark
            opens. Used where ``rows`` is missing.
        read: makes a DataFrame of files, to count their rows as the stream has them. None: they are Parquet or ORC,
            whose footers have it.
        revise: another count than before takes its place, while the substream is open; without, it is refused.
        refresh: seconds between two looks for manifests.

    >>> Manifests("/data/manifests/*.json", when="load")
    Manifests('/data/manifests/*.json')
    """

    trusts = "a manifest names all files or rows of its load, and no row is read twice"

    def __init__(
        self,
        path: str | os.PathLike[str],
        when: str | None = None,
        scope: str | None = None,
        *,
        rows: str = "rows",
        files: str = "files",
        read: ReadFiles | None = None,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(path, when, scope, read, revise, refresh)
        self.rows = rows
        self.files = files
        if os.path.splitext(self.path)[1] not in (".json", ".jsonl", ".csv", ".parquet"):
            raise UsageError(
                f"Manifests: {self.path!r}: give the pattern of files whose names end in .json, .jsonl, .csv or "
                ".parquet, such as '/data/manifests/*.json'"
            )

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        if self.when is None and (rule.windows or self.scope is not None):
            raise UsageError(
                f"{self!r}: a manifest's name is that of a substream without a scope, and this source has windows, or "
                "scopes: give when='field' of the entries"
            )


class ControlTable(ByCount):
    """A control table of a database: trusts the counts that it has, and the time up to which it says they are all.

    Args:
        connect: makes a DB-API 2 connection; called in the driver, at every look.
        select: the statement that returns all rows of (scope, when, count), or of (when, count) if the source has no
            scope. `when` is the substream's name, or a time in its window, as in `Schedule`; a text is one in ISO 8601.
        through: a statement that returns one time, or null: up to its window the counts are complete, and what is not
            among them has no rows. It runs before `select`, so a count that is written together with the time, or
            before it, is not missed.
        revise: another count than before takes its place, while the substream is open; without, it is refused.
        refresh: seconds between two looks at the table.

    >>> import psycopg                                                                        # doctest: +SKIP
    >>> ControlTable(lambda: psycopg.connect(dsn), "select shop, day, orders from control")   # doctest: +SKIP
    """

    trusts = "the table's counts, and that no row is read twice; with `through`, that nothing else comes up to it"

    def __init__(
        self,
        connect: Callable[[], Any],
        select: str,
        *,
        through: str | None = None,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(revise, refresh)
        if not callable(connect):
            raise UsageError(
                "ControlTable: connect= is a function that makes a connection: lambda: psycopg.connect(dsn)"
            )
        self.connect = connect
        self.select = select
        self.through = through
        self.moves_progress = through is not None

    def __repr__(self) -> str:
        return f"ControlTable({self.select!r})"

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        if self.through is not None and (not rule.windows or (rule.calendar is not None and rule.calendar.by_row)):
            raise UsageError(
                f"{self!r}: through= is a time, for windows that all rows have in common: leave it out for named "
                "substreams, or zones of each row"
            )
