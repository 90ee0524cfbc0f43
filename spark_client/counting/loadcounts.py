"""Counts from what a load has left beside its files: markers in its directories, and manifests.

Files whose rows nobody has written down are counted: by their footers, or as the user's own reader reads them.
"""

from __future__ import annotations

import csv
import glob
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_client.counting.countreaders import Found
from spark_client.counting.givenvalues import as_column_has_it, count_of, when_of
from spark_client.errors import UsageError
from spark_client.plan import timetable
from spark_client.plan.loads import Manifests, ReadFiles, SuccessMarkers
from spark_client.spark_internals.file_log import FilesRead
from spark_client.storage.directories import local_path, local_pattern
from spark_client.windows.substreams import Substream, Substreams

_log = logging.getLogger("spark_client")

_URI: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"  #: stands in a path for null


class _Parts:
    """The counts that were found in each place, and what they come to.

    Attributes:
        changed: whether something is new since they were added up.
    """

    def __init__(self, front: object) -> None:
        self._front = front
        self._found: dict[str, dict[Substream, int]] = {}
        self.changed = False

    def put(self, place: str, counts: dict[Substream, int]) -> None:
        """Look at what is in a place now."""
        self._found[place] = counts
        self.changed = True

    def keep_only(self, places: Set[str]) -> None:
        """Forget what was found where nothing is any more, as when another place has come instead."""
        self._found = {place: counts for place, counts in self._found.items() if place in places}

    def all(self) -> dict[Substream, int]:
        """Return all of it.

        Raises:
            UsageError: two places have one substream, so nobody can tell whether there are others.
        """
        places: dict[Substream, str] = {}
        counts: dict[Substream, int] = {}
        for place, found in self._found.items():
            for substream, count in found.items():
                if substream in places:
                    raise UsageError(
                        f"{self._front!r}: {places[substream]} and {place} are both of {substream.name!r} of scope "
                        f"{substream.scope!r}, so nobody can tell when all of it is there: give each substream one "
                        "place, or windows that are as short"
                    )
                places[substream] = place
                counts[substream] = count
        self.changed = False
        return counts


class MarkerCounts:
    """The rows of directories that have a marker.

    Args:
        front: that is promised, bound to its source.
        spark: the session, in which times are read.
        checkpoints: of the queries that read the source; others may be added.
    """

    failing = "the directories that have a marker cannot be read"

    def __init__(self, front: SuccessMarkers, spark: SparkSession, checkpoints: Set[Path]) -> None:
        self._front = front
        self._checkpoints = checkpoints
        self._spark = spark
        self._path = local_path(front.path, "the path of SuccessMarkers,")
        self._keys = [key for key in (front.scope, front.when) if key is not None]
        self._markers: dict[str, int] = {}  # when the marker of a directory was written
        self._warned: set[tuple[str, str]] = set()  # directories, with the kind of the reason
        self._parts = _Parts(front)

    def read(self) -> Found | None:
        """Count the directories whose markers are new.

        Raises:
            UsageError: two of them are of one substream, or their files cannot be counted.
        """
        marked = set()
        read = FilesRead(self._checkpoints)
        for directory, values in self._directories(self._path, {}):
            marker = Path(directory, self._front.marker)
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
                self._warn(directory, "replaced", _reason(replaced, directory))
                self._markers[directory] = written
                continue
            if not files and not self._front.empty:
                self._warn(
                    directory,
                    "empty",
                    f"{directory} has a marker and no files, so nothing is promised of it: if such a directory is "
                    "whole, give empty=True",
                )
                continue
            row = _row(values, self._keys, rows_in(list(files), self._front.read_files, repr(self._front)))
            if (_changed(marker), _versions(directory)) != (written, files):
                continue  # files come or go: the next look counts them
            self._parts.put(directory, timetable.read(self._spark, [_in_form(row, self._front)], self._front.rule))
            self._markers[directory] = written
        self._markers = {directory: written for directory, written in self._markers.items() if directory in marked}
        self._parts.keep_only(marked)
        return Found(self._parts.all()) if self._parts.changed else None

    def _warn(self, directory: str, kind: str, why: str) -> None:
        """Tell why nothing is promised of a directory; each reason once."""
        if (directory, kind) not in self._warned:
            self._warned.add((directory, kind))
            _log.warning("%r: %s", self._front, why)

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
            if all(key in known for key in self._keys):
                yield entry.path, known
            else:
                yield from self._directories(entry.path, known)


class ManifestCounts:
    """The rows that manifests have.

    Args:
        front: that is promised, bound to its source.
        spark: the session, in which times are read.
        checkpoints: of the queries that read the source; others may be added.
    """

    failing = "the manifests cannot be read"

    def __init__(self, front: Manifests, spark: SparkSession, checkpoints: Set[Path]) -> None:
        self._front = front
        self._checkpoints = checkpoints
        self._spark = spark
        self._pattern = local_pattern(front.path, "the manifests")
        self._known: dict[str, tuple[int, int]] = {}  # when a manifest was written, and its size
        self._parts = _Parts(front)

    def read(self) -> Found | None:
        """Read the manifests that are new, or have changed.

        Raises:
            UsageError: an entry lacks what is needed, or two manifests are of one substream.
        """
        places = set()
        read = FilesRead(self._checkpoints)
        for place in sorted(glob.glob(self._pattern, recursive=True)):
            if os.path.basename(place).startswith(("_", ".")):
                continue
            status = os.stat(place)
            if not status.st_size:
                continue  # it has just been opened
            places.add(place)
            version = status.st_mtime_ns, status.st_size
            if self._known.get(place) == version:
                continue
            counts, files = self._counts(place)
            self._known[place] = version
            if replaced := read.replaced(file for file in files if os.path.exists(file)):
                _log.warning("%r: %s", self._front, _reason(replaced, f"manifest {place}"))
                counts = {}
            self._parts.put(place, counts)
        self._known = {place: version for place, version in self._known.items() if place in places}
        self._parts.keep_only(places)
        return Found(self._parts.all()) if self._parts.changed else None

    def _counts(self, place: str) -> tuple[dict[Substream, int], list[str]]:
        """Read a manifest: its counts, and the files that it names."""
        front = self._front
        named: list[str] = []
        keys = [key for key in (front.scope, front.when) if key is not None]
        rows = []
        for entry in _entries(place):
            if missing := [key for key in keys if entry.get(key) in (None, "")]:
                raise UsageError(f"manifest {place}: an entry has no {missing[0]!r}: {entry}")
            count, listed = count_of(entry.get(front.rows)), entry.get(front.files)
            counted = count not in (None, "")
            if not counted and listed in (None, ""):
                raise UsageError(f"manifest {place}: an entry has neither {front.rows!r} nor {front.files!r}: {entry}")
            names = [listed] if isinstance(listed, str) else list(listed or [])
            files = [self._file(place, name) for name in names if _is_local(name) or not counted]
            if not counted:
                count = rows_in(files, front.read_files, repr(front))
            named += files
            rows.append(_in_form(_row(entry, keys, count), front))
        if front.when is None:
            if not rows:  # it may be half of one, which is read again
                raise ValueError(f'manifest {place} has no entry: write {{"{front.rows}": 0}} if its load has no rows')
            name = as_column_has_it(os.path.splitext(os.path.basename(place))[0], front.rule.name_type)
            rows = [[name, sum(row[-1] for row in rows)]]
        return timetable.added_up(self._spark, rows, front.rule), named

    def _file(self, place: str, name: str) -> str:
        """Return a file that a manifest names: by its path, from the manifest's on, or by a URI."""
        if not _URI.match(name):
            return os.path.join(os.path.dirname(place), name)
        if _is_local(name):
            return local_pattern(name, f"manifest {place}:")
        if self._front.read_files is None:
            raise UsageError(
                f"manifest {place}: {name} is no path, and its footer can be read of a path only: have the manifest "
                f"give the number of rows ({self._front.rows!r}), or give read=lambda files: spark.read.parquet(*files)"
            )
        return name


def _is_local(name: str) -> bool:
    return not _URI.match(name) or name.lower().startswith("file:")


def _reason(replaced: Sequence[str], place: str) -> str:
    """Return why nothing is promised of a place some of whose files were replaced."""
    return (
        f"{len(replaced)} files of {place}, such as {os.path.basename(replaced[0])}, have changed since Spark found "
        "them to read them, and Spark reads no file twice, so nothing is promised: abandon the substream and load it "
        "again under another name, with files of other names"
    )


def _row(values: Mapping[str, Any], keys: Sequence[str], count: Any) -> list[Any]:
    """Return a row of a schedule: the scope, if there is one, the name or time, and the count."""
    return [*[values[key] for key in keys], count]


def _in_form(row: list[Any], front: SuccessMarkers | Manifests) -> list[Any]:
    """Return the row with values as a schedule takes them."""
    rule: Substreams = front.rule
    if front.scope is not None:
        row[0] = as_column_has_it(str(row[0]), rule.scope_type)
    if front.when is not None:
        value = row[-2]
        row[-2] = when_of(value if rule.windows else str(value), rule, repr(front))
    return row


def _entries(place: str) -> Iterable[Mapping[str, Any]]:
    """Return the entries of a manifest."""
    suffix = os.path.splitext(place)[1]
    if suffix == ".parquet":
        entries: list[Mapping[str, Any]] = pq.ParquetFile(place).read().to_pylist()
        return entries
    with open(place, encoding="utf-8", newline="") as file:
        if suffix == ".csv":
            return list(csv.DictReader(file))
        text = file.read()
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = [json.loads(line) for line in text.split("\n") if line.strip()]
    entries = content if isinstance(content, list) else [content]
    if wrong := [entry for entry in entries if not isinstance(entry, dict)]:
        raise UsageError(f"manifest {place}: an entry is no object with fields: {wrong[0]!r}")
    return entries


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


def rows_in(files: list[str], read: ReadFiles | None, where: str) -> int:
    """Return how many rows files have.

    Args:
        files: their paths.
        read: makes a DataFrame of them; None: they are of a format whose footers have it.
        where: for the message.

    Raises:
        UsageError: the format has no such footers.
    """
    if read is not None:
        return read(files).count() if files else 0
    rows = 0
    for file in files:
        if file.endswith(".parquet"):
            rows += pq.read_metadata(file).num_rows
        elif file.endswith(".orc"):
            from pyarrow import orc

            rows += orc.ORCFile(file).nrows
        else:
            raise UsageError(
                f"{where}: {file} is neither Parquet nor ORC, so its rows have to be counted as the stream reads them: "
                "give read=lambda files: spark.read.schema(…).json(files)"
            )
    return rows
