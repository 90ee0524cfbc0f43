"""`Manifests`: files that list what a load consists of."""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_client.errors import UsageError, check_faults
from spark_client.fronts import timetable
from spark_client.fronts.counts import HowManyParts, LiveCounts, Parts
from spark_client.fronts.front import READ_ONCE, SourceRows
from spark_client.fronts.load_files import ByFiles, LiveFiles, Portion, ReadFiles, reason_of
from spark_client.fronts.timetable import count_of
from spark_client.spark_internals.checkpoints import FilesRead
from spark_client.storage.directories import local_pattern
from spark_client.windows.substreams import Ability, Substream

_log = logging.getLogger("spark_client")

_DIGESTS: Final = ("md5", "sha1", "sha256", "sha512")
_Version: TypeAlias = tuple[int, int, int]  #: when a file was written, when it got its name, and its size
_URI: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")


class _DiffersError(Exception):
    """A file is not as its manifest lists it, or not yet."""


class _Listed(NamedTuple):
    """A file as a manifest lists it.

    Attributes:
        size: in bytes; None: any.
        digests: in hexadecimal digits, by the name of the algorithm.
    """

    place: str
    size: int | None
    digests: Mapping[str, str]

    def check(self, digest: Callable[[str, str], str]) -> None:
        """Compare the file that is there.

        Args:
            digest: returns that of a file, by its place and the algorithm.

        Raises:
            _DiffersError: it is not as it is listed.
        """
        if self.size is None and not self.digests:
            return
        if not os.path.exists(self.place):
            raise _DiffersError(f"{self.place} is not there")
        if self.size is not None and (size := os.path.getsize(self.place)) != self.size:
            raise _DiffersError(f"{self.place} has {size} bytes, and is listed with {self.size}")
        for name, listed in self.digests.items():
            if digest(self.place, name) != listed.lower():
                raise _DiffersError(f"{self.place} has another {name} than is listed")


class Manifests(ByFiles):
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
            opens. Their rows are counted where ``rows`` is missing. A file may be an object with its ``path``, and the
            ``size`` in bytes, ``md5``, ``sha1``, ``sha256`` or ``sha512`` that it has to have: nothing is promised of
            the manifest before.
        part: the field that names the part of a load which an entry is of, such as the host that wrote the manifest.
        parts: how many parts a load has, their names, or the field that has the number. A substream is closed when
            all of them are there. A part that comes twice alike is one.
        read: makes a DataFrame of files, to count their rows as the stream has them. None: they are Parquet or ORC,
            whose footers have it.
        revise: another count than before takes its place, while the substream is open; without, it is refused.
        refresh: seconds between two looks for manifests.

    >>> Manifests("/data/manifests/*.json", when="load")
    Manifests('/data/manifests/*.json')
    """

    trusts = f"a manifest names all files or rows of its load, and {READ_ONCE}"

    def __init__(
        self,
        path: str | os.PathLike[str],
        when: str | None = None,
        scope: str | None = None,
        *,
        rows: str = "rows",
        files: str = "files",
        part: str | None = None,
        parts: HowManyParts = None,
        read: ReadFiles | None = None,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(path, when, scope, Parts(part, parts, type(self).__name__), read, revise, refresh)
        self.rows = rows
        self.files = files
        check_faults(
            f"{self!r}:",
            (when is None and part is not None, "a manifest's name has no part: give when='field' of the entries"),
            (
                os.path.splitext(self.path)[1] not in (".json", ".jsonl", ".csv", ".parquet"),
                "give the pattern of files whose names end in .json, .jsonl, .csv or .parquet, such as "
                "'/data/manifests/*.json'",
            ),
        )

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        if self.when is None:
            source.rule.require(Ability.NAMES, repr(self))
            if self.scope is not None:
                raise UsageError(f"{self!r}: a manifest's name has no scope: give when='field' of the entries")

    def live(self, spark: SparkSession) -> LiveCounts:
        return _LiveManifests(self, spark)


class _LiveManifests(LiveFiles):
    """A `Manifests` while its query runs."""

    front: Manifests
    failing = "the manifests cannot be read"

    def __init__(self, front: Manifests, spark: SparkSession) -> None:
        super().__init__(front, spark)
        self._pattern = local_pattern(front.path, "the manifests")
        self._versions: dict[str, _Version] = {}  # of manifests
        self._digests: dict[tuple[str, _Version, str], str] = {}  # of versions of files
        self._warned: set[str] = set()

    def visit(self, read: FilesRead) -> set[str]:
        places = set()
        for place in sorted(glob.glob(self._pattern, recursive=True)):
            if os.path.basename(place).startswith(("_", ".")):
                continue
            status = os.stat(place)
            if not status.st_size:
                continue  # it has just been opened
            places.add(place)
            version = _version(status)
            if self._versions.get(place) == version:
                continue
            try:
                portions = self._portions(place)
            except _DiffersError as differs:
                if str(differs) not in self._warned:
                    self._warned.add(str(differs))
                    _log.warning("%r: nothing is promised of manifest %s: %s", self.front, place, differs)
                self.put(place, [])
                continue  # the next look may find the file as it is listed
            self._versions[place] = version
            if replaced := read.replaced(file for each in portions for file in each.files if os.path.exists(file)):
                _log.warning("%r: %s", self.front, reason_of(replaced, f"manifest {place}"))
                portions = []
            self.put(place, portions)
        self._versions = {place: version for place, version in self._versions.items() if place in places}
        return places

    def _digest(self, file: str, algorithm: str) -> str:
        known = file, _version(os.stat(file)), algorithm
        if known not in self._digests:
            with open(file, "rb") as content:
                self._digests[known] = hashlib.file_digest(content, algorithm).hexdigest()
        return self._digests[known]

    def _portions(self, place: str) -> list[Portion]:
        """Read a manifest: its counts by part, and the files that it names.

        Raises:
            _DiffersError: a file is not as it is listed.
        """
        front = self.front
        named: dict[str, set[str]] = {}
        rows: list[Sequence[Any]] = []
        for entry in _entries(place):
            if missing := [key for key in front.keys if entry.get(key) in (None, "")]:
                raise UsageError(f"manifest {place}: an entry has no {missing[0]!r}, which the front names: {entry}")
            count, listed = count_of(entry.get(front.rows)), entry.get(front.files)
            counted = count not in (None, "")
            if not counted and listed in (None, ""):
                raise UsageError(
                    f"manifest {place}: an entry has neither {front.rows!r} nor {front.files!r}: {entry}. Give one"
                )
            part, number = front.parts.of(entry, f"manifest {place}")
            names = [listed] if isinstance(listed, str | Mapping) else list(listed or [])
            some = [self._listed(place, each) for each in names]
            for each in some:
                each.check(self._digest)
            files = [each.place for each in some if _is_local(each.place) or not counted]
            if not counted:
                self._check_footers(place, files)
                count = front.rows_in(files)
            named.setdefault(part, set()).update(files)
            rows.append([*front.row(entry, count), part, number])
        if front.when is None:
            if not rows:  # it may be half of one, which is read again
                raise ValueError(f'manifest {place} has no entry: write {{"{front.rows}": 0}} if its load has no rows')
            name = front.rule.when_of(os.path.splitext(os.path.basename(place))[0], repr(front))
            rows = [[name, *row] for row in rows]
        counts: dict[str, dict[Substream, int]] = {part: {} for part in named}
        numbers: dict[str, dict[Substream, int]] = {part: {} for part in named}
        for substream, given in timetable.by_part(self._spark, rows, front.rule, ("part", "parts")).items():
            for count, beside in given:
                own, most = counts[beside["part"]], numbers[beside["part"]]
                own[substream] = own.get(substream, 0) + count
                most[substream] = max(most.get(substream, 0), beside["parts"])
        return [Portion(place, counts[part], part, numbers[part], frozenset(named[part])) for part in named]

    def _check_footers(self, place: str, files: Iterable[str]) -> None:
        if self.front.read_files is None and (others := [file for file in files if not _is_local(file)]):
            raise UsageError(
                f"manifest {place}: {others[0]} is no path, and its footer can be read of a path only: have the "
                f"manifest give the number of rows ({self.front.rows!r}), or give read=lambda files: "
                "spark.read.parquet(*files)"
            )

    def _listed(self, place: str, listed: str | Mapping[str, Any]) -> _Listed:
        """Return a file that a manifest lists, by its path from the manifest's on, or by a URI."""
        given = {"path": listed} if not isinstance(listed, Mapping) else listed
        name, size = given.get("path"), count_of(given.get("size"))
        if not isinstance(name, str) or not isinstance(size, int | None):
            raise UsageError(f"manifest {place}: a file is {listed!r}: give its path, or an object with path and size")
        digests = {key: str(given[key]) for key in _DIGESTS if given.get(key) is not None}
        if _is_local(name):
            local = local_pattern(name, f"manifest {place}:") if _URI.match(name) else name
            return _Listed(os.path.join(os.path.dirname(place), local), size, digests)
        if size is not None or digests:
            raise UsageError(
                f"manifest {place}: {name} is no path, so its size and digests cannot be read: leave them out"
            )
        return _Listed(name, None, {})


def _version(status: os.stat_result) -> _Version:
    """Return what tells a file from others that get its name, also by a copy that keeps times."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _is_local(name: str) -> bool:
    return not _URI.match(name) or name.lower().startswith("file:")


def _entries(place: str) -> Iterable[Mapping[str, Any]]:
    """Return the entries of a manifest."""
    suffix = os.path.splitext(place)[1]
    if suffix == ".parquet":
        entries: list[Mapping[str, Any]] = pq.ParquetFile(place).read().to_pylist()
        return entries
    with open(place, encoding="utf-8-sig", newline="") as file:  # some programs write a mark of the order of bytes
        if suffix == ".csv":
            return list(csv.DictReader(file))
        text = file.read()
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = [json.loads(line) for line in text.split("\n") if line.strip()]
    entries = content if isinstance(content, list) else [content]
    if wrong := [entry for entry in entries if not isinstance(entry, dict)]:
        raise UsageError(
            f"manifest {place}: an entry is {wrong[0]!r}: write an object with fields for each, such as "
            '{"load": "17", "rows": 1204}'
        )
    return entries
