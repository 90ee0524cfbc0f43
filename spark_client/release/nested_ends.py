"""Which windows a batch's events end, where there are windows within windows: longer ones after their shorter ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.plan.releases import COMPLETENESS
from spark_client.release.epoch_ends import EpochEnds, completeness_of
from spark_client.release.nested_windows import NestedWindows
from spark_client.release.shared_ends import SharedEnds
from spark_client.release.state import PartialState
from spark_client.windows.nested import windows_in
from spark_client.windows.substreams import Substream


class NestedEnds(SharedEnds):
    """What has ended of a release's windows within windows.

    Args:
        windows: the release's aggregation.
        state: the release's.
        segment: whose ends release.
    """

    def __init__(self, windows: NestedWindows, state: PartialState, segment: str) -> None:
        super().__init__(windows.rule, state, segment)
        self._windows = windows

    def _choose(
        self, ends: EpochEnds, own: Mapping[Substream, list[str]], before: Mapping[Substream, tuple[bool, bool]]
    ) -> None:
        pieces: dict[tuple[int, Substream], list[Substream]] = {}
        for piece in own:
            for level, window in enumerate(self._of(piece)):
                pieces.setdefault((level, window), []).append(piece)
        asked = self._windows.plan.completeness
        for (level, window), some in pieces.items():
            now, was = ([self._is_over(piece, level, ended) for piece in some] for ended in (self._state.ended, before))
            if not all(now):
                ends.gone.difference_update(some)  # what has ended of it waits for the rest
                continue
            if all(was):
                continue
            by_drain, after = self._state.ended[window]
            completeness = completeness_of(after, by_drain) if asked else ""
            ends.windows.setdefault((level, completeness), {}).update((piece, own[piece]) for piece in some)
            if level == 0:
                ends.steps.update((piece, own[piece]) for piece in some)

    def _of(self, piece: Substream) -> list[Substream]:
        """Return the windows that a piece is of, the shortest first: one for each level."""
        by_bounds = {(each.end_time, each.name): each for each in self._tracked[piece]}
        rule = self._rule
        return [by_bounds[end, rule.interval(start, end)] for start, end in windows_in(piece.name)]

    def _is_over(self, piece: Substream, level: int, ended: Collection[Substream]) -> bool:
        """Return whether its window of a level has ended, and the shorter ones that end no later."""
        windows = self._of(piece)[: level + 1]
        last = windows[-1].end_time
        assert last is not None
        return all(each in ended for each in windows if each.end_time is not None and each.end_time <= last)

    def _keep(self, ends: EpochEnds) -> None:
        """Nothing: what has left the state is in results."""

    @contextmanager
    def results(self, ends: EpochEnds, epoch: int, spark: SparkSession) -> Iterator[DataFrame | None]:  # noqa: ARG002
        """Yield the merged rows of the windows that are over; None: none is."""
        rows = []
        for (level, completeness), pieces in sorted(ends.windows.items()):
            found = self._windows.selected(spark, self._state.selections(pieces))
            merged = self._windows.of_level(found, level)
            rows.append(merged.withColumn(f"_{COMPLETENESS}", F.lit(completeness)) if completeness else merged)
        yield reduce(DataFrame.unionByName, rows) if rows else None
