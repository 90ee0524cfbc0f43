"""The results of a release, as users hold them."""

from __future__ import annotations

from spark_client.api.streams import TrackedStream
from spark_client.api.writer import TrackedWriter
from spark_client.release.aggregation import Aggregation


class Released(Aggregation):
    """The results of a release, as `Tracking.release` gives them: `writeStream` says where they go.

    Attributes:
        columns: of the results: the scope, ``window`` (or the substream's name), the keys, the aggregates, and
            ``revision`` if there are revisions, and ``completeness`` if that was asked for.
    """

    stream: TrackedStream

    def __repr__(self) -> str:
        return f"Released(segment={self.stream.segment!r}, columns={self.columns})"

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        return TrackedWriter(self.stream.tracking, self)
