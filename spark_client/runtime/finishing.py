"""What an application does when its job drains: its sources stop and finish, what was read is released, all stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set

from pyspark.sql import SparkSession

from spark_client.errors import TrackingError
from spark_client.fronts.front import LiveFront
from spark_client.runtime.attempts import Attempt, Queries
from spark_client.runtime.draining import Drain
from spark_client.runtime.queries import TrackedQuery
from spark_client.trackers.jobclient import JobClient
from tracker.client import DrainMode

_log = logging.getLogger("spark_client")

_COMPLAIN_AFTER = 10.0  #: seconds for which a drain waits for queries to be started, and says nothing
_LOOK_EVERY = 0.01  #: seconds


class Finishing(Attempt):
    """One attempt to finish everything.

    Args:
        spark: the session.
        client: of the job.
        job: that is drained.
        deployment: of it.
        running: the queries.
        expected: gives the segments that queries of this application are to read.
        finish: finishes a source.
    """

    mode = DrainMode.FINISH

    def __init__(
        self,
        spark: SparkSession,
        client: JobClient,
        job: str,
        deployment: str,
        running: Queries,
        expected: Callable[[], Set[str]],
        finish: Callable[[LiveFront], None],
    ) -> None:
        super().__init__(job)
        self._spark = spark
        self._client = client
        self._deployment = deployment
        self._running = running
        self._expected = expected
        self._finish = finish

    def _drain(self) -> None:
        self._await_queries()
        # One whose run was superseded is another driver's now: that one drains it.
        queries = [tracked for tracked in self._running.queries if tracked.run.is_current()]
        entries = [tracked for tracked in queries if tracked.fronts]
        runs = [tracked.run for tracked in queries if tracked.outlives_its_sources]
        drain = Drain(self._client, self._job, self._deployment, runs, self._stopped)
        for tracked in entries:
            if tracked.has_operators:
                for front in tracked.fronts:
                    self._finish(front)  # it goes on, until what it holds has come out
            else:
                self._await_the_batch_that_has_begun(tracked)
                tracked.stop()
                tracked.close()
                self._must_be_well(tracked)
        drain.check()
        for tracked in entries:
            for front in tracked.fronts:
                for name in front.names:
                    self._client.finish_front(self._job, name)
        drain.await_ends()
        for tracked in queries:
            drain.check()
            if tracked not in entries or tracked.has_operators:
                tracked.settle()
                self._must_be_well(tracked)
                tracked.stop()
                tracked.close()
            else:
                tracked.drain(self._spark)
        drain.confirm()
        drain.await_drained()

    def _must_be_well(self, tracked: TrackedQuery) -> None:
        """Nothing is finished while something of a query has been published that it has not committed."""
        failure = tracked.failure()
        if failure is not None:
            raise TrackingError(f"{failure}. Start it again, and the drain goes on") from failure
        if (batch := tracked.interrupted) is not None and tracked.fronts:
            raise TrackingError(
                f"batch {batch} of the query with the checkpoint {tracked.checkpoint} was stopped before it was "
                "committed. Start it again, and the drain goes on"
            )

    def _await_queries(self) -> None:
        """Wait until all are started, and those that have failed are started again.

        A driver that starts while its job drains learns of it before its queries have been started.
        """
        complain_at = time.monotonic() + _COMPLAIN_AFTER
        while True:
            well = [tracked for tracked in self._running.queries if tracked.failure() is None]
            read = {segment for tracked in well for segment in tracked.segments}
            missing = self._expected() - read
            if not missing:
                return
            if time.monotonic() > complain_at:
                complain_at = float("inf")
                _log.warning(
                    "the drain of job %s waits for queries that do not run, or have failed, to be started: of %s",
                    self._job,
                    ", ".join(sorted(missing)),
                )
            if self._stopped.wait(_LOOK_EVERY):
                raise TrackingError("the queries were stopped before all were started")
