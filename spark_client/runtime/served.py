"""A query's runtime in a process of its own: where Spark Connect's server runs the function of `foreachBatch`.

The server starts one process for each start of a query, gives it the query's plan, then batch after batch, and ends it
with a signal when Spark's query has ended, for whatever reason. The rest of the work is done here: commits are
reported, a run that takes what is there and ends releases all that it has ended, a job that drains comes to rest, and
the run is closed at the tracker, which is how the application learns of it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.errors import UsageError
from spark_client.runtime.assembly import check_stores, resumed_query
from spark_client.runtime.batches import BatchQuery
from spark_client.runtime.follower import Follower
from spark_client.runtime.queries import sentence_of
from spark_client.runtime.queryplan import QueryPlan
from spark_client.spark_internals.checkpoints import clear_unfinished, last_begun, last_commit, query_id, started_query
from spark_client.spark_internals.columns import dumps, loads
from spark_client.spark_internals.sessions import end_process, is_remote

_LIVES_EVERY: Final = 1.0  #: seconds between two looks at whether the server runs
_BEGINS_EVERY: Final = 0.1  #: seconds between two looks at whether Spark's query runs
_TELLS_EVERY: Final = 0.5  #: seconds between two looks at whether something has gone wrong

# The process of a query and its application share a session of the query's own, so its settings can carry a text.
FAILURE: Final = "spark.substreams.failure"  #: what has gone wrong in a query between two batches
REST_FAILURE: Final = "spark.substreams.restFailure"  #: why it could not be brought to rest

_log = logging.getLogger("spark_client")


class PlannedQuery:
    """A function for `foreachBatch` that is its query's plan, and makes the runtime where it is called.

    The runtime is whole: it has a client, a run at the tracker, and a thread that follows, of its own.

    >>> rows.writeStream.foreachBatch(PlannedQuery(plan)).option("checkpointLocation", …)   # doctest: +SKIP
    """

    def __init__(self, plan: QueryPlan) -> None:
        self._plan = plan
        self._packed: bytes | None = None
        self._query: BatchQuery | None = None
        self._follower: Follower | None = None
        self._beginning = threading.RLock()
        self._ended = threading.Event()
        self._told: dict[str, str] = {}

    def packed(self) -> PlannedQuery:
        """Return this, ready to be carried to another process.

        Raises:
            UsageError: the plan has something that cannot be, which Spark would wrap in an error of its own.
        """
        self._packed = dumps(self._plan)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _served, (self._packed or dumps(self._plan),)

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Process a batch; the run is open then, which fences earlier drivers of the query.

        Raises:
            TrackingError: the tracker refuses the run, or the batch.
            UsageError: the query is not what has written its checkpoint.
        """
        query = self._begun(batch.sparkSession)
        try:
            query.function(batch, epoch)
        except Exception:
            if is_remote(batch.sparkSession):  # this process ends with it
                query.close(patient=False)
            raise

    def _begun(self, spark: SparkSession) -> BatchQuery:
        with self._beginning:
            return self._query or self._begin(spark)

    def _begin_alone(self, spark: SparkSession) -> None:
        """Begin although no batch may come: what has ended is to be released, and a drain to be followed."""
        sparks = None
        try:
            while sparks is None:
                if self._ended.wait(_BEGINS_EVERY):
                    return
                own = query_id(self._plan.checkpoint)
                sparks = next((each for each in spark.streams.active if str(each.id) == own), None)
            self._begun(spark).run  # noqa: B018 - raises what went wrong
        except Exception as error:
            _log.error("the query of checkpoint %s cannot begin: %s", self._plan.checkpoint, error)
            if sparks is not None:
                self._tell(spark, {FAILURE: error})
                sparks.stop()

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
            query.query = ServedQuery(sparks, self._ended, partial(self._tell_all, spark))  # type: ignore[assignment]
        query.open(own, uuid.uuid4().hex if sparks is None else str(sparks.runId), begun=True)
        self._follower = Follower(query)
        self._follower.start()
        self._query = query
        if is_remote(spark):
            threading.Thread(target=self._keep_telling, args=[spark], name="tracking-failures", daemon=True).start()
        return query

    def _keep_telling(self, spark: SparkSession) -> None:
        while not self._ended.wait(_TELLS_EVERY):
            self._tell_all(spark)

    def _tell_all(self, spark: SparkSession) -> None:
        """Let the application know what has gone wrong between two batches, of which Spark shows it nothing."""
        if (query := self._query) is not None and (follower := self._follower) is not None:
            self._tell(spark, {FAILURE: query.broken or query.run.failure, REST_FAILURE: follower.rest_failure})

    def _tell(self, spark: SparkSession, failures: Mapping[str, Exception | None]) -> None:
        for key, error in failures.items():
            text = "" if error is None else sentence_of(error) or f"{type(error).__name__}: {error}"
            if text != self._told.get(key, ""):
                try:
                    spark.conf.set(key, text)
                    self._told[key] = text
                except Exception as unreachable:  # the server ends
                    _log.warning("the application does not learn of %s: %s", text, unreachable)

    def serve(self) -> None:
        """Let the signal with which the server ends this process end what the query does."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._end)
            threading.Thread(target=_end_with, args=[os.getppid()], name="tracking-server", daemon=True).start()
            try:
                clear_unfinished(self._plan.checkpoint)  # Spark looks when this process is there
            except Exception as error:  # who begins meets it, and tells
                _log.warning("the checkpoint %s cannot be read: %s", self._plan.checkpoint, error)
            session = SparkSession.active()
            if is_remote(session) and not self._plan.bounded:  # else it begins before it ends
                threading.Thread(target=self._begin_alone, args=[session], name="tracking-begin", daemon=True).start()

    def _end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Do what is left, as Spark's query has ended; a batch in hand is left as it is, and will be read again."""
        self._ended.set()
        with self._beginning:  # one that has begun to open its run, closes it
            pass
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
                if follower.query.broken is not None:
                    self._tell_all(SparkSession.active())
        finally:
            end_process(0)


class ServedQuery:
    """Spark's query, as the process of its batches sees it: it runs until the process is asked to end.

    Args:
        query: as the process's session has it.
        ended: set when Spark's query has ended.
        tell: lets the application know why it is stopped.
    """

    def __init__(self, query: StreamingQuery, ended: threading.Event, tell: Callable[[], None]) -> None:
        self._query = query
        self._ended = ended
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Return whether Spark's query runs."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """Stop the query."""
        self._tell()
        self._query.stop()


def _served(plan: bytes) -> PlannedQuery:
    """Return the function in the process that is to call it."""
    function = PlannedQuery(loads(plan))
    function.serve()
    return function


def _end_with(server: int) -> None:
    """End this process when the server (a process's id) does: a batch would go on, and nobody would commit it."""
    while os.getppid() == server:
        threading.Event().wait(_LIVES_EVERY)
    end_process(1)
