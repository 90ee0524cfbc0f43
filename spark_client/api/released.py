"""The results of a release, as users hold them."""

from __future__ import annotations

from spark_client.api.streams import TrackedStream
from spark_client.api.writer import TrackedWriter
from spark_client.plan.releases import ReleasePlan


class Released:
    """The results of `Tracking.release`: an aggregation whose rows come out once, when their substream has ended.

    Attributes:
        columns: of the results: the scope, ``window`` (or the substream's name), the keys, the aggregates, and
            ``revision`` if there are revisions, and ``completeness`` if that was asked for.
        stream: that it releases.
        release: what is declared of it.
    """

    def __init__(self, stream: TrackedStream, release: ReleasePlan) -> None:
        self.stream = stream
        self.release = release

    def __repr__(self) -> str:
        return f"Released(segment={self.stream.segment!r}, columns={self.columns})"

    @property
    def columns(self) -> list[str]:
        return self.release.columns

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        return TrackedWriter(self.stream.tracking, self.stream.readable, self.release)
