"""A query's runtime in a process of its own: where Spark Connect's server runs the function of `foreachBatch`.

The server starts one process for each start of a query, gives it the query's plan, then batch after batch, and ends it
with a signal when Spark's query has ended, for whatever reason. What is left to do then is done here: commits are
reported, a run that takes what is there and ends releases all that it has ended, a job that drains comes to rest, and
the run is closed at the tracker, which is how the application learns of it.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from types import FrameType
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.errors import UsageError
from spark_client.runtime.assembly import check_stores, resumed_query
from spark_client.runtime.batches import BatchQuery
from spark_client.runtime.follower import Follower
from spark_client.runtime.queryplan import QueryPlan
from spark_client.spark_internals.checkpoints import last_begun, last_commit, query_id, started_query
from spark_client.spark_internals.columns import dumps, loads
from spark_client.spark_internals.sessions import end_process, is_remote

_LIVES_EVERY: Final = 1.0  #: seconds between two looks at whether the server runs


class PlannedQuery:
    """A function for `foreachBatch` that is its query's plan, and makes the runtime where it is called first.

    The runtime is whole: it has a client, a run at the tracker, and a thread that follows, of its own.

    >>> rows.writeStream.foreachBatch(PlannedQuery(plan)).option("checkpointLocation", …)   # doctest: +SKIP
    """

    def __init__(self, plan: QueryPlan) -> None:
        self._plan = plan
        self._query: BatchQuery | None = None
        self._follower: Follower | None = None
        self._ended = threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return _served, (dumps(self._plan),)

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Process a batch; the first one opens the run, which fences earlier drivers of the query.

        Raises:
            TrackingError: the tracker refuses the run, or the batch.
            UsageError: the query is not what has written its checkpoint.
        """
        query = self._query or self._begin(batch.sparkSession)
        try:
            query.function(batch, epoch)
        except Exception:
            if is_remote(batch.sparkSession):  # this process ends with it
                query.close(patient=False)
            raise

    def _begin(self, spark: SparkSession) -> BatchQuery:
        check_stores(self._plan)
        query = resumed_query(self._plan, spark)
        own = started_query(self._plan.checkpoint)
        sparks = next((each for each in spark.streams.active if str(each.id) == own), None)
        if is_remote(spark):
            if sparks is None:
                raise UsageError(
                    f"Spark {spark.version} does not show the process of a query which query that is, so it could not "
                    "come to rest: Spark 4.1 does"
                )
            query.query = ServedQuery(sparks, self._ended)  # type: ignore[assignment]
        query.open(own, uuid.uuid4().hex if sparks is None else str(sparks.runId), begun=True)
        self._follower = Follower(query)
        self._follower.start()
        self._query = query
        return query

    def serve(self) -> None:
        """Let the signal with which the server ends this process end what the query does."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._end)
            threading.Thread(target=_end_with, args=[os.getppid()], name="tracking-server", daemon=True).start()

    def _end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Do what is left, as Spark's query has ended; a batch in hand is left as it is, and will be read again."""
        self._ended.set()
        if self._query is None and self._plan.bounded and query_id(self._plan.checkpoint) is not None:
            self._begin(SparkSession.active())  # it found no rows, and what ended since its last run is to be released
        query, checkpoint = self._query, self._plan.checkpoint
        inside = query is not None and query.gate.inside
        if query is not None and last_begun(checkpoint) != last_commit(checkpoint):
            query.gate.close(0)  # it was stopped, and what it has begun comes first at the next start
        if inside:  # the batch may hold what a call needs here
            threading.Thread(target=self._leave, name="tracking-stop").start()
        else:
            self._leave()

    def _leave(self) -> None:
        try:
            if (follower := self._follower) is not None:
                if follower.rest is not None:
                    follower.rest.ended.wait()
                follower.await_end(float("inf"))
        finally:
            end_process(0)


class ServedQuery:
    """Spark's query, as the process of its batches sees it: it runs until the process is told to end.

    Args:
        query: as the process's session has it.
        ended: set when Spark's query has ended.
    """

    def __init__(self, query: StreamingQuery, ended: threading.Event) -> None:
        self._query = query
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Return whether Spark's query runs."""
        return not self._ended.is_set()


def _served(plan: bytes) -> PlannedQuery:
    """Return the function in the process that is to call it."""
    function = PlannedQuery(loads(plan))
    function.serve()
    return function


def _end_with(server: int) -> None:
    """End this process when the server does that has started it: a batch would go on, and nobody would commit it.

    Args:
        server: the id of its process.
    """
    while os.getppid() == server:
        threading.Event().wait(_LIVES_EVERY)
    end_process(1)
