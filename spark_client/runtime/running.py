"""The queries of one `Tracking`: started one by one, known by their ids, checked and stopped together.

A query that is started again takes the place of its former run here: what went wrong in that one concerns nobody any
more.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.errors import TrackingError
from spark_client.runtime.queries import TrackedQuery
from spark_client.spark_internals.checkpoints import query_id
from tracker.client import TrackerError

_log = logging.getLogger("spark_client")


class Running:
    """The queries that one `Tracking` has started.

    Args:
        at_rest: called when the last query that ran has ended, in the thread that followed it.
    """

    def __init__(self, at_rest: Callable[[], object]) -> None:
        self._at_rest = at_rest
        self._lock = threading.Lock()
        self._known: dict[str, TrackedQuery] = {}  # the newest of each, by query id
        self._starting: set[TrackedQuery] = set()

    @property
    def queries(self) -> list[TrackedQuery]:
        """The newest run of each query, whether it goes on or has ended."""
        with self._lock:
            return list(self._known.values())

    @property
    def active(self) -> int:
        """Return how many queries run."""
        return sum(tracked.followed for tracked in self.queries)

    def launch(self, spark: SparkSession, tracked: TrackedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Start a query.

        Raises:
            TrackingError: the tracker refuses its run, or everything was stopped meanwhile.
        """
        with self._lock:
            self._starting.add(tracked)
        try:
            query = start_tracked(spark, tracked, start)
            with self._lock:
                tracked.query = query
                former = self._known.get(str(query.id))
                self._known[str(query.id)] = tracked
            if former is not None:
                former.unfollow()
            tracked.follow(self._ended)
        finally:
            with self._lock:
                self._starting.discard(tracked)
        if former is not None:
            former.close(patient=False)  # it was superseded: this only gives back what it holds
        try:
            tracked.run  # noqa: B018 - raises what went wrong
        except TrackingError:
            query.stop()
            self._forget(tracked, str(query.id))
            raise
        if tracked.cancelled:
            self._end(tracked, 0.0)
            raise TrackingError("the query was stopped while it started: tracking.stop() was called")
        return query

    def _forget(self, tracked: TrackedQuery, query: str) -> None:
        """Give up a query that never ran."""
        tracked.close(patient=False)
        tracked.unfollow()
        with self._lock:
            if self._known.get(query) is tracked:
                del self._known[query]

    def check(self) -> None:
        """Raise what has gone wrong in a query.

        Raises:
            TrackingError: the tracker refused a commit, or Spark's query failed.
        """
        for tracked in self.queries:
            failure = tracked.failure()
            if failure is not None:
                raise failure

    def stop(self, patience: float) -> None:
        """Stop them all, each between two batches, and let nothing of them act any more.

        Called in a query's own batch, it stops that query once the batch has been committed, after this has returned.

        Args:
            patience: seconds that all of it may take; then a batch in hand is interrupted, and a tracker that is away
                is left to find out when the queries start again.
        """
        until = time.monotonic() + patience
        with self._lock:
            queries = [*self._starting, *self._known.values()]
        for tracked in queries:
            tracked.gate.close(0)  # no other batch begins in any of them while the first is waited for
        for tracked in queries:
            if tracked.gate.inside:
                rest = max(0.0, until - time.monotonic())
                threading.Thread(
                    target=lambda each=tracked, left=rest: self._end(each, left), name="tracking-stop", daemon=True
                ).start()
            else:
                self._end(tracked, max(0.0, until - time.monotonic()))

    def _end(self, tracked: TrackedQuery, patience: float) -> None:
        tracked.stop(patience)
        if tracked.query is None:
            return  # it is being started: who starts it stops it
        try:
            if not tracked.close():
                _log.warning(
                    "query %s has stopped, and the tracker cannot be reached: it learns of it when the query starts "
                    "again",
                    tracked.query.id,
                )
        except TrackerError as error:
            _log.warning("query %s has stopped, but: %s", tracked.query.id, error)
        tracked.unfollow()

    def _ended(self) -> None:
        if not self.active:
            self._at_rest()


class _Place:
    """A checkpoint in which one query is started at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_places: weakref.WeakValueDictionary[Path, _Place] = weakref.WeakValueDictionary()
_looking = threading.Lock()


def start_tracked(spark: SparkSession, tracked: TrackedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and open its run, at the latest when this returns.

    Spark announces a start to all listeners of the session, whichever query it is of. A checkpoint belongs to one
    query, and Spark writes the query's id there before the announcement, so the id is read there. Two starts in one
    checkpoint, by whichever `Tracking` of the process, come one after the other: both have that id.

    Args:
        tracked: what it is to us.
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
    """Opener of one query's run before its first batch. Only there while it starts: Python listens at a price."""

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
