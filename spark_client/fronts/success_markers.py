"""`SuccessMarkers`: directories of files with a marker, as batch jobs write it when a directory is whole."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyspark.sql import SparkSession

from spark_client.errors import UsageError
from spark_client.fronts import timetable
from spark_client.fronts.counts import HowManyParts, LiveCounts, Parts
from spark_client.fronts.load_files import ByFiles, LiveFiles, Portion, ReadFiles, reason_of
from spark_client.spark_internals.checkpoints import FilesRead
from spark_client.storage.directories import local_path

_log = logging.getLogger("spark_client")

_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"  #: stands in a path for null


class SuccessMarkers(ByFiles):
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
        part: the column of the path that names the part of a load, such as the host that writes it: each part has a
            directory, and a marker.
        parts: how many parts a load has, their names, or the column of the path that has the number. A substream is
            closed when all of them have their marker.
        marker: the name of the file that marks a directory as whole; it begins with ``_`` or a dot.
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
        part: str | None = None,
        parts: HowManyParts = None,
        marker: str = "_SUCCESS",
        read: ReadFiles | None = None,
        empty: bool = False,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(path, when, scope, Parts(part, parts, type(self).__name__), read, revise, refresh)
        if not marker or "/" in marker or not marker.startswith(("_", ".")):
            raise UsageError(
                f"SuccessMarkers: marker={marker!r}: give the name of a file that begins with _ or ., which Spark does "
                "not read as data"
            )
        self.marker = marker
        self.empty = empty

    def live(self, spark: SparkSession) -> LiveCounts:
        return _LiveMarkers(self, spark)


class _LiveMarkers(LiveFiles):
    """A `SuccessMarkers` while its query runs."""

    front: SuccessMarkers
    failing = "the directories that have a marker cannot be read"

    def __init__(self, front: SuccessMarkers, spark: SparkSession) -> None:
        super().__init__(front, spark)
        self._path = local_path(front.path, "the path of SuccessMarkers,")
        self._markers: dict[str, int] = {}  # when the marker of a directory was written
        self._warned: set[tuple[str, str]] = set()  # directories, with the kind of the reason

    def visit(self, read: FilesRead) -> set[str]:
        marked = set()
        for directory, values in self._directories(self._path, {}):
            marker = Path(directory, self.front.marker)
            try:
                written = _changed(marker)
            except FileNotFoundError:
                continue
            marked.add(directory)
            if self._markers.get(directory) == written:
                continue
            files = _versions(directory)
            if newer := [file for file, changed in files.items() if changed > written]:
                self._warn(
                    directory,
                    "newer",
                    f"{len(newer)} files of {directory}, such as {os.path.basename(newer[0])}, are newer than its "
                    "marker, so nothing is promised of it: write the marker again when all files are there",
                )
                continue
            if replaced := read.replaced(files):
                self._warn(directory, "replaced", reason_of(replaced, directory))
                self._markers[directory] = written
                continue
            if not files and not self.front.empty:
                self._warn(
                    directory,
                    "empty",
                    f"{directory} has a marker and no files, so nothing is promised of it: if such a directory is "
                    "whole, give empty=True",
                )
                continue
            part, number = self.front.parts.of(values, directory)
            row = self.front.row(values, self.front.rows_in([*files]))
            if (_changed(marker), _versions(directory)) != (written, files):
                continue  # files come or go: the next look counts them
            counts = timetable.read(self._spark, [row], self._rule)
            # Spark reads the rows of two directories that are alike, so neither is a copy.
            own = frozenset([directory])
            self.put(directory, [Portion(directory, counts, part, dict.fromkeys(counts, number), own)])
            self._markers[directory] = written
        self._markers = {directory: written for directory, written in self._markers.items() if directory in marked}
        return marked

    def _warn(self, directory: str, kind: str, why: str) -> None:
        """Warn that nothing is promised of a directory; each reason once."""
        if (directory, kind) not in self._warned:
            self._warned.add((directory, kind))
            _log.warning("%r: %s", self.front, why)

    def _directories(self, path: Path | str, values: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the directories whose paths have all columns that are asked for, with the columns' values."""
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            column, equals, value = entry.name.partition("=")
            if not equals or entry.name.startswith(("_", ".")) or value == _NO_VALUE or not entry.is_dir():
                continue
            known = {**values, unquote(column): unquote(value)}
            if all(key in known for key in self.front.keys):
                yield entry.path, known
            else:
                yield from self._directories(entry.path, known)


def _changed(file: str | Path) -> int:
    """Return when a file was written or got its name: a copy that keeps times brings the first from elsewhere."""
    status = os.stat(file)
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _versions(directory: str) -> dict[str, int]:
    """Return the files that Spark reads beneath a directory, and when they have changed."""
    return {file: _changed(file) for file in sorted(_files(directory))}


def _files(directory: str) -> Iterator[str]:
    """Yield the files that Spark reads beneath a directory."""
    for place, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not _hidden(name)]
        yield from (os.path.join(place, name) for name in names if not _hidden(name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
