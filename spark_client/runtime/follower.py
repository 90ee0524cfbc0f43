"""A thread beside each tracked query: it reports what Spark commits, and that the query has ended, soon after.

It asks the tracker now and then whether the job drains, and has the query bring itself to rest then. It runs in the
process in which the query's batches run, and keeps the query's runtime there.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.advice import explained
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError
from spark_client.fronts.front import Front, LiveFront
from spark_client.runtime.batches import BatchQuery
from spark_client.runtime.queries import TrackedQuery
from spark_client.runtime.quiesce import Finish, HandOver, Quiesce, to_complete
from spark_client.spark_internals.checkpoints import query_id
from tracker.client import DrainMode, Ended, Late, TrackerError, TrackerUnavailable, Watch

_log = logging.getLogger("spark_client")

_LOOK_EVERY: Final = 0.01  #: seconds between two looks at what Spark has committed
_ASK_EVERY: Final = 0.25  #: seconds between two questions whether the job drains
_RETRY_EVERY: Final = 0.5  #: seconds between two attempts to reach a tracker that is away
_JOINING: Final = 5.0  #: seconds in which the thread has to end when it is stopped


class Follower:
    """Thread that follows one query.

    Args:
        query: the query, which nobody else follows.

    Attributes:
        rest: the newest attempt to bring the query to rest; None: its job has not drained yet.
        mode: for which mode of drain.
    """

    def __init__(self, query: TrackedQuery) -> None:
        self.query = query
        self.checkpoint = query.checkpoint
        self.rest: Quiesce | None = None
        self.mode: DrainMode | None = None
        self._asking = threading.RLock()
        self._cancelled = False  # since the newest attempt
        self._ask_at = 0.0
        self._complained = False
        self._stopped = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-commits", daemon=True)
        self._releaser = Releaser(query) if isinstance(query, BatchQuery) and query.releases else None

    @property
    def active(self) -> bool:
        """Return whether commits are reported as they come about, and the query's end."""
        return self._thread.ident is not None and not self._done.is_set()

    def await_end(self, until: float) -> bool:
        return self._done.wait(min(until - time.monotonic(), threading.TIMEOUT_MAX))

    # -------------------------------- as its application asks for it: `QueryElsewhere` has the same methods

    @property
    def segments(self) -> Sequence[str]:
        return self.query.segments

    @property
    def runs(self) -> bool:
        return self.query.query is not None and self.query.query.isActive

    @property
    def progress(self) -> tuple[int | None, int]:
        return self.query.progress

    @property
    def rests(self) -> bool:
        return self.rest is not None and not self.rest.ended.is_set()

    @property
    def missing(self) -> str:
        if self.rest is not None:
            return self.rest.goal.missing
        # A query may have failed, and its run be closed, before anybody asked for the drain.
        is_open = not self.runs and self.query.interrupted is not None
        return to_complete(self.query.checkpoint) if is_open else ""

    @property
    def rest_failure(self) -> Exception | None:
        return None if self.rest is None else self.rest.failure

    @property
    def inside(self) -> bool:
        return self.query.gate.inside

    def launch(self, spark: SparkSession, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        query = self.query
        query.query = start_tracked(spark, query, start)
        self.start()
        try:
            query.run  # noqa: B018 - raises what went wrong
        except TrackingError:
            query.query.stop()
            self.supersede()
            raise
        if query.cancelled:
            self.end(0.0)
            raise TrackingError("the query was stopped while it started: tracking.stop() was called")
        return cast(StreamingQuery, _StartedHere(query.query, self))

    def supersede(self) -> None:
        self.stop()
        self.query.close(patient=False)  # this only gives back what it holds

    def failure(self) -> TrackingError | None:
        return self.query.failure()

    def settle(self) -> None:
        self.query.settle()

    def finish(self, front: Front) -> bool:
        reads = any(live.front is front for live in self.query.fronts)
        if reads and self.runs:
            self.query.finish(front)
        return reads and self.runs

    def reading(self, front: Front) -> list[tuple[LiveFront, Run]]:
        query = self.query
        return [(live, query.run) for live in query.fronts if live.front is front and query.query is not None]

    def has_rested(self, mode: DrainMode | None = None) -> bool:
        return self.rest is not None and self.rest.reached and mode in (self.mode, None)

    def begin_to_stop(self) -> None:
        if self.rest is not None:
            self.rest.goal.stopped.set()

    def interrupt_rest(self) -> None:
        if self.rest is not None:
            self.rest.stop()

    def keep_out(self) -> None:
        self.query.gate.close(0)

    def end(self, patience: float) -> None:
        query = self.query
        query.stop(patience)
        if query.query is None:
            return  # it is being started: who starts it stops it
        try:
            if not query.close():
                _log.warning(
                    "query %s has stopped, and the tracker cannot be reached: it learns of it when the query starts "
                    "again",
                    query.query.id,
                )
        except TrackerError as error:
            _log.warning("query %s has stopped, but: %s", query.query.id, error)
        self.stop()

    # ---------------------------------------------------------------- what it does

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()
        if self._releaser is not None:
            self._releaser.start()

    def bring_to_rest(self, again: bool = False) -> None:
        """Begin to bring the query to rest if its job drains, unless that has begun.

        Args:
            again: whether to begin again where an attempt has failed.

        Raises:
            TrackerError: the tracker refuses to answer.
            TrackerUnavailable: the tracker does not answer.
        """
        with self._asking:
            if self.query.run.away:
                return  # first all that was committed is reported
            mode, former = self.query.run.drains(), self.rest
            self._cancelled |= mode is None
            if mode is None:
                return
            if former is not None:
                another = again or self._cancelled or self.mode is not mode
                if former.reached or not former.ended.is_set() or not another:
                    return  # one that is under way finds by itself that its drain was cancelled
            self._cancelled, self.mode = False, mode
            self.rest = Quiesce((HandOver if mode is DrainMode.HAND_OVER else Finish)(self.query))
            self.rest.begin()

    def stop(self) -> None:
        """Follow no longer: when this returns, the thread has ended, or does after a call under way."""
        self._stopped.set()
        with self._asking:
            rest = self.rest
        if rest is not None:
            rest.stop()
        if self._releaser is not None:
            self._releaser.stop()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOINING)

    def _run(self) -> None:
        goes_on, complained = True, False
        while goes_on and not self._stopped.is_set():
            pause = _LOOK_EVERY
            try:
                goes_on = self.query.keep_up()
                if self._releaser is not None and goes_on and self.query.run.away:
                    self._releaser.look()
                if goes_on and time.monotonic() >= self._ask_at:
                    with suppress(TrackerUnavailable):  # nothing waits for the answer but the next look
                        self._ask()
                complained = False
            except TrackerUnavailable as error:
                pause = _RETRY_EVERY
                if not complained:
                    _log.warning("what Spark has committed waits for the tracker: %s", error)
                complained = True
            except Exception as error:
                _log.error("query %s: %s", self.query.query.id if self.query.query else "?", explained(error))
                self.query.abandon()
                goes_on = False
            self._stopped.wait(pause)
        if self._releaser is not None:
            self._releaser.stop()
        self._done.set()

    def _ask(self) -> None:
        self._ask_at = time.monotonic() + _ASK_EVERY
        try:
            with self._asking:
                if not self._stopped.is_set():
                    self.bring_to_rest()
            self._complained = False
        except TrackerError as error:
            if not self._complained:
                _log.error("query %s cannot learn whether its job drains: %s", self.query.run.query, error)
            self._complained = True


class Releaser:
    """Threads that release what ends while no batch comes.

    One waits for the ends at each log of the job's events. Another one has the query act on them when it is between two
    batches, and no other batch begins soon, which would act on them itself.

    Args:
        query: the query, whose run is open when this is started.
    """

    def __init__(self, query: BatchQuery) -> None:
        self._query = query
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._watches: list[Watch] = []
        self._threads = [threading.Thread(target=self._run, name="tracking-release", daemon=True)]

    def start(self) -> None:
        """Begin to release."""
        for watch in self._query.run.news.watch(self._query.segments, self._query.run.place):
            self._watches.append(watch)
            self._threads.append(threading.Thread(target=self._listen, args=[watch], name="tracking-ends", daemon=True))
        self._news.set()  # there may be some since the query ran last
        for thread in self._threads:
            thread.start()

    def look(self) -> None:
        """Look whether there is something to do, though nothing was announced."""
        self._news.set()

    def stop(self) -> None:
        """Release nothing any more; what is under way goes on to its end."""
        self._stopped.set()
        self._news.set()
        for watch in self._watches:
            watch.close()

    def _listen(self, watch: Watch) -> None:
        while not self._stopped.is_set():
            try:
                for event in watch:
                    if isinstance(event.kind, Ended | Late):
                        self._news.set()
            except TrackerUnavailable as error:
                _log.info("query %s does not learn what ends: %s", self._query.run.query, error)
            except TrackerError as error:  # another log, or events that have expired: the next run finds out
                _log.warning("query %s does not learn what ends until a batch comes: %s", self._query.run.query, error)
                return

    def _run(self) -> None:
        query = self._query
        while not self._stopped.is_set():
            self._news.wait()
            self._news.clear()
            if not (query.may_release and query.release_ended()):
                self._news.set()
                self._stopped.wait(_LOOK_EVERY)


class _Following(Protocol):
    """Follower of a query, as far as its user waits for it."""

    @property
    def active(self) -> bool: ...

    def await_end(self, until: float) -> bool: ...

    def failure(self) -> TrackingError | None: ...


class StartedQuery:
    """A query as its user sees it: it has ended when all that it had to release is out, or has failed.

    All else is as of Spark's own.

    Args:
        query: as Spark has started it.
    """

    def __init__(self, query: StreamingQuery, followed: _Following) -> None:
        self._query = query
        self._followed = followed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Return whether the query runs, or has something to release yet."""
        return self._query.isActive or self._followed.active

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query has ended; see Spark's own.

        Raises:
            StreamingQueryException: it has failed, in a batch or outside of any.
        """
        until = float("inf") if timeout is None else time.monotonic() + timeout
        self._query.awaitTermination(timeout)
        ended = not self._query.isActive and self._followed.await_end(until)
        if ended and (failure := self._followed.failure()) is not None:
            raise failure
        return ended if timeout is not None else None


class _StartedHere(StartedQuery):
    """A query whose runtime is in this process, which learns that its user stops it."""

    _followed: Follower

    def stop(self) -> None:
        """Stop the query; see Spark's own."""
        self._followed.query.stopped = True
        self._query.stop()


#: By checkpoint: in each, one query is started at a time.
_places: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
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
        place = _places.setdefault(tracked.checkpoint.real, threading.Lock())
    with place:
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
