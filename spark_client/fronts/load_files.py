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
from typing import Any, TypeAlias

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_client.columns import as_column_has_it
from spark_client.errors import UsageError
from spark_client.fronts.counts import ByCount, Found, LiveCounts
from spark_client.fronts.front import SourceRows
from spark_client.spark_internals.checkpoints import FilesRead
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Ability, Substream

ReadFiles: TypeAlias = Callable[[list[str]], DataFrame]


class ByFiles(ByCount):
    """Base of fronts that count the rows of a load's files: see `SuccessMarkers` and `Manifests`."""

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
        """The columns or fields that have the scope, and the name or time."""
        return [key for key in (self.scope, self.when) if key is not None]

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
        self._places: dict[str, dict[Substream, int]] = {}
        self._changed = False

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:
        self._checkpoint = checkpoint
        super().look(checkpoint, epoch, at_once)

    def find(self) -> Found | None:
        assert self._checkpoint is not None, "a query looks"
        there = self.visit(FilesRead(self._checkpoint))
        # What was found where nothing is any more is forgotten, as when another place has come instead.
        self._places = {place: counts for place, counts in self._places.items() if place in there}
        return Found(self._all()) if self._changed else None

    @abstractmethod
    def visit(self, read: FilesRead) -> set[str]:
        """Look at what is new, and `put` what it comes to.

        Args:
            read: the files that Spark has read.

        Returns:
            All places that are there.
        """

    def put(self, place: str, counts: dict[Substream, int]) -> None:
        """Keep what is in a place now."""
        self._places[place] = counts
        self._changed = True

    def _all(self) -> dict[Substream, int]:
        """Return the counts of all places.

        Raises:
            UsageError: two places have one substream, so nobody can tell whether there are others.
        """
        places: dict[Substream, str] = {}
        counts: dict[Substream, int] = {}
        for place, found in self._places.items():
            for substream, count in found.items():
                if substream in places:
                    raise UsageError(
                        f"{self.front!r}: {places[substream]} and {place} are both of {substream.name!r} of scope "
                        f"{substream.scope!r}, so it is not certain when all of it is there: give each substream one "
                        "place, or windows that are as short"
                    )
                places[substream] = place
                counts[substream] = count
        self._changed = False
        return counts


def reason_of(replaced: Sequence[str], place: str) -> str:
    """Return why nothing is promised of a place some of whose files were replaced."""
    return (
        f"{len(replaced)} files of {place}, such as {os.path.basename(replaced[0])}, have changed since Spark found "
        "them to read them, and Spark reads no file twice, so nothing is promised: abandon the substream and load it "
        "again under another name, with files of other names"
    )
