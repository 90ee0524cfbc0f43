"""Early results of a release: what its open substreams would be released as, if they ended now.

They are made of the rows of batches before the one in hand, which are committed, and of which none was late. So
whatever driver writes them, those of one moment are the same; each is of a key that has a final result later; and the
final result is made of all their rows, and more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_client.destinations.destination import EarlyOutput
from spark_client.errors import TrackingError, UsageError
from spark_client.release.aggregation import only
from spark_client.release.parts import NOTE, versions_of
from spark_client.release.state import PartialState
from spark_client.storage.directories import WHOLE
from spark_client.storage.folder import Folder, newest_of
from spark_client.windows.substreams import Substream, Substreams


class EarlyResults:
    """Writer of one release's early results, at most every so often.

    Args:
        every: microseconds that lie at least between two writings.
        rows: the rows of some substreams, of some parts of the state each: (session, parts by substream, as_of).
    """

    def __init__(
        self,
        state: PartialState,
        output: EarlyOutput,
        every: int,
        rows: Callable[[SparkSession, Mapping[Substream, Sequence[str]], int], DataFrame],
    ) -> None:
        self._state = state
        self._output = output
        self._every = every / 1_000_000
        self._rows = rows
        self._changed: set[Substream] | None = None  # since they were written; None: since somebody else has
        self._touched: set[Substream] = set()  # by the batch in hand
        self._due = 0.0

    def touched(self, substreams: Iterable[Substream]) -> None:
        """Note that the batch in hand has rows of some substreams."""
        self._touched = set(substreams)

    def write(self, query: str, epoch: int, spark: SparkSession) -> None:
        """Show what was open before a batch and is open yet, if it is time; its state is published."""
        changed, touched, now = self._changed, self._touched, time.monotonic()
        self._touched = set()
        if now < self._due or not epoch:
            self._changed = None if changed is None else changed | touched
            return
        state = self._state
        shown = state.substreams if changed is None or self._output.takes_all else changed & state.substreams
        parts = {each: [name for last, name in state.of(each) if last < epoch] for each in shown}
        wanted = {each: names for each, names in parts.items() if state.has_rows(each, names)}
        if wanted or self._output.takes_all:
            self._output.write_early(self._rows(spark, wanted, epoch - 1), query, epoch - 1)
        self._changed, self._due = touched, now + self._every


def early_rows(spark: SparkSession, checkpoint: Folder, kept: Folder, path: Folder | None) -> DataFrame:
    """Return the newest early results of a release that writes files: of what is open yet.

    Args:
        kept: where the release keeps what is its own.
        path: where its early results are; None: there, too.

    Raises:
        UsageError: there are none yet.
    """
    query = (checkpoint / "tracker").read(NOTE)
    if query is None:
        raise UsageError(
            f"{checkpoint} is no checkpoint of a tracked query that has been started: give its checkpointLocation"
        )
    rule = Substreams.from_json(query["substreams"])
    newest = newest_of(path or kept / "early")
    if newest is None:
        raise UsageError(
            f"{path or kept / 'early'} has no early results: a release(…, early=…) into files writes them from its "
            "second batch on; give early_path if the query has that option"
        )
    rows = spark.read.options(**WHOLE).parquet(newest)
    still = _open(kept / "state")
    found = only(rows, rule, still) if still else rows.limit(0)
    return found.drop("_scope", "_key")


def _open(folder: Folder) -> set[Substream]:
    """Return what has not ended after the last batch whose state is published."""
    while True:
        versions = versions_of(folder.names())
        if not versions:
            return set()
        try:
            _, parts = versions[-1].read(folder)
        except TrackingError:
            if versions_of(folder.names())[-1] == versions[-1]:  # else the next one has been published meanwhile
                raise
        else:
            return {substream for part in parts.values() for substream in part.live}
