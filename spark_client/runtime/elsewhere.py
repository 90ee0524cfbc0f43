"""A query whose runtime is in a process of Spark Connect's server, as its application sees it.

Nothing is shared with that process: what becomes of the query is asked of Spark and of the tracker. There the run of
the query is open until all is done, its commits are reported, and a release acknowledges the ends that it has acted on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.advice import explained
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, UsageError, first_line
from spark_client.fronts.front import Front, LiveFront
from spark_client.runtime.follower import Follower, StartedQuery
from spark_client.runtime.queries import QueryFailedError, between_batches, failed_query
from spark_client.runtime.queryplan import QueryPlan
from spark_client.runtime.served import FAILURE, REST_FAILURE
from spark_client.trackers import JobClient
from spark_client.trackers.eventlogs import EventLogs
from tracker.client import (
    DrainMode,
    DrainState,
    DrainStatus,
    Ended,
    Late,
    ProducerStatus,
    TrackerError,
    TrackerUnavailable,
)
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_LOOK_EVERY: Final = 0.1  #: seconds between two looks at Spark's query, or at the tracker
_STARTING: Final = 300.0  #: seconds in which a query has to start
_TOO_LATE: Final = "failed to connect back"  #: in Spark's error: it gives the query's process ten seconds to start
_REPORTED: Final = 300.0  #: seconds in which the process of a query that has ended has to close its run


class QueryElsewhere:
    """A query whose batches are processed on the server.

    Args:
        client: reaches the trackers of the job.
        deployment: of the job that it belongs to.
        session: of the query, which its process shares: what goes wrong there between two batches is a setting of it.

    Attributes:
        query: as Spark has started it; None: it has not.
    """

    missing = ""  #: names what its rest waits for, as far as that is known here
    inside = False  #: whether the caller is its batch

    def __init__(self, plan: QueryPlan, client: JobClient, deployment: str, session: SparkSession) -> None:
        self.checkpoint = plan.checkpoint
        self.segments = [plan.stream.segment]
        self.query: StreamingQuery | None = None
        self._plan = plan
        self._client = client
        self._job = plan.settings.job
        self._deployment = deployment
        self._session = session
        self._logs = EventLogs(client, self._job)
        self._stopped = False

    # ---------------------------------------------------------------- its life

    def launch(self, spark: SparkSession, start: Callable[[], StreamingQuery]) -> StreamingQuery:  # noqa: ARG002
        """Start the query, and return it as its user sees it."""
        until = time.monotonic() + _STARTING
        while self.query is None:
            try:
                self.query = start()
            except PySparkException as error:
                if _TOO_LATE not in str(error) or time.monotonic() > until:
                    raise
                _log.warning("the query of checkpoint %s starts again: %s", self.checkpoint, first_line(error))
        if self._stopped:
            self.end(0.0)
            raise TrackingError("the query was stopped while it started: tracking.stop() was called")
        return cast(StreamingQuery, StartedQuery(self._spark_query, self))

    def supersede(self) -> None:
        """Leave the query: another run of it has taken its place."""

    @property
    def _spark_query(self) -> StreamingQuery:
        assert self.query is not None
        return self.query

    @property
    def runs(self) -> bool:
        """Return whether Spark's query is active."""
        return self.query is not None and self.query.isActive

    @property
    def active(self) -> bool:
        """Return whether the query runs, or its process has something to do yet."""
        return self.runs or (self.query is not None and self.failure() is None and not self._is_closed())

    def failure(self) -> TrackingError | None:
        """Return what has gone wrong, as a user reads it; None: nothing."""
        if self.query is None:
            return None
        cause: Exception | None = None if self.query.isActive else self.query.exception()
        cause = cause or self._told(FAILURE)
        return None if cause is None else failed_query(self.query, cause)

    def _told(self, key: str) -> TrackingError | None:
        text = self._session.conf.get(key, "")
        return TrackingError(text) if text else None

    def await_end(self, until: float) -> bool:
        """Wait until all is done about a query that Spark has ended, or it has failed; return whether so.

        Args:
            until: the monotonic time by which that has to be.

        Raises:
            TrackingError: its process has failed after the last batch.
        """
        given_up = time.monotonic() + _REPORTED
        while (failure := self.failure()) is None and not self._is_closed():
            if time.monotonic() > given_up:
                raise self._broken("has not closed its run at the tracker")
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_EVERY)
        if failure is None and self._plan.bounded and not self._stopped and not self._has_released():
            raise self._broken("has ended before it had released all that has ended")
        return True

    def _broken(self, how: str) -> TrackingError:
        query = self._spark_query
        return QueryFailedError(
            f"the process of query {query.id} {how}: it failed after the last batch, and the log of Spark Connect's "
            "server has why. Nothing is lost: start the query again with the same checkpoint"
        )

    # ---------------------------------------------------------------- at the tracker

    def _run(self) -> ProducerStatus | None:
        """Return the newest run of the query at the tracker; None: none was opened yet."""
        query = str(self._spark_query.id)
        return next((each for each in self._client.job(self._job).producers if each.producer == query), None)

    def _is_closed(self) -> bool:
        run = self._run()
        return run is None or run.closed

    def _has_reported(self) -> bool:
        run = self._run()
        return run is None or not run.staged_epochs

    def _has_released(self) -> bool:
        """Return whether the query has acted on all that has ended; True: it releases nothing."""
        if self._plan.release is None:
            return True
        acted = self._logs.acknowledged(str(self._spark_query.id))
        if acted is None:
            return self._run() is None
        try:
            return not self._logs.look_for((Ended, Late), acted, self.segments)[0]
        except TrackerError as error:
            if error.reason != Refusal.EVENTS_EXPIRED:
                raise
            return False

    @property
    def progress(self) -> tuple[Any, ...]:
        """How far it has come: what it has committed, and what it has acted on."""
        run = self._run()
        return run and run.committed_epoch, self._logs.acknowledged(str(self._spark_query.id))

    def settle(self) -> None:
        """Wait until everything that is there has been processed, and the tracker knows of it."""
        if not self.runs:
            return
        self._spark_query.processAllAvailable()
        while self.runs and self.failure() is None and not (self._has_reported() and self._has_released()):
            time.sleep(_LOOK_EVERY)

    def finish(self, front: Front) -> bool:
        """Promise that a source will send nothing more, if it runs and reads it.

        Raises:
            TrackerError: the tracker refuses the promise.
        """
        if front is not self._plan.stream.input.front or not self.runs:
            return False
        for name in front.names:
            between_batches(partial(self._client.finish_front, self._job, name))
        return True

    def reading(self, front: Front) -> list[tuple[LiveFront, Run]]:
        """Return nothing: its front is in its process.

        Raises:
            UsageError: it has one that is made of this front, and has started.
        """
        if front is self._plan.stream.input.front and self.query is not None:
            raise UsageError(
                "expect: over Spark Connect counts are given before the query starts, which takes them along. For "
                "later ones give the Schedule a function, Schedule(lambda: …), which the query calls while it runs"
            )
        return []

    # ---------------------------------------------------------------- rest

    def bring_to_rest(self, again: bool = False) -> None:
        """Leave this to its process, which learns from the tracker that the job drains."""

    @property
    def rest_failure(self) -> Exception | None:
        """Return why the query could not be brought to rest; None: nothing is known against it."""
        return None if self.query is None else self._told(REST_FAILURE)

    def has_rested(self, mode: DrainMode | None = None) -> bool:
        """Return whether the query has come to rest by a drain.

        Args:
            mode: by such a one; None: by any.
        """
        drain = self._drain()
        drained = drain.state is DrainState.DRAINED and drain.deployment == self._deployment
        return drained and mode in (drain.mode, None) and not self.runs and self._is_closed()

    @property
    def rests(self) -> bool:
        """Return whether the query is being brought to rest."""
        with suppress(TrackerError, TrackerUnavailable):
            drain = self._drain()
            return drain.state is DrainState.DRAINING and drain.deployment == self._deployment
        return False

    def _drain(self) -> DrainStatus:
        return self._client.get_drain(self._job)

    def begin_to_stop(self) -> None:
        """Announce that the query is stopped."""
        self._stopped = True

    def interrupt_rest(self) -> None:
        """Leave what is under way to its process."""

    def keep_out(self) -> None:
        """Let batches begin: from here nothing keeps them out."""

    def end(self, patience: float) -> None:
        """Stop the query between two batches, and wait until its process has closed the run.

        Args:
            patience: seconds for a batch in hand, which is interrupted then, and for the process.
        """
        until = time.monotonic() + patience
        if self.query is None:
            return  # it is being started: who starts it stops it
        while self.query.isActive and self.query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
        self.query.stop()
        try:
            while not self._is_closed() and time.monotonic() < until:
                time.sleep(_LOOK_EVERY)
        except (TrackerError, TrackerUnavailable) as error:
            _log.warning("query %s has stopped, but: %s", self.query.id, explained(error))


#: A query as the `Tracking` that has started it asks for it, whether its runtime is here or elsewhere.
Followed: TypeAlias = Follower | QueryElsewhere
