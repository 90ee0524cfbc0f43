"""The results of a release, as users hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column

from spark_client.api.streams import TrackedStream
from spark_client.api.writer import TrackedWriter
from spark_client.plan.aggregates import Aggregate
from spark_client.plan.substreams import ColumnOrName
from spark_client.release.aggregation import Aggregation, OnOverflow


class Released(Aggregation):
    """The results of a release, as `Tracking.release` gives them: `writeStream` says where they go.

    Attributes:
        columns: of the results: the scope, ``window`` (or the substream's name), the keys, the aggregates, and
            ``revision`` if there are revisions, and ``completeness`` if that was asked for.
    """

    def __init__(
        self,
        stream: TrackedStream,
        keys: Sequence[ColumnOrName],
        aggs: Mapping[str, Aggregate | Column],
        revisions: bool = False,
        completeness: bool = False,
        on_overflow: OnOverflow = "fail",
    ) -> None:
        super().__init__(stream, keys, aggs, revisions, completeness, on_overflow)
        self._tracking = stream.tracking

    def __repr__(self) -> str:
        return f"Released(segment={self.stream.segment!r}, columns={self.columns})"

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        return TrackedWriter(self._tracking, self)
