"""The queries of one `Tracking`: started one by one, known by their ids, checked, drained and stopped together.

Each query brings itself to rest when its job drains (`quiesce`). Here a drain is asked for, and waited for.

A query that is started again takes the place of its former run here: what went wrong in that one concerns nobody any
more.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.advice import explaining
from spark_client.errors import TrackingError
from spark_client.fronts.front import Front
from spark_client.plan.graph import JobGraph
from spark_client.runtime.elsewhere import Followed
from spark_client.runtime.follower import Follower
from spark_client.runtime.queries import TrackedQuery
from spark_client.runtime.quiesce import to_be_started
from spark_client.trackers import JobClient
from tracker.client import DrainMode, DrainState, TrackerError, TrackerUnavailable

_log = logging.getLogger("spark_client")

_LOOK_EVERY = 0.1  #: seconds between two looks at whether all queries have come to rest


class Running:
    """The queries that one `Tracking` has started.

    Args:
        graph: of the job, from which follows what queries of this application are to read.
    """

    def __init__(self, client: JobClient, job: str, deployment: str, graph: JobGraph) -> None:
        self._client = client
        self._job = job
        self._deployment = deployment
        self._graph = graph
        self._drain_id = f"spark-{uuid.uuid4().hex[:8]}"  # one, so that a request can be repeated at several trackers
        self._lock = threading.Lock()
        self._known: dict[str, Followed] = {}  # of the newest run of each, by query id
        self._starting: set[Followed] = set()

    @property
    def queries(self) -> list[TrackedQuery]:
        """The newest run of each query whose runtime is in this process, whether it goes on or has ended."""
        return [follower.query for follower in self.followed if isinstance(follower, Follower)]

    @property
    def followed(self) -> list[Followed]:
        """The newest run of each query, whether it goes on or has ended."""
        with self._lock:
            return list(self._known.values())

    @property
    def active(self) -> int:
        """Return how many queries run."""
        return sum(follower.active for follower in self.followed)

    @property
    def kept(self) -> int:
        """Return how many batches have not been reported to a tracker that is away."""
        return sum(query.kept for query in self.queries)

    @property
    def drains(self) -> bool:
        """Return whether a query is being brought to rest."""
        return any(each.rests for each in self.followed)

    def has_drained(self, mode: DrainMode | None = None) -> bool:
        """Return whether there are queries, and each has come to rest.

        Args:
            mode: by such a drain; None: by any.
        """
        followed = self.followed
        return bool(followed) and all(each.has_rested(mode) for each in followed)

    def launch(self, spark: SparkSession, follower: Followed, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Start a query.

        Raises:
            TrackingError: the tracker refuses its run, or everything was stopped meanwhile.
        """
        with self._lock:
            self._starting.add(follower)
        try:
            query = follower.launch(spark, start)
            with self._lock:
                former = self._known.get(str(query.id))
                self._known[str(query.id)] = follower
        finally:
            with self._lock:
                self._starting.discard(follower)
        if former is not None:
            former.supersede()
        return query

    def check(self) -> None:
        """Raise what has gone wrong in a query.

        Raises:
            TrackingError: the tracker refused a commit, or Spark's query failed.
        """
        for each in self.followed:
            if (failure := each.failure()) is not None:
                raise failure

    def drain(self, mode: DrainMode) -> None:
        """Ask the tracker for a drain, and begin it.

        Args:
            mode: what becomes of what is open.

        Raises:
            TrackingError: the tracker refuses, or cannot be reached.
        """
        if self.has_drained(mode):
            return
        hand_over = mode is DrainMode.HAND_OVER
        with explaining(self._job, self._client.command_options):
            self._client.drain(self._job, self._deployment, self._drain_id, hand_over=hand_over)
            for follower in self.followed:
                follower.bring_to_rest(again=True)

    def await_drained(self, timeout: float | None) -> None:
        """Wait until a drain is over, whoever asks for it.

        Args:
            timeout: seconds; None: for as long as it takes.

        Raises:
            TimeoutError: the drain goes on after that time.
            TrackingError: it failed, or a query has.
        """
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            for follower in self.followed:
                if (failure := follower.rest_failure) is not None:
                    raise TrackingError(f"the drain failed: {failure}") from failure
            if self.has_drained() or (not self._known and self._is_drained()):
                return
            self.check()
            if time.monotonic() >= until:
                raise TimeoutError(self._not_in_time(timeout))
            time.sleep(_LOOK_EVERY)
            with suppress(TrackerError, TrackerUnavailable):  # the queries' own threads report it
                for follower in self.followed:
                    follower.bring_to_rest()

    def _is_drained(self) -> bool:
        """Return whether a job without queries here is drained at the tracker."""
        with suppress(TrackerError, TrackerUnavailable):
            drain = self._client.get_drain(self._job)
            return drain.state is DrainState.DRAINED and drain.deployment == self._deployment
        return False

    def _not_in_time(self, timeout: float | None) -> str:
        drain = self._client.get_drain(self._job)
        hand_over = drain.mode is DrainMode.HAND_OVER
        found = {each.missing: None for each in self.followed if each.missing}
        read = {segment for each in self.followed if each.failure() is None for segment in each.segments}
        if not hand_over and (unread := self._graph.read_here - read):
            found = {to_be_started(unread): None, **found}
        missing = f" It waits: {'; '.join(found)}." if found else ""
        what = "handed over" if hand_over else "drained"
        return f"job {self._job!r} is not {what} after {timeout} s; it goes on.{missing} {drain}"

    def finish(self, front: Front) -> None:
        """Finish a source: it will send nothing more.

        Raises:
            TrackingError: the tracker refuses to finish the front, with its reason.
        """
        with explaining():
            if not any(each.finish(front) for each in self.followed):
                for name in front.names:
                    self._client.finish_front(self._job, name)

    def stop(self, patience: float) -> None:
        """Stop all queries, each between two batches, and let nothing of them act any more.

        Called in a query's own batch, it stops that query once the batch has been committed, after this has returned.

        Args:
            patience: seconds that all of it may take; then a batch in hand is interrupted, and a tracker that is away
                is left to find out when the queries start again.
        """
        until = time.monotonic() + patience
        with self._lock:
            followers = [*self._starting, *self._known.values()]
        for follower in followers:
            follower.begin_to_stop()
        for follower in followers:
            follower.interrupt_rest()
        for follower in followers:
            follower.keep_out()  # no other batch begins in any of them while the first is waited for
        for follower in followers:
            left = max(0.0, until - time.monotonic())
            if follower.inside:
                threading.Thread(target=follower.end, args=[left], name="tracking-stop", daemon=True).start()
            else:
                follower.end(left)
