"""Starting a query so that it is known by its own id before its first batch.

Spark tells of a query's start to whoever listens in the session, and does so for every query of it. A checkpoint has
one query's id, which Spark writes down before it tells of the start; so that is asked for the id, and never who spoke
first.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.runtime.queries import TrackedQuery
from spark_client.spark_internals.checkpoints import query_id


class _Place:
    """A checkpoint in which one query is started at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_places: weakref.WeakValueDictionary[Path, _Place] = weakref.WeakValueDictionary()
_looking = threading.Lock()


def start_tracked(spark: SparkSession, tracked: TrackedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and open its run, at the latest when this returns.

    Two starts in one checkpoint, by whichever `Tracking` of the process, come one after the other: their runs have the
    same query's id, so the id alone would not tell them apart.

    Args:
        spark: the session.
        tracked: what it is to us.
        start: starts it.
    """
    with _looking:
        place = _places.setdefault(tracked.checkpoint.resolve(), _Place())
    with place.lock:
        listener = _Started(tracked)
        spark.streams.addListener(listener)
        try:
            query = start()
        finally:
            spark.streams.removeListener(listener)
            listener.forget()
        tracked.open(str(query.id), str(query.runId), begun=True)
    return query


class _Started(StreamingQueryListener):
    """Opens the run of one query before its first batch. Only there while it starts: Python listens at a price."""

    def __init__(self, tracked: TrackedQuery) -> None:
        self._tracked: TrackedQuery | None = tracked

    def forget(self) -> None:
        """Let go of the query: the JVM keeps a listener that was removed for as long as it likes."""
        self._tracked = None

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        tracked = self._tracked
        if tracked is not None and str(event.id) == query_id(tracked.checkpoint):
            tracked.open(str(event.id), str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass
