"""Bringing a job to rest: one machine with three goals, to finish, to hand over, and to pause.

A job rests when its sources' queries begin no batch, all that they have sent has arrived, and the queries that receive
do nothing either. The way there is the same for all goals. The machine looks at the job again and again; each look
carries the job on from the first state, through all states that are passed, to the one that is not.

| state | passed, to finish | to hand over | to pause |
|---|---|---|---|
| `GATHERING` | queries here read all they are to | at once | batches that had begun are committed |
| `SOURCES` | they have stopped, fronts are finished | they have stopped | they are held at their gates |
| `FLOWING` | all has ended, only guards are staged | all is received, guards have come to the end | all is received |
| `RECEIVERS` | all is published, all have stopped | all have stopped | they are held, all is received still |
| `AT_REST` | the job is drained at the tracker | likewise | the goal |
| `DRAINED` | the goal | the goal | |

A state that was passed can come back. A query that is started during a hand-over takes the job back to `SOURCES`; one
that has begun a batch before it is held takes a pause back to `FLOWING`, and its gate opens again. An error ends the
attempt in the state it is in; the guards stay, and so does the drain, for the driver that is started next. A job whose
sources had finished before is drained at the tracker at once; its queries are brought to rest all the same.

*Guards* are producers beside the queries' own. The tracker considers a job finished once all has ended and nothing is
staged, but results come after the ends. So who has some to release keeps an empty epoch staged meanwhile; it is
committed last. In a hand-over nothing ends, and the queries that receive must not stop while something can still come
for them, whichever application sends it. So each query has a guard, which holds the hand-over while it is open. Its
committed epoch is the number of an event: the query has acted on all that was announced up to there. When this is the
job's newest event in all guards, nothing is staged, and all that was sent has been received, nothing is left to be
done. That stays so, and every application finds it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import SparkSession

from spark_client.advice import explained
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, UsageError
from spark_client.runtime.queries import NativeQuery, TrackedQuery
from spark_client.spark_internals.checkpoints import last_commit
from spark_client.trackers.jobclient import JobClient, JobProducer
from tracker.client import DrainMode, DrainState, JobStatus, TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_OF_DRAIN: Final = "/drain"  #: after a query's id: the guard that holds the drain
_OF_HAND_OVER: Final = "/hand-over"  #: likewise of a hand-over
_UNIT: Final = "results"  #: of a guard's epoch
_LOOK_EVERY: Final = 0.05  #: seconds
_COMPLAIN_AFTER: Final = 10.0  #: seconds for which the same is waited for, and nothing logged
_JOINING: Final = 5.0  #: seconds in which the thread has to end when it is stopped

Queries: TypeAlias = Callable[[], list[TrackedQuery]]  #: gives the newest run of each query of an application


class State(Enum):
    """A state of a job on its way to rest: see the table above."""

    GATHERING = 1
    SOURCES = 2
    FLOWING = 3
    RECEIVERS = 4
    AT_REST = 5
    DRAINED = 6


class Goal(ABC):
    """A purpose for which a job is brought to rest.

    Each question carries out what is left to do to pass a state, may be asked again, and answers whether it is passed.

    Attributes:
        end: the state in which nothing is left to do.
        stopped: set when no further step is to be taken.
        missing: what is waited for, as far as this application can tell; empty: nothing in particular.
    """

    end = State.DRAINED

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.missing = ""

    @abstractmethod
    def look(self) -> JobStatus:
        """Return how the job stands.

        Raises:
            TrackingError: it is not to be brought to rest any more, or cannot be.
        """

    def is_drained(self, status: JobStatus) -> bool:
        """Return whether the tracker considers it drained."""
        return status.drain.state is DrainState.DRAINED

    @abstractmethod
    def gathered(self, status: JobStatus) -> bool:
        """Gather the queries."""

    @abstractmethod
    def sources_rest(self, status: JobStatus) -> bool:
        """Let the queries that read sources begin no batch any more."""

    @abstractmethod
    def has_flowed(self, status: JobStatus) -> bool:
        """Let pass what is on its way."""

    @abstractmethod
    def receivers_rest(self, status: JobStatus) -> bool:
        """Let the other queries do nothing any more either."""


def advance(goal: Goal, status: JobStatus) -> State:
    """Carry a job on as far as it comes now, and return the state that it is in."""
    passes = (
        (State.GATHERING, goal.gathered),
        (State.SOURCES, goal.sources_rest),
        (State.FLOWING, goal.has_flowed),
        (State.RECEIVERS, goal.receivers_rest),
    )
    left = next((state for state, passed in passes if not passed(status)), None)
    return left or (State.DRAINED if goal.is_drained(status) else State.AT_REST)


class Quiesce:
    """One attempt to bring a job to rest. Another one can follow it if it fails or is stopped.

    Attributes:
        goal: what for.
        state: how far it is.
        ended: set when it has come to an end, whichever.
        failure: why it could not go on.
    """

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.state = State.GATHERING
        self.ended = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tracking-drain", daemon=True)

    @property
    def reached(self) -> bool:
        """Return whether it has come to a good end."""
        return self.ended.is_set() and self.failure is None

    def begin(self) -> None:
        """Start a thread of its own for it."""
        self._thread.start()

    def stop(self) -> None:
        """Take no further step."""
        self.goal.stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOINING)

    def run(self) -> None:
        """Bring the job to the goal's end.

        Raises:
            TrackingError: it cannot go on.
        """
        while self.state is not self.goal.end:
            try:
                self.state = advance(self.goal, self.goal.look())
            except TrackerUnavailable as error:
                _log.warning("%r waits for the tracker: %s", self.goal, error)
            except TrackerError as error:
                if error.reason != Refusal.DRAINED:  # else it was done before this look
                    raise
            if self.state is not self.goal.end:
                self.goal.stopped.wait(_LOOK_EVERY)

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:
            if self.goal.stopped.is_set():
                _log.info("%r goes on when its queries are started again: %s", self.goal, error)
            else:
                _log.exception("%r failed", self.goal)
            self.failure = error
        self.ended.set()


class Drain(Goal):
    """A goal that was asked for at the tracker.

    Args:
        queries: gives those of this application.

    Attributes:
        mode: what becomes of what is open.
        name: how the way there is called.
    """

    mode: DrainMode
    name: str

    def __init__(self, client: JobClient, job: str, deployment: str, queries: Queries) -> None:
        super().__init__()
        self._client = client
        self._job = job
        self._deployment = deployment
        self._all = queries
        self._halted: set[TrackedQuery] = set()
        self._complain_at = time.monotonic() + _COMPLAIN_AFTER

    def __repr__(self) -> str:
        return f"the {self.name} of job {self._job}"

    def look(self) -> JobStatus:
        if self.stopped.is_set():
            raise TrackingError(
                f"the queries were stopped before the {self.name} of their job was over: start them again under the "
                f"same deployment=, and the {self.name} goes on"
            )
        status = self._client.job(self._job)
        if status.drain.deployment != self._deployment:
            raise TrackingError(f"deployment {status.drain.deployment!r} has taken over")
        if status.drain.state is DrainState.CANCELLED or status.drain.mode not in (self.mode, None):
            self.let_go()
            raise TrackingError(
                f"the {self.name} was cancelled when the queries that read sources had stopped: start them again"
            )
        return status

    @abstractmethod
    def let_go(self) -> None:
        """Hold the drain no longer from here."""

    def _guard(self, query: str, kind: str) -> JobProducer:
        """Open a guard beside a query."""
        return self._client.open_producer(self._job, f"{query}{kind}", f"{self._deployment}/{uuid.uuid4().hex[:8]}")

    def _halt_sources(self, sources: Sequence[TrackedQuery]) -> bool:
        """Stop queries, each after the batch that has begun, and return whether all have stopped.

        What that batch has published belongs to this deployment, whichever driver began it. Spark runs it again before
        any other batch.
        """
        going = [query for query in sources if query not in self._halted]
        for query in going:
            query.rest()
        for query in going:
            if query.interrupted is None or not _runs(query):
                self._halt(query)
        return self._halted.issuperset(sources)

    def _halt(self, query: TrackedQuery) -> None:
        query.halt()
        query.close()
        self._halted.add(query)

    def _note(self, found: str) -> None:
        """Note what is waited for, and log it once when it has been the same for some time."""
        if found != self.missing:
            self._complain_at = time.monotonic() + _COMPLAIN_AFTER
            self.missing = found
        elif found and time.monotonic() > self._complain_at:
            self._complain_at = float("inf")
            _log.warning("%r waits: %s", self, found)


class Finish(Drain):
    """The goal that all ends: sources stop and finish, what was read is released, and all queries stop.

    Args:
        queries: gives those of this application.
        expected: gives the segments that queries of this application are to read.
    """

    mode = DrainMode.FINISH
    name = "drain"

    def __init__(
        self,
        client: JobClient,
        job: str,
        deployment: str,
        queries: Queries,
        spark: SparkSession,
        expected: Callable[[], Set[str]],
    ) -> None:
        super().__init__(client, job, deployment, queries)
        self._spark = spark
        self._expected = expected
        self._queries: list[TrackedQuery] | None = None
        self._guards: dict[Run, tuple[JobProducer, int]] = {}
        self._finished = False
        self._published: set[TrackedQuery] = set()

    def gathered(self, status: JobStatus) -> bool:  # noqa: ARG002
        """Wait until all are started, and those that have failed are started again.

        A driver that starts while its job drains learns of it before its queries have been started.
        """
        if self._queries is not None:
            return True
        queries = self._all()
        read = {segment for query in queries if query.failure() is None for segment in query.segments}
        if unread := self._expected() - read:
            self._note(f"queries that do not run, or have failed, are to be started: of {', '.join(sorted(unread))}")
            return False
        self._note("")
        # One whose run was superseded is another driver's now: that one drains it.
        current = [query for query in queries if query.run.is_current()]
        for query in current:
            if query.outlives_its_sources and query.run not in self._guards:
                self._guards[query.run] = self._open_guard(query.run)
        self._queries = current
        return True

    def _open_guard(self, run: Run) -> tuple[JobProducer, int]:
        """Stage an empty epoch."""
        guard = self._guard(run.query, _OF_DRAIN)
        epoch = 0 if guard.committed_epoch is None else guard.committed_epoch + 1
        guard.epoch(epoch).report(units=[_UNIT])
        return guard, epoch

    def sources_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        if self._finished:
            return True
        entries = [query for query in self._queries or () if query.fronts]
        plain = [query for query in entries if not query.has_operators]
        if not self._halt_sources(plain):
            return False
        for query in plain:
            _must_be_well(query)
        self.look()  # sources are finished for good, so nobody must have cancelled it while they stopped
        for query in entries:
            for front in query.fronts:
                if query.has_operators and _runs(query):
                    query.finish(front.front)  # it goes on, until what it holds has come out
                for name in front.names:
                    self._client.finish_front(self._job, name)
        self._finished = True
        return True

    def has_flowed(self, status: JobStatus) -> bool:
        drain = status.drain
        staged = [producer for producer in drain.uncommitted_producers if not producer.endswith(_OF_DRAIN)]
        return not (drain.unfinished_fronts or drain.open_substreams or staged)

    def receivers_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        for query in self._queries or ():
            if query in self._published:
                continue
            self.look()
            if query.fronts and not query.has_operators:
                query.drain(self._spark)
            else:
                query.settle()
                _must_be_well(query)
                self._halt(query)
            self._published.add(query)
        self.let_go()
        return True

    def let_go(self) -> None:
        for run, (guard, epoch) in list(self._guards.items()):
            try:
                guard.commit(epoch)
                guard.close()
            except TrackerError as error:
                if error.reason != Refusal.FENCED or not run.is_current():
                    raise
                # A driver whose run is over took the hold away from this one. Its own must not stay.
                again, epoch = self._open_guard(run)
                again.commit(epoch)
                again.close()
            del self._guards[run]


class HandOver(Drain):
    """The goal that the next deployment goes on: sources stop, what they have sent arrives, and all queries stop."""

    mode = DrainMode.HAND_OVER
    name = "hand-over"

    def __init__(self, client: JobClient, job: str, deployment: str, queries: Queries) -> None:
        super().__init__(client, job, deployment, queries)
        self._guards: dict[str, JobProducer] = {}  # by query id
        self._queries: list[TrackedQuery] = []  # that are to be handed over yet
        self._handed_over: set[TrackedQuery] = set()

    def gathered(self, status: JobStatus) -> bool:
        if self.is_drained(status):
            self._queries = []  # every run has closed, or a guard would hold it
            return True
        newest = {(producer.producer, producer.run) for producer in status.producers}
        left = [query for query in self._all() if query not in self._handed_over]
        self._queries = [query for query in left if (query.run.query, query.run.run) in newest]
        own = {query.run.query for query in self._queries}
        for lost in self._guards.keys() - own:
            del self._guards[lost]
        for query in own - self._guards.keys():
            self._guards[query] = self._guard(query, _OF_HAND_OVER)
        return True

    def sources_rest(self, status: JobStatus) -> bool:
        stopped = self._halt_sources([query for query in self._queries if query.only_sources])
        unwell = [query.checkpoint for query in self._queries if not _runs(query) and query.interrupted is not None]
        read = {segment for query in self._queries if _runs(query) for segment in query.segments}
        self._note("; ".join(missing(status, set(self._guards), read, unwell)))
        return stopped and not unwell

    def has_flowed(self, status: JobStatus) -> bool:
        drain, guards = status.drain, _guards(status)
        if drain.state is DrainState.DRAINED:
            return True
        if drain.unbalanced_segments or drain.uncommitted_producers:
            return False
        if not {each for each in drain.open_producers if not each.endswith(_OF_HAND_OVER)} <= guards.keys():
            return False
        if all(guards.values()):
            return True
        if self._settle():
            for guard in self._guards.values():
                guard.commit(status.last_seq)
        return False

    def _settle(self) -> bool:
        """Wait until all have acted on what has been announced, and return whether they have."""
        for query in self._queries:
            if query.has_operators:
                continue  # nothing waits for what it sends, and its source may never be at rest
            try:
                query.settle()
            except Exception as error:
                if query.failure() is None:
                    raise
                _log.info("query %s failed while its job was handed over: %s", query.run.query, error)
                return False
        return True

    def receivers_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        for query in self._queries:
            if query not in self._halted:
                self._halt(query)
        self.let_go()
        self._handed_over.update(self._queries)
        return True

    def let_go(self) -> None:
        for query, guard in list(self._guards.items()):
            try:
                guard.close()
            except TrackerError as error:
                if error.reason != Refusal.FENCED:  # another driver has it now
                    raise
            del self._guards[query]


def _guards(status: JobStatus) -> dict[str, bool]:
    """Return the queries that have a guard, and whether each has acted on all that was announced."""
    return {
        each.producer.removesuffix(_OF_HAND_OVER): each.committed_epoch is not None
        and each.committed_epoch >= status.last_seq
        for each in status.producers
        if not each.closed and each.producer.endswith(_OF_HAND_OVER)
    }


def missing(status: JobStatus, own: Set[str], read: Set[str], interrupted: Sequence[Path]) -> list[str]:
    """Return what a hand-over waits for, as one application sees it, and what to do.

    Args:
        own: the queries of the application, which it hands over.
        read: the segments that those of them read which run.
        interrupted: the checkpoints of those that do not, and have a batch to complete.
    """
    found = [
        f"a batch of the query with the checkpoint {checkpoint} was interrupted: start it again"
        for checkpoint in interrupted
    ]
    found += [
        f"elements are in flight on {segment!r}, and no query that runs here reads it: start the one that does"
        for segment in status.drain.unbalanced_segments
        if segment not in read
    ]
    guards = _guards(status)
    known = own | guards.keys()
    for producer in status.producers:
        query = producer.producer
        if producer.closed or query in known or query.endswith(_OF_HAND_OVER):
            continue
        staged = ", with batches whose commit is not known" if producer.staged_epochs else ""
        found.append(
            f"the run of query {query} is open{staged}, and no driver hands it over: start it, or give it up with "
            f"`tracker forget-producer {status.spec.job} {query}`"
        )
    found += [
        f"query {query} has not come as far: if its driver does not run, start it"
        for query, has_acted in guards.items()
        if not has_acted and query not in own
    ]
    return found


class Pause(Goal):
    """The goal of a moment's rest between two epochs of the sources: what is done then finds all queries alike.

    Args:
        queries: of this application: all that run of the job.
        until: the monotonic time by which it has to rest.

    Raises:
        UsageError: a query of it cannot be held: it runs elsewhere, or Spark runs it by itself.
    """

    end = State.AT_REST

    def __init__(self, client: JobClient, job: str, queries: Sequence[TrackedQuery], until: float) -> None:
        super().__init__()
        self._client = client
        self._job = job
        self._queries = queries
        self._until = until
        self._sources = [query for query in queries if query.only_sources]
        self._receivers = [query for query in queries if not query.only_sources]
        self._check()
        self._begun = {query: epoch for query in queries if (epoch := query.interrupted) is not None}
        self.status = self.look()  #: how the job stood at the last look

    def __repr__(self) -> str:
        return f"the pause of job {self._job}"

    def _check(self) -> None:
        if native := [query for query in self._queries if isinstance(query, NativeQuery) and query.fronts]:
            raise UsageError(
                f"the query with the checkpoint {native[0].checkpoint} reads a source, and Spark runs it by itself, so "
                "it cannot be held between two batches: hand the job over (tracking.hand_over()), and export then"
            )
        own = {query.run.query for query in self._queries}
        producers = self._read().producers
        others = [each.producer for each in producers if not each.closed and each.producer not in own]
        if others:
            raise UsageError(
                f"of job {self._job!r} these run elsewhere, and cannot be held from here: {', '.join(others)}. Hand "
                "the job over (tracking.hand_over()), and export then"
            )

    def look(self) -> JobStatus:
        self.must_run()
        if time.monotonic() > self._until:
            raise TimeoutError("the job did not come to rest in time, and goes on: something is in flight, or staged")
        self.status = self._read()
        return self.status

    def _read(self) -> JobStatus:
        try:
            return self._client.job(self._job)
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error

    def must_run(self) -> None:
        """Refuse a rest that is none, as a query has stopped: another run of it may go on, which nobody has paused.

        Raises:
            TrackingError: one has failed, or has stopped.
        """
        for query in self._queries:
            if (failure := query.failure()) is not None:
                raise failure
            if not _runs(query):
                raise TrackingError(
                    f"the query with the checkpoint {query.checkpoint} has stopped, so rows may wait for it: start it "
                    "again, or hand the job over (tracking.hand_over()), and export then"
                )

    def is_drained(self, status: JobStatus) -> bool:  # noqa: ARG002
        return False  # it goes on afterwards, so nothing of that is asked for

    def gathered(self, status: JobStatus) -> bool:  # noqa: ARG002
        """Wait for batches that have begun, be it under a driver that was killed: what these have published is out."""
        return all(_reaches(last_commit(query.checkpoint), epoch) for query, epoch in self._begun.items())

    def sources_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        return _keep_out(self._sources)

    def has_flowed(self, status: JobStatus) -> bool:
        if any(query.gate.paused for query in self._receivers):
            return True  # it had
        for query in self._receivers:
            query.settle()
        return self._is_quiet(status)

    def receivers_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        if not _keep_out(self._receivers):
            return False
        if self._is_quiet(self.look()):
            return True
        go_on(self._receivers)  # one of them had begun a batch meanwhile, and has sent something
        return False

    def _is_quiet(self, status: JobStatus) -> bool:
        """Return whether nothing is staged, and all that was sent has been received, but what stands for state."""
        if any(producer.staged_epochs for producer in status.producers):
            return False
        states = set(status.spec.state_segments)
        if status.in_flight and not states:
            return False  # without a look at each substream
        return all(
            account.ended or account.segment in states or account.sent == account.received
            for substream in self._client.substreams(self._job)
            for account in substream.segments
        )


@contextmanager
def paused(client: JobClient, job: str, queries: Sequence[TrackedQuery], timeout: float | None) -> Iterator[JobStatus]:
    """Keep the job at rest meanwhile, and yield how it stands. Then the sources' batches go on where they waited.

    Args:
        queries: of this application: all that run of the job.
        timeout: seconds in which it has to come to rest; None: for as long as it takes.

    Raises:
        UsageError: a query of it cannot be held: it runs elsewhere, or Spark runs it by itself.
        TrackingError: a query has failed, or the tracker cannot be reached.
        TimeoutError: it does not come to rest in time; its sources go on.
    """
    goal = Pause(client, job, queries, float("inf") if timeout is None else time.monotonic() + timeout)
    try:
        Quiesce(goal).run()
        yield goal.status
        goal.must_run()
    finally:
        go_on(queries)


def go_on(queries: Sequence[TrackedQuery]) -> None:
    """Open the gates of queries that are held."""
    for query in queries:
        query.gate.go_on()


def _keep_out(queries: Sequence[TrackedQuery]) -> bool:
    """Let no batch in any more, and return whether the ones in hand are committed, by Spark and at the tracker."""
    for query in queries:
        query.gate.pause()
    return all(map(_has_committed, queries))


def _has_committed(query: TrackedQuery) -> bool:
    if query.gate.busy or query.interrupted is not None:
        return False
    last = last_commit(query.checkpoint)
    if query.gate.last_epoch is not None and not _reaches(last, query.gate.last_epoch):
        return False
    query.report_commits(patient=True)
    return True


def _reaches(last: int | None, epoch: int) -> bool:
    """Return whether a batch is committed, by the number of the last one that is."""
    return last is not None and last >= epoch


def _runs(query: TrackedQuery) -> bool:
    return query.query is not None and query.query.isActive


def _must_be_well(query: TrackedQuery) -> None:
    """Finish nothing while something of a query has been published that it has not committed.

    Raises:
        TrackingError: it has failed, or was stopped in a batch.
    """
    failure = query.failure()
    if failure is not None:
        raise TrackingError(f"{failure}. Start it again, and the drain goes on") from failure
    if (batch := query.interrupted) is not None and query.fronts:
        raise TrackingError(
            f"batch {batch} of the query with the checkpoint {query.checkpoint} was stopped before it was committed. "
            "Start it again, and the drain goes on"
        )
