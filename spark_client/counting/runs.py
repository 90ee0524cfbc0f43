"""One run of a tracked query: what it reports to the tracker, and when, and what it reads of its job there.

Producer is the query's id, run the run's, epoch the batch's. An epoch is reported, staged, before Spark commits the
batch, and committed after: see `TrackedQuery.report_commits`.

While the tracker is away, a run whose outbox keeps reports goes on without: its batches learn of no end, and nothing is
promised. Once the tracker is back, it takes the kept epochs one after the other, each as if it had just come.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from spark_client.advice import advice, is_away
from spark_client.counting.news import DRAINS, JobNews
from spark_client.counting.outbox import KeptEpoch, Outbox, packed, unpacked
from spark_client.errors import TrackingError, torn
from spark_client.fronts.front import LiveFront
from spark_client.plan.batches import BatchId
from spark_client.storage.folder import Folder
from spark_client.trackers import JobClient, JobProducer
from spark_client.trackers.eventlogs import newest
from spark_client.windows.substreams import Substream
from tracker.client import (
    DrainMode,
    Expected,
    Finish,
    Frontier,
    Outcome,
    Report,
    TrackerError,
    TrackerUnavailable,
)
from tracker.client.report import Largest, split
from tracker.contract.commands import CommitPromise, Contents
from tracker.contract.refusal import Refusal

_T = TypeVar("_T")

_log = logging.getLogger("spark_client")

DRIVER_UNIT = "driver"
_LOG = "log.json"  #: of a checkpoint: the name of the job's log
BETWEEN = ".between"  #: after a query's id: the producer of what it sends on between two batches

_FIRST_PAUSE = 0.05  #: seconds between two attempts to reach a tracker that is away; they double up to
_LONGEST_PAUSE = 1.0


class Run:
    """A run that is open at the tracker.

    Calls of one attempt raise a `TrackerUnavailable` where no answer came, and are to be called again; and a
    `TrackerError` where the tracker refuses, after which the run has failed, with that as `failure`.

    Args:
        client: of the job; it repeats a call that gets no answer for as long as its `retry_for`.
        resume_epoch: the first batch that Spark has not committed; None: that is not sure yet, and `resume` follows.
        seals: whether it seals each batch before Spark commits it.
        outbox: reports that the tracker does not have yet.

    Raises:
        TrackingError: the tracker refuses the run, or cannot be reached.
    """

    def __init__(
        self,
        client: JobClient,
        job: str,
        query: str,
        run: str,
        resume_epoch: int | None,
        seals: bool = False,
        outbox: Outbox | None = None,
    ) -> None:
        self.job = job
        self.query = query
        self.run = run
        self.client = client
        self.news = JobNews(client, job, query)
        self.outbox = Outbox() if outbox is None else outbox
        with self.news.explaining():
            self._producer: JobProducer = client.open_producer(
                job, query, run, resume_epoch=resume_epoch, seals=seals, replays=True
            )
            statuses = self.news.statuses()
        self._once = self.news.impatient.producer(job, query, run, keep_apart=seals)
        self.largest = Largest.by(client.server_info().limits)
        self._units: list[str] = []  # of the driver, in the epoch in hand
        self.deployment = statuses[0].spec.deployment
        self.incarnation = statuses[0].incarnation  #: how often the job had started afresh, after drains
        self.place = newest(statuses)  #: after the job's newest events when the run began
        self.left: int | None = None  #: the batch that a driver before this one has begun, and may commit yet
        self._resume_at(resume_epoch or 0)
        self.failure: Exception | None = None
        self._ask_again = 0.0
        self._lock = threading.RLock()
        self._staged: set[int] = set()
        self._closed = False
        self._hurry = threading.Event()
        self._patient_until = float("inf")
        self._between: Run | None = None
        self.acts = 0  #: that are published, if results are sent on

    def _resume_at(self, epoch: int) -> None:
        self.resume_epoch = epoch
        self.last_epoch: int | None = epoch - 1 if epoch else None  #: that Spark has committed

    def resume(self, committed: int | None, begun: int | None) -> None:
        """Let what Spark has committed take effect, once this run has fenced the drivers before it.

        One of them may have reported a batch before, and may commit it yet, since that takes no tracker. So this stays
        staged at the tracker until Spark's log has the batch, or Spark runs the batch here: `start`.

        Args:
            committed: the last batch that Spark has committed, read after this run was opened; None: none yet.
            begun: the last batch that Spark has planned, likewise.

        Raises:
            TrackerError: the tracker refuses it.
            TrackerUnavailable: no answer came in time.
        """
        self.outbox.look()
        self._resume_at(0 if committed is None else committed + 1)
        self.left = begun if begun is not None and begun >= self.resume_epoch else None
        if begun is not None:
            self.expect(begun)
        if self.left is None:
            self.outbox.remove_from(self.resume_epoch)
            if committed is not None:
                self.await_committed(committed)

    def start(self, epoch: int) -> None:
        """Learn the first batch that Spark runs: it has committed those before, whoever ran them, and no later one."""
        with self._lock:
            self.left = None
            self.outbox.remove_from(epoch)
            self._resume_at(epoch)

    def check_log(self, checkpoint: Folder) -> None:
        """Check whether the tracker is the one that the query's checkpoint is about, and has not lost what it knew.

        Raises:
            TrackingError: it knows nothing of the batches that Spark has committed, or the note is missing.
        """
        own = checkpoint / "tracker"
        known = own.read(_LOG)
        if known is None and self.resume_epoch:
            raise torn(f"{own.url(_LOG)} is missing", self.resume_epoch, checkpoint)
        if not self.resume_epoch:
            own.put(_LOG, self.place.log_id)
        elif known != self.place.log_id:
            what_to_do = advice("LOG_CHANGED", "", self.job, self.client.command_options)
            raise TrackingError(f"LOG_CHANGED: the job's log is {self.place.log_id!r}, and was {known!r}. {what_to_do}")

    def open_between(self, act: int) -> None:
        """Open the run by which results are sent on between two batches, unless it is open.

        Args:
            act: the number of the next act: those before are published, and take effect.

        Raises:
            TrackingError: the tracker refuses it, or cannot be reached.
        """
        if self._between is None:
            self._between = Run(self.client, self.job, f"{self.query}{BETWEEN}", self.run, act)
            self.acts = act

    @property
    def between(self) -> Run:
        """The run by which results are sent on between two batches: its epochs are the numbers of acts."""
        assert self._between is not None
        return self._between

    # ---------------------------------------------------------------- epochs

    def batch(self, epoch: int, completed: tuple[Substream, ...] = (), rest: bool = False) -> BatchId:
        """Return how one of its batches is called."""
        return BatchId(self.query, self.run, epoch, completed, rest)

    def report(self, epoch: int) -> Report:
        """Return an empty report of an epoch."""
        return self._producer.epoch(epoch)

    def send(self, report: Report, epoch: int) -> list[Outcome]:
        """Send the driver's report of an epoch, before Spark commits it; or keep it while the tracker is away.

        Returns:
            The outcome of each message that was sent.

        Raises:
            TrackingError: the tracker refuses it, or has it for committed.
        """
        pieces = list(report.pieces(DRIVER_UNIT, partial(split, largest=self.largest)))
        self._units = [unit for unit, _ in pieces]
        self.outbox.away |= bool(self.outbox.unsent)
        answers = self.unless_away(lambda: [self._deliver(self._producer, epoch, *piece) for piece in pieces])
        if answers is None:
            with self._lock:
                self.outbox.keep(epoch, KeptEpoch([*self.outbox.unsent, *(packed(*piece) for piece in pieces)]))
            return []
        self.expect(epoch)
        return answers

    def _deliver(self, producer: JobProducer, epoch: int, unit: str, contents: Contents) -> Outcome:
        outcome = producer.deliver(epoch, contents, [unit], False).outcome
        if outcome is Outcome.ALREADY_COMMITTED:
            raise self.news.rewound(epoch)
        return outcome

    def seal(self, epoch: int, units: Sequence[str]) -> None:
        """Seal an epoch: the driver's report and these units count, and no others. Spark may commit it afterwards.

        Raises:
            TrackingError: a report of one of them never arrived; the batch must not be committed.
        """
        sealed = [*self._units, *units]

        def call() -> bool:
            self._producer.commit(epoch, units=sealed, seal=True)
            return True

        if self.unless_away(call) is None:
            with self._lock:
                kept = self.outbox.read(epoch) if epoch in self.outbox else KeptEpoch([])
                self.outbox.keep(epoch, KeptEpoch(kept.units, sealed))

    # ---------------------------------------------------------------- while the tracker is away

    @property
    def away(self) -> bool:
        """Return whether the tracker is away, or batches are still to be reported."""
        return self.outbox.away

    def unless_away(self, ask: Callable[[], _T]) -> _T | None:
        """Return what the tracker answers; None: it is away, and the batch goes on without.

        Raises:
            TrackingError: the tracker refuses; or cannot be reached, and the outbox keeps nothing.
        """
        if self.away:
            return None
        try:
            with self.news.explaining():
                return ask()
        except TrackingError as error:
            if self.outbox.patience is None or not is_away(error):
                raise
            self.outbox.leave(self.query, error.__cause__ or error)
            return None

    def answers(self) -> bool:
        """Return whether a tracker that was away answers again; it is asked now and then."""
        if time.monotonic() < self._ask_again:
            return False
        try:
            self.news.impatient.get_drain(self.job)
        except TrackerUnavailable:
            self._ask_again = time.monotonic() + _LONGEST_PAUSE
            return False
        except TrackerError:
            pass  # it refuses: who calls it next finds out
        return True

    def settle(self) -> None:
        """Have what Spark has committed take effect, as far as nothing before it is kept. One attempt."""
        with self._lock:
            if self.last_epoch is not None:
                self._commit(self.last_epoch)

    def deliver_next(self) -> bool:
        """Send the oldest of the committed epochs that are kept, once those before it have taken effect. One attempt.

        Returns:
            True once the tracker has all that was committed.
        """
        with self._lock:
            self.settle()
            last, first = self.last_epoch, self.outbox.first
            if first is None:
                self.news.impatient.get_drain(self.job)  # which raises if the tracker is away yet
            elif last is None or first > last:
                return True
            else:
                units, sealed = self.outbox.read(first)
                with self._failing():
                    for unit in units:
                        self._deliver(self._once, first, *unpacked(unit))
                    if sealed is not None:
                        self._once.commit(first, units=sealed, seal=True)
                self.expect(first)
                self.outbox.remove([first])
                self.settle()
            self.outbox.away = bool(self.outbox)
            if not self.away:
                _log.info("query %s: the tracker is back, and has been told all that was kept", self.query)
            return not self.away

    def drains(self) -> DrainMode | None:
        """Return how the deployment is drained, or was, at each tracker that has the job; None: it is not. One attempt,
        after whose refusal the run goes on."""
        drain = self.news.impatient.get_drain(self.job)
        return drain.mode if drain.state in DRAINS and drain.deployment == self.deployment else None

    @property
    def closed(self) -> bool:
        """Return whether the tracker knows that the query has stopped: nothing more is reported or promised."""
        return self._closed

    @property
    def owes(self) -> bool:
        """Return whether something is staged, or kept, that waits for Spark's commit."""
        return bool(self._staged) or self.away

    def expect(self, epoch: int) -> None:
        """Note that something of this epoch is staged, by the driver or by executors."""
        with self._lock:
            self._staged.add(epoch)

    def committed(self, epoch: int, promises: Sequence[Frontier | Finish] = ()) -> None:
        """Have a batch take effect, since Spark has committed it. One attempt."""
        with self._lock:
            if self._closed:
                return
            if not self.away or promises:
                self._commit(epoch, promises)
            if self.left is not None and epoch >= self.left:
                self.left = None
            self.last_epoch = epoch if self.last_epoch is None else max(epoch, self.last_epoch)

    def _commit(self, epoch: int, promises: Sequence[Frontier | Finish] = ()) -> None:
        """Have what is staged up to an epoch take effect, as far as nothing before it is kept."""
        up_to = self.outbox.settled(epoch)
        due = any(staged <= up_to for staged in self._staged)
        if due or promises:
            with self._failing():
                self._once.commit(up_to if due else None, promises=promises)
        self._staged = {staged for staged in self._staged if staged > up_to}

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Note what the tracker refuses: the run has failed."""
        try:
            yield
        except (TrackerError, TrackingError) as error:
            self.failure = error
            raise

    def await_committed(self, epoch: int) -> None:
        """Do as `committed`, and wait for a tracker that is away, until `hurry` has set an end to that; or as long as
        the outbox has it.

        Raises:
            TrackerError: it refuses; the run has failed then.
            TrackerUnavailable: no answer, and the query is being stopped.
        """
        patience = self.outbox.patience
        try:
            self._patiently(lambda: self.committed(epoch), patience)
        except TrackerUnavailable as error:
            if patience is None or self._hurry.is_set():
                raise
            self.outbox.leave(self.query, error)
            self.committed(epoch)

    def promise(self, promises: Sequence[Frontier | Finish]) -> None:
        """Make promises that no batch carries.

        Raises:
            TrackerError: the tracker refuses them, such as while a later epoch is staged.
            TrackerUnavailable: no answer came in time, or the tracker has not been told all batches.
        """
        if self.away:
            raise TrackerUnavailable(f"the tracker is away, or has not been told all batches of query {self.query} yet")
        self._producer.commit(promises=promises)

    def hurry(self, patience: float) -> None:
        """Wait for the tracker no longer than that from now on, since the query is being stopped.

        Args:
            patience: seconds for all calls from now on.
        """
        self._patient_until = min(self._patient_until, time.monotonic() + patience)
        self._hurry.set()

    def close(self, resume_epoch: int, patient: bool = True) -> bool:
        """Close the run of a query that has stopped. Else the tracker settles what was left when the query starts
        again.

        Args:
            resume_epoch: the first batch that Spark has not committed.
            patient: whether a tracker that is away is waited for, as long as `hurry` allows it.

        Returns:
            True if it is closed at the tracker; False: the tracker is away.

        Raises:
            TrackerError: the tracker refuses to close it; not for a run that another one has fenced.
        """

        def attempt() -> None:
            with self._lock:
                if self._closed:
                    return
                try:
                    decided = self.left is None or resume_epoch > self.left
                    self._once.close(resume_epoch=self.outbox.first_up_to(resume_epoch) if decided else None)
                except TrackerError as error:
                    if error.reason != Refusal.FENCED:  # another run has taken over: nothing is left to close
                        self.failure = error
                        raise
                self._closed = True
                self.last_epoch = resume_epoch - 1 if resume_epoch else None

        try:
            if patient:
                self._patiently(attempt)
            else:
                attempt()
        except TrackerUnavailable:
            return False
        return self._between is None or self._between.close(self.acts, patient)

    def must_be_newest(self) -> None:
        """Ask the tracker whether this run may still write what no epoch of it reports. While the tracker is away, the
        batch writes nothing but its own state.

        Raises:
            TrackingError: another run has taken over.
        """
        if self.unless_away(partial(self.news.is_current, self.run)) is False:
            raise TrackingError(
                f"run {self.run} of query {self.query} writes nothing more: another run of the query has taken over"
            )

    def announce(self, front: LiveFront, patient: bool = True) -> None:
        """Make the promises of a front that wait for no batch. One that has to wait for a batch all the same stays due.

        Another count of a substream that has ended, as of a load that was rewritten since, is passed over with a
        warning, and stops nothing else.

        Args:
            patient: whether a tracker that is away is waited for; else the caller calls again.

        Raises:
            TrackingError: the tracker refuses, or cannot be reached.
            TrackerUnavailable: it cannot be reached, if not `patient`.
        """
        with self._lock:
            while not self._closed and not self.away and (promises := front.due()):
                try:
                    done = self._promised(front, promises, patient)
                except TrackerUnavailable as error:
                    if not patient:
                        raise
                    raise self.news.explained(error) from error
                except TrackerError as error:
                    raise self.news.explained(error) from error
                if done is None:
                    return
                front.promised(done)

    def _promised(
        self, front: LiveFront, promises: Sequence[CommitPromise], patient: bool
    ) -> Sequence[CommitPromise] | None:
        """Make promises, and return those that are no longer due; None: a batch under way takes them along."""
        try:
            (self._producer if patient else self._once).commit(promises=promises)
        except TrackerError as error:
            if error.reason == Refusal.EPOCH_STAGED:
                return None
            if error.reason != Refusal.EXPECT_CONFLICT or not (others := self.news.ended_otherwise(promises, patient)):
                raise
            _passed_over(front, others)
            return list(others)
        return promises

    def _patiently(self, call: Callable[[], object], patience: float | None = None) -> None:
        """Repeat a call while the tracker cannot be reached, until `hurry` has set an end to that.

        Args:
            patience: seconds after which it is over, too.
        """
        pause, warned = _FIRST_PAUSE, False
        until = float("inf") if patience is None else time.monotonic() + patience
        while True:
            try:
                call()
                return
            except TrackerUnavailable as error:
                if time.monotonic() + pause > min(until, self._patient_until):
                    raise
                if not warned:
                    _log.warning("query %s waits for the tracker: %s", self.query, error)
                    warned = True
            if not self._hurry.wait(pause):
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                time.sleep(_FIRST_PAUSE)


def _passed_over(front: LiveFront, others: Mapping[Expected, int]) -> None:
    """Log that substreams which have ended are counted differently now."""
    first, count = next(iter(others.items()))
    _log.warning(
        "%r: %r of scope %r has ended with %d and is counted as %d now%s. Its result stays as it is",
        front.front,
        first.name,
        first.scope,
        count,
        first.elements,
        f"; likewise {len(others) - 1} others" if len(others) > 1 else "",
    )
