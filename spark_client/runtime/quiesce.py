"""The way of a job to rest: one machine with three goals, to finish, to hand over, and to pause.

A job rests when its sources' queries begin no batch, all that they have sent has arrived, and the queries that receive
do nothing either. The way there is the same for all goals. The machine looks at the job again and again; each look
carries the job on from the first state, through all states that are passed, to the one that is not.

To finish and to hand over, each query brings itself to rest, in the process where its batches run, and meets the others
at the tracker alone. A pause is of all queries of one application.

| state | passed, to finish | to hand over | to pause |
|---|---|---|---|
| `GATHERING` | all queries that receive here hold the drain | at once | batches that had begun are committed |
| `SOURCES` | a source's query has stopped, its fronts are finished | it has stopped | they are held at their gates |
| `FLOWING` | all has ended, only guards are staged | all is received, guards have come to the end | all is received |
| `RECEIVERS` | all is published, the query has stopped | it has stopped | they are held, all is received still |
| `AT_REST` | the job is drained at the tracker | likewise | the goal |
| `DRAINED` | the goal | the goal | |

A state that was passed can come back. A query that has begun a batch before it is held takes a pause back to `FLOWING`,
and its gate opens again. An error ends the attempt of its query in the state it is in; the guard stays, and so does the
drain, for the run that is started next. A job whose sources had finished before is drained at the tracker at once; its
queries are brought to rest all the same.

*Guards* are producers beside the queries' own. The tracker considers a job finished once all has ended and nothing is
staged, but results come after the ends. So a query that has some to release keeps an empty epoch staged meanwhile, by a
guard for each segment that the query reads; it is committed last. A source is finished when there is such a guard for
each segment that its application receives: a query that is still to be started has something to release, too.

In a hand-over nothing ends, and the queries that receive must not stop while something can still come for them,
whichever application sends it. So each query has a guard, which holds the hand-over while it is open. Its committed
epoch is the number of an event: the query has acted on all that was announced up to there. When this is the job's
newest event in all guards, nothing is staged, and all that was sent has been received, nothing is left to be done. That
stays so, and every query finds it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from enum import Enum
from typing import Final

from spark_client.advice import explaining
from spark_client.counting.runs import BETWEEN
from spark_client.errors import TrackingError, UsageError
from spark_client.runtime.queries import NativeQuery, TrackedQuery
from spark_client.storage.folder import Folder
from spark_client.trackers import JobClient, JobProducer
from tracker.client import DrainMode, DrainState, JobStatus, TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_OF_DRAIN: Final = "/drain"  #: after a segment: the guard by which the query that reads it holds the drain
_OF_HAND_OVER: Final = "/hand-over"  #: after a query's id: the guard that holds the hand-over
_UNIT: Final = "results"  #: of a guard's epoch
_LOOK_EVERY: Final = 0.05  #: seconds
_COMPLAIN_AFTER: Final = 10.0  #: seconds for which the same is waited for, and nothing logged
_JOINING: Final = 5.0  #: seconds in which the thread has to end when it is stopped


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
    """One attempt to bring a job, or a query of it, to rest. Another one can follow it if it fails or is stopped.

    Attributes:
        goal: the rest that is wanted: a drain, a hand-over or a pause.
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
        """Return whether the attempt has come to a good end."""
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
                if self.goal.stopped.is_set():
                    raise
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
    """A goal that was asked for at the tracker, as one query reaches it.

    Args:
        query: the query, whose run is open.

    Attributes:
        mode: what becomes of what is open.
        name: how the way there is called.
    """

    mode: DrainMode
    name: str

    def __init__(self, query: TrackedQuery) -> None:
        super().__init__()
        self._query = query
        self._run = query.run
        self._client = query.run.client
        self._halted = False
        self._complain_at = time.monotonic() + _COMPLAIN_AFTER

    def __repr__(self) -> str:
        return f"the {self.name} of job {self._run.job} by the query with the checkpoint {self._query.checkpoint}"

    def look(self) -> JobStatus:
        status = self._client.job(self._run.job)
        if status.drain.deployment != self._run.deployment:
            raise TrackingError(f"deployment {status.drain.deployment!r} has taken over: stop this application")
        if status.drain.state is DrainState.CANCELLED or status.drain.mode not in (self.mode, None):
            self.let_go()
            raise TrackingError(
                f"the {self.name} was cancelled when the queries that read sources had stopped: start them again"
            )
        if self.stopped.is_set():
            raise TrackingError(
                f"the queries were stopped before the {self.name} of their job was over: start them again under the "
                f"same deployment=, and the {self.name} goes on"
            )
        return status

    @abstractmethod
    def let_go(self) -> None:
        """Hold the drain no longer from here."""

    def _guard(self, beside: str) -> JobProducer:
        """Open a guard."""
        return self._client.open_producer(self._run.job, beside, f"{self._run.deployment}/{uuid.uuid4().hex[:8]}")

    def _halt_source(self) -> bool:
        """Stop the query after the batch that has begun, and return whether it has stopped.

        The results of that batch belong to this deployment, whichever driver began it. Spark runs it again before any
        other batch.
        """
        if not self._halted:
            self._query.rest()
            if self._query.interrupted is None or not _runs(self._query):
                self._halt()
        return self._halted

    def _halt(self) -> None:
        self._query.halt()
        self._query.close()
        self._halted = True

    def _note(self, found: str) -> None:
        """Note what is waited for, and log it once when it has been the same for some time."""
        if found != self.missing:
            self._complain_at = time.monotonic() + _COMPLAIN_AFTER
            self.missing = found
        elif found and time.monotonic() > self._complain_at:
            self._complain_at = float("inf")
            _log.warning("%r waits: %s", self, found)


class Finish(Drain):
    """The goal that all ends: sources stop and finish, what was read is released, and all queries stop."""

    mode = DrainMode.FINISH
    name = "drain"

    def __init__(self, query: TrackedQuery) -> None:
        super().__init__(query)
        self._guards: dict[str, tuple[JobProducer, int]] = {}  # by name
        self._holds = False
        self._superseded = False  # the run is over, as another driver has the query: that one drains it
        self._finished = False
        self._published = False

    def gathered(self, status: JobStatus) -> bool:
        """Hold the drain, and wait until all do that have something to release: one may have to be started yet."""
        query = self._query
        if not self._holds:
            if query.failure() is not None:
                self._note(f"the query with the checkpoint {query.checkpoint} has failed: start it again")
                return False
            self._superseded = not self._run.news.is_current(self._run.run)
            if query.outlives_its_sources and not self._superseded:
                for segment in query.segments:
                    self._guards[f"{segment}{_OF_DRAIN}"] = self._open_guard(f"{segment}{_OF_DRAIN}")
            self._holds = True
        if not self._reads_sources or self._finished or self.is_drained(status):
            return True
        guarded = {name.removesuffix(_OF_DRAIN) for name in status.drain.uncommitted_producers}
        unread = query.received_beside - guarded - {*query.segments}
        self._note(to_be_started(unread) if unread else "")
        return not unread

    @property
    def _reads_sources(self) -> bool:
        return bool(self._query.fronts) and not self._superseded

    def _open_guard(self, name: str) -> tuple[JobProducer, int]:
        """Stage an empty epoch."""
        guard = self._guard(name)
        epoch = 0 if guard.committed_epoch is None else guard.committed_epoch + 1
        guard.epoch(epoch).report(units=[_UNIT])
        return guard, epoch

    def sources_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        query = self._query
        if not self._reads_sources or self._finished:
            return True
        if not query.has_operators:
            if not self._halt_source():
                return False
            _must_be_well(query)
        self.look()  # the source is finished for good, so nobody must have cancelled it while it stopped
        for front in query.fronts:
            front.rest(self._run.news.frontiers)
            if query.has_operators and _runs(query):
                query.finish(front.front)  # it goes on, until what it holds has come out
            for name in front.names:
                self._client.finish_front(self._run.job, name)
        self._finished = True
        return True

    def has_flowed(self, status: JobStatus) -> bool:
        drain = status.drain
        staged = [producer for producer in drain.uncommitted_producers if not producer.endswith(_OF_DRAIN)]
        return not (drain.unfinished_fronts or drain.open_substreams or staged)

    def receivers_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        query = self._query
        if not self._published and not self._superseded:
            self.look()
            if query.fronts and not query.has_operators:
                query.drain()
            else:
                query.settle()
                _must_be_well(query)
                self._halt()
            self._published = True
        self.let_go()
        return True

    def let_go(self) -> None:
        for name, (guard, epoch) in list(self._guards.items()):
            try:
                guard.commit(epoch)
                guard.close()
            except TrackerError as error:
                if error.reason != Refusal.FENCED or not self._run.news.is_current(self._run.run):
                    raise
                # A driver whose run is over took the hold away from this one. Its own must not stay.
                again, epoch = self._open_guard(name)
                again.commit(epoch)
                again.close()
            del self._guards[name]


def to_be_started(segments: Set[str]) -> str:
    """Return what to do about segments that no query reads."""
    return f"queries that do not run, or have failed, are to be started: of {', '.join(sorted(segments))}"


class HandOver(Drain):
    """The goal that the next deployment goes on: sources stop, what they have sent arrives, and all queries stop."""

    mode = DrainMode.HAND_OVER
    name = "hand-over"

    def __init__(self, query: TrackedQuery) -> None:
        super().__init__(query)
        self._open: JobProducer | None = None  # the guard
        self._left = True  # the query is to be handed over yet, and by this driver

    def gathered(self, status: JobStatus) -> bool:
        """Open the guard, unless another driver has the query now, or all is done."""
        newest = {(producer.producer, producer.run) for producer in status.producers}
        if self.is_drained(status) or (self._run.query, self._run.run) not in newest:
            self._left, self._open = False, None  # every run has closed, or a guard would hold it
        elif self._left and self._open is None:
            self._open = self._guard(f"{self._run.query}{_OF_HAND_OVER}")
        return True

    def sources_rest(self, status: JobStatus) -> bool:
        query = self._query
        if not self._left:
            return True
        stopped = not query.only_sources or self._halt_source()
        unwell = not _runs(query) and query.interrupted is not None
        reads = query.segments if _runs(query) else []
        self._note("; ".join(missing(status, self._run.query, reads, query.checkpoint if unwell else None)))
        return stopped and not unwell

    def has_flowed(self, status: JobStatus) -> bool:
        drain, guards = status.drain, _guards(status)
        if drain.state is DrainState.DRAINED:
            return True
        if drain.unbalanced_segments or drain.uncommitted_producers:
            return False
        opened = {each.removesuffix(BETWEEN) for each in drain.open_producers if not each.endswith(_OF_HAND_OVER)}
        if not opened <= guards.keys():
            return False
        if all(guards.values()):
            return True
        if self._open is not None and self._settle():
            self._open.commit(status.last_seq)
        return False

    def _settle(self) -> bool:
        """Wait until the query has acted on what has been announced, and return whether it has."""
        query = self._query
        if query.has_operators:
            return True  # nothing waits for what it sends, and its source may never be at rest
        try:
            query.settle()
        except Exception as error:
            if query.failure() is None:
                raise
            _log.info("query %s failed while its job was handed over: %s", self._run.query, error)
            return False
        return True

    def receivers_rest(self, status: JobStatus) -> bool:  # noqa: ARG002
        if self._left:
            if not self._halted:
                self._halt()
            self.let_go()
            self._left = False
        return True

    def let_go(self) -> None:
        if self._open is not None:
            try:
                self._open.close()
            except TrackerError as error:
                if error.reason != Refusal.FENCED:  # another driver has it now
                    raise
            self._open = None


def _guards(status: JobStatus) -> dict[str, bool]:
    """Return the queries that have a guard, and whether each has acted on all that was announced."""
    return {
        each.producer.removesuffix(_OF_HAND_OVER): each.committed_epoch is not None
        and each.committed_epoch >= status.last_seq
        for each in status.producers
        if not each.closed and each.producer.endswith(_OF_HAND_OVER)
    }


def to_complete(checkpoint: Folder) -> str:
    """Return what to do about a query that does not run and has a batch to complete."""
    return f"a batch of the query with the checkpoint {checkpoint} was interrupted: start it again"


def missing(status: JobStatus, own: str, reads: Sequence[str], interrupted: Folder | None) -> list[str]:
    """Return what a hand-over waits for, as one query sees it, and what to do.

    Args:
        own: the id of the query.
        reads: the segments that it reads; empty if it does not run.
        interrupted: its checkpoint, if it does not run and has a batch to complete.
    """
    found = []
    if interrupted is not None:
        found.append(to_complete(interrupted))
    found += [
        f"elements are in flight on {segment!r}: if the query that reads it does not run, start it"
        for segment in status.drain.unbalanced_segments
        if segment not in reads
    ]
    guards = _guards(status)
    for producer in status.producers:
        query = producer.producer.removesuffix(BETWEEN)
        if producer.closed or query == own or query in guards or query.endswith(_OF_HAND_OVER):
            continue
        staged = ", with batches whose commit is not known" if producer.staged_epochs else ""
        found.append(
            f"the run of query {query} is open{staged}, and no driver hands it over: start it, or give it up with "
            f"`tracker forget-producer {status.spec.job} {query}`"
        )
    found += [
        f"query {query} has not come as far: if its driver does not run, start it"
        for query, has_acted in guards.items()
        if not has_acted and query != own
    ]
    return found


class Pause(Goal):
    """The goal of a moment's rest between two epochs of the sources: what is done then finds all queries alike.

    Args:
        queries: of this application: all that run of the job.
        until: the monotonic time by which it has to rest.
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
        open_ones = [each.producer for each in producers if not each.closed]
        others = [each for each in open_ones if each.removesuffix(BETWEEN) not in own]
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
        with explaining():
            return self._client.job(self._job)

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
        return all(_reaches(query.last_commit, epoch) for query, epoch in self._begun.items())

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
    last = query.last_commit
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
