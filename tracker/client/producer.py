"""One run of a producer, which reports epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from tracker.client import relay
from tracker.client.calls import Calls
from tracker.client.connection import named
from tracker.client.errors import EpochCommittedError, TrackerError
from tracker.client.report import Report
from tracker.contract.bounds import checked_epoch
from tracker.contract.commands import CommitPromise, Contents, Reported
from tracker.contract.refusal import Refusal
from tracker.contract.spec import check_texts
from tracker.contract.values import Outcome
from tracker.wire import codec
from tracker.wire.codec import unpack_u8
from tracker.wire.gen import columns_pb2, tracker_pb2

_R = TypeVar("_R", bound="ProducerRun")

_IDS_HOLD_NO_MORE = frozenset({"UNKNOWN_ID", "LOG_CHANGED"})


class RunName(NamedTuple):
    """Names of a run."""

    job: str
    producer: str
    run: str


class ProducerRun(ABC):
    """A run of a producer, whether it reports to one tracker or to several.

    Args:
        committed_epoch: None: none was, or the tracker was not asked.
        replays: reports of epochs that were committed before this run was opened are sent.
    """

    _where = ""  # an epoch has to be committed, for the next one to be reported

    def __init__(self, name: RunName, committed_epoch: int | None, replays: bool) -> None:
        self.job, self.producer, self.run = name
        check_texts(**name._asdict())
        self.committed_epoch = committed_epoch
        self._replays = replays

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job!r}, producer={self.producer!r}, run={self.run!r})"

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()

    def epoch(self, epoch: int | None = None) -> Report:
        """Return an empty report for an epoch; `Report.report` sends it.

        An epoch may have many reports, each with its own units.

        Args:
            epoch: 0, 1, 2, …; None: the next one (`next_epoch`).

        Raises:
            ValueError: the epoch is negative, or above 2^62 - 1.
        """
        number = self.next_epoch() if epoch is None else epoch
        checked_epoch(number)

        def send(contents: Contents, units: Sequence[str], commit: bool) -> Reported:
            if not self._replays and self.committed_epoch is not None and number <= self.committed_epoch:
                raise EpochCommittedError(self.producer, number, self.next_epoch())
            return self.deliver(number, contents, units, commit)

        return Report(send, number, self.job, self.producer)

    def epochs(self) -> Iterator[Report]:
        """Yield an empty report for the next epoch, then for the one after it, and so on, as plain programs need it.

        The caller must commit each report before it takes the next one.

        Raises:
            RuntimeError: the previous report was not committed.

        >>> def count(till, orders):
        ...     for report, order in zip(till.epochs(), orders):
        ...         report.sent("orders", order.shop, order.day, order.label)
        ...         report.report(commit=True)
        """
        while True:
            number = self.next_epoch()
            yield self.epoch(number)
            if self.next_epoch() <= number:
                raise RuntimeError(
                    f"epoch {number} of producer {self.producer!r} was not committed{self._where}; call "
                    "report.report(commit=True) before you ask for the next one"
                )

    @abstractmethod
    def next_epoch(self) -> int:
        """Return the epoch to report next."""

    @abstractmethod
    def deliver(self, epoch: int, contents: Contents, units: Sequence[str], commit: bool) -> Reported:
        """Send a report. Callers use `Report.report`, whose docstring describes units, commit, result and errors."""

    @abstractmethod
    def close(self, resume_epoch: int | None = None) -> None:
        """Close the run."""


class Producer(ProducerRun):
    """A run of a producer, made by `TrackerClient.open_producer` and `TrackerClient.producer`.

    Many threads and processes may share it, and it is picklable: it keeps little but names. As a context manager it
    closes its run at the end, unless an exception passes through. Staged epochs wait for the next run either way.

    Attributes:
        committed_epoch: the last epoch that was committed when the run was opened; None: none was, or the tracker was
            not asked.
        keep_apart: the engine may drop some of this run's reports, so a relay must not combine them.
    """

    def __init__(
        self,
        calls: Calls,
        name: RunName,
        committed_epoch: int | None,
        keep_apart: bool,
        next_epoch: int | None = None,
        replays: bool = True,
    ) -> None:
        super().__init__(name, committed_epoch, replays)
        self._calls = calls
        self.keep_apart = keep_apart
        self._next_epoch = next_epoch

    def next_epoch(self) -> int:
        """Return the epoch to report next: the one after the last commit that this object has made or found.

        For a run that another process has opened (`TrackerClient.producer`), it asks the tracker once.

        Raises:
            TrackerError: the tracker does not know the job any more (``UNKNOWN_JOB``).
            TrackerUnavailable: no answer in time.
        """
        if self._next_epoch is None:
            request = tracker_pb2.GetJobRequest(job=self.job)
            job = self._calls.repeat(lambda connection: connection.stubs.GetJob, request)
            committed = [
                each.committed_epoch
                for each in job.producers
                if each.producer == self.producer and each.HasField("committed_epoch")
            ]
            self._has_committed(max(committed, default=-1))
        assert self._next_epoch is not None
        return self._next_epoch

    def _has_committed(self, epoch: int) -> None:
        self._next_epoch = max(epoch + 1, self._next_epoch or 0)

    def commit(
        self,
        epoch: int | None = None,
        units: Sequence[str] | None = None,
        seal: bool = False,
        promises: Sequence[CommitPromise] = (),
    ) -> int:
        """Commit or seal epochs, or make promises that belong to no epoch. Safe to repeat.

        Args:
            epoch: commit every staged epoch up to and including this one; None: only make promises.
            units: the manifest, which lists the units that the engine kept; None: all that were reported. A manifest
                that may leave units out needs a producer with `keep_apart`.
            seal: check the manifest and fix the epoch's units by it, but do not commit yet.
            promises: frontiers, finishes and expectations. They take effect after the commit, even if the epoch was
                committed before.

        Returns:
            The `seq` of the job's newest event.

        Raises:
            TrackerError: ``FENCED``, ``MISSING_UNITS`` (the message names them), ``SPLIT_UNITS``, ``EPOCH_STAGED``
                (a frontier or finish while a later epoch is staged), ``EXPECT_CONFLICT``, ``MALFORMED``, and a
                report's reasons for its promises.
            TrackerUnavailable: no answer in time.

        >>> def commit_in_two_steps(till, kept):
        ...     till.commit(3, units=kept, seal=True)  # like the prepare of a two-phase commit
        ...     till.commit(3, units=kept)
        """
        request = tracker_pb2.CommitRequest(
            job=self.job,
            producer=self.producer,
            run=self.run,
            epoch=checked_epoch(epoch),
            units=None if units is None else tracker_pb2.Units(names=codec.names_of(units)),
            seal=seal,
            promises=codec.write_promises(promises),
        )
        answer = self._calls.repeat(lambda connection: connection.stubs.Commit, request)
        if epoch is not None and not seal:
            self._has_committed(epoch)
        return answer.last_seq

    def close(self, resume_epoch: int | None = None) -> None:
        """Close the run; the tracker refuses its later reports. Safe to repeat, unless a later run has taken over.

        Args:
            resume_epoch: the first epoch that the engine has not committed, if known: staged epochs before it are
                committed, the others revoked. None: staged epochs wait for the producer's next run.

        Raises:
            TrackerError: ``FENCED``: the run was closed before, or a later run has taken over.
            TrackerUnavailable: no answer in time.
        """
        request = tracker_pb2.CloseProducerRequest(
            job=self.job, producer=self.producer, run=self.run, resume_epoch=checked_epoch(resume_epoch)
        )
        self._calls.repeat(lambda connection: connection.stubs.CloseProducer, request, in_doubt=self.must_be_closed)

    def must_be_closed(self, refused: TrackerError) -> tracker_pb2.CloseProducerResponse:
        """Decide about a refused close. A closed run is fenced, so the tracker refuses a repeated close, too.

        Returns:
            The answer of a close, if this run was closed.

        Raises:
            TrackerError: `refused`, if another run has taken over.
        """
        if refused.reason == Refusal.FENCED:
            request = tracker_pb2.GetJobRequest(job=self.job)
            job = self._calls.repeat(lambda connection: connection.stubs.GetJob, request)
            if any(p.closed and (p.producer, p.run) == (self.producer, self.run) for p in job.producers):
                return tracker_pb2.CloseProducerResponse()
        raise refused

    def deliver(self, epoch: int, contents: Contents, units: Sequence[str], commit: bool) -> Reported:
        substreams = named(contents)
        known = self._calls.connection().ids(self.job)
        want_ids = len(substreams) <= known.capacity
        log_id, ids = known.look_up(substreams)
        message, by_name = codec.write_report(contents, log_id, ids, want_ids)
        try:
            answer = self._send(message, epoch, units, commit)
        except TrackerError as refused:
            if refused.reason not in _IDS_HOLD_NO_MORE or len(by_name) == len(ids):
                raise
            known.forget()
            message, by_name = codec.write_report(contents, "", [None] * len(ids), want_ids)
            answer = self._send(message, epoch, units, commit)
        if len(answer.substream_ids):
            known.learn(
                answer.log_id, [substreams[place] for place in by_name], unpack_u8(answer.substream_ids).tolist()
            )
        reported = codec.read_reported(answer)
        if reported.outcome is Outcome.ALREADY_COMMITTED or (commit and reported.done):
            self._has_committed(epoch)
        return reported

    def _send(
        self, message: columns_pb2.ReportRequest, epoch: int, units: Sequence[str], commit: bool
    ) -> tracker_pb2.ReportResponse:
        message.job, message.producer, message.run = self.job, self.producer, self.run
        message.epoch = epoch
        message.units.extend(codec.names_of(units))
        message.commit = commit
        message.keep_apart = self.keep_apart
        return relay.report(self._calls, message)
