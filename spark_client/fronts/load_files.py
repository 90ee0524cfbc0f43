"""Counts of a load's files: what markers and manifests of loads have in common.

Rows are counted, not files, so it does not matter whether the promise is found before or after the rows, and in which
batches they come. Files whose rows nobody has written down are counted: by their footers, or as the user's own reader
reads them.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_client.columns import as_column_has_it
from spark_client.errors import UsageError
from spark_client.fronts.counts import ByCount, Found, LiveCounts, Parts
from spark_client.fronts.front import SourceRows
from spark_client.spark_internals.checkpoints import FilesRead
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Ability, Substream

ReadFiles: TypeAlias = Callable[[list[str]], DataFrame]


class Portion(NamedTuple):
    """Counts that a place has of one part of loads.

    Attributes:
        place: the manifest, or directory.
        counts: the rows of each substream.
        part: whose they are; empty if loads do not come in parts.
        parts: how many parts each substream has, by what is known here.
        files: those that it names, or is; two portions of a part that differ in them are not the same.
    """

    place: str
    counts: Mapping[Substream, int]
    part: str
    parts: Mapping[Substream, int]
    files: frozenset[str] = frozenset()


class ByFiles(ByCount):
    """Base of fronts that count the rows of a load's files: see `SuccessMarkers` and `Manifests`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        when: str | None,
        scope: str | None,
        parts: Parts,
        read: ReadFiles | None,
        revise: bool,
        refresh: float,
    ) -> None:
        super().__init__(revise, refresh)
        self.path = os.fspath(path)
        self.when = when
        self.scope = scope
        self.parts = parts
        self.read_files = read

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        if (self.scope is None) != (source.rule.scope is None):
            have, has_not = ("this front", "the source") if source.rule.scope is None else ("the source", "this front")
            raise UsageError(
                f"{self!r}: {have} has a scope, and {has_not} has none: give scope= to both, or to neither"
            )
        source.rule.require(Ability.ZONE, repr(self))

    def row(self, values: Mapping[str, Any], count: Any) -> list[Any]:
        """Return a row of a schedule: the scope, if there is one, the name or time, and the count.

        Args:
            values: the scope and the name or time, by the columns or fields that have them.
        """
        row = []
        if self.scope is not None:
            row.append(as_column_has_it(str(values[self.scope]), self.rule.scope_type))
        if self.when is not None:
            value = values[self.when]
            row.append(self.rule.when_of(value if value is None or isinstance(value, date) else str(value), repr(self)))
        return [*row, count]

    @property
    def keys(self) -> list[str]:
        """The columns or fields that have the scope, the name or time, and the part."""
        return [key for key in (self.scope, self.when, *self.parts.keys) if key is not None]

    def rows_in(self, files: list[str]) -> int:
        """Return how many rows files have.

        Raises:
            UsageError: they are of a format whose footers do not have it, and `read` was not given.
        """
        if self.read_files is not None:
            return self.read_files(files).count() if files else 0
        rows = 0
        for file in files:
            if file.endswith(".parquet"):
                rows += pq.read_metadata(file).num_rows
            elif file.endswith(".orc"):
                from pyarrow import orc

                rows += orc.ORCFile(file).nrows
            else:
                raise UsageError(
                    f"{self!r}: {file} is neither Parquet nor ORC, so its rows have to be counted as the stream "
                    "reads them: give read=lambda files: spark.read.schema(…).json(files)"
                )
        return rows


class LiveFiles(LiveCounts):
    """A front by files while its query runs: the counts that were found in each place, and what they come to."""

    front: ByFiles

    def __init__(self, front: ByCount, spark: SparkSession) -> None:
        super().__init__(front, spark)
        self._checkpoint: Folder | None = None  # of the query that reads its source
        self._places: dict[str, Sequence[Portion]] = {}
        self._changed = False

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:
        self._checkpoint = checkpoint
        super().look(checkpoint, epoch, at_once)

    def find(self) -> Found | None:
        assert self._checkpoint is not None, "a query looks"
        there = self.visit(FilesRead(self._checkpoint))
        # Counts of a place that is gone are forgotten, as when another place has come instead.
        self._places = {place: portions for place, portions in self._places.items() if place in there}
        return Found(self._all()) if self._changed else None

    @abstractmethod
    def visit(self, read: FilesRead) -> set[str]:
        """Look at what is new, and `put` what it comes to.

        Args:
            read: the files that Spark has read.

        Returns:
            All places that are there.
        """

    def put(self, place: str, portions: Sequence[Portion]) -> None:
        """Keep what is in a place now."""
        self._places[place] = portions
        self._changed = True

    def _all(self) -> dict[Substream, int]:
        """Return the counts of the substreams of which all parts are there.

        Raises:
            UsageError: two places have one part of a substream, so nobody can tell whether there are others.
        """
        found: dict[Substream, dict[str, list[Portion]]] = {}
        for portion in chain.from_iterable(self._places.values()):
            for substream in portion.counts:
                same = found.setdefault(substream, {}).setdefault(portion.part, [])
                same.append(portion)
                self._check_alike(substream, same[0], portion)
        counts = {}
        for each, parts in found.items():
            numbers = {part: max(one.parts[each] for one in same) for part, same in parts.items()}
            if self.front.parts.are_all(each, numbers):
                counts[each] = sum(same[0].counts[each] for same in parts.values())
        self._changed = False
        return counts

    def _check_alike(self, substream: Substream, first: Portion, other: Portion) -> None:
        """Refuse two portions of one part that are no copies of one another."""
        is_copy = first.part and (first.counts[substream], first.files) == (other.counts[substream], other.files)
        if other is not first and not is_copy:
            part = f"part {first.part!r} of " if first.part else ""
            raise UsageError(
                f"{self.front!r}: {first.place} and {other.place} are both of {part}{substream.name!r} of scope "
                f"{substream.scope!r}, so it is not certain when all of it is there: give each substream one place, "
                "its parts with part= and parts=, or windows that are as short"
            )


def reason_of(replaced: Sequence[str], place: str) -> str:
    """Return why nothing is promised of a place some of whose files were replaced."""
    return (
        f"{len(replaced)} files of {place}, such as {os.path.basename(replaced[0])}, have changed since Spark found "
        "them to read them, and Spark reads no file twice, so nothing is promised: abandon the substream and load it "
        "again under another name, with files of other names"
    )
