"""The client for all calls of a tracker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

import grpc

from tracker.client import forking
from tracker.client.calls import Calls, refusal
from tracker.client.credentials import Credentials
from tracker.client.errors import TrackerError, TrackerUnavailable
from tracker.client.eventcalls import EventCalls
from tracker.client.producer import Producer, RunName
from tracker.contract.bounds import checked_epoch
from tracker.contract.commands import JobDefined
from tracker.contract.spec import JobSpec, check_texts
from tracker.contract.spec import ModeWord as Mode
from tracker.contract.status import DrainStatus, Explained, JobStatus, ServerInfo, SubstreamStatus
from tracker.wire import COMMITTED_ENDS, HAND_OVER, UNPROMISED, codec
from tracker.wire.gen import tracker_pb2


class TrackerClient(EventCalls, AbstractContextManager["TrackerClient"]):
    """Client of a tracker, or of several that each have a share of the jobs.

    A client is cheap to make, many threads may share it, and it is pickled by its options.

    The first call connects. All clients of the process for the same address share the connection as long as one of them
    lives, so a program that makes clients often should keep one. After a fork, parent and child each continue with
    connections of their own.

    If a relay (`tracker relay`) runs on the node, reports that it can combine with others go through it, without any
    setting: see `tracker.client.relay`.

    With several servers, the calls about a job go to the server that `servers.choose` chooses by the job's name, and
    the calls about all jobs go to all servers. Every client of a job needs the same list of servers.

    Every call has a deadline. The client repeats it, with growing pauses, if the tracker cannot be reached, does not
    answer in time, or cannot write its journal. Repeating is safe for

    - reports, since the tracker recognises each unit of an epoch (`Report.report` describes the answer to a repeated
      one);
    - `define_job`, `open_producer`, `finish_front`, `subscribe`, commits, drains and all calls that only read, since
      carrying them out twice has the same effect as once. Only `JobDefined.created` is False if the first answer to
      `define_job` was lost;
    - `Producer.close`, since a run that was closed already counts as closed.

    `delete_job`, `forget_producer`, `abandon` and `unsubscribe` name something that may have been deleted and made
    again between two attempts, so they are sent once: they wait until the tracker can be reached. If no answer comes
    then, they raise `TrackerUnavailable`, and the caller has to find out whether the call took effect.

    Args:
        address: `host:port`, or several servers: see `tracker.client.servers.names`. Addresses joined by ``+`` are
            those of one tracker and its standby.
        timeout: seconds that one attempt of a call may take.
        retry_for: seconds within which failed calls are repeated; 0: never. A watch gives up if the tracker cannot be
            reached for so long.
        credentials: certificates and token; None: those that the environment names, if any
            (`Credentials.from_environment`).
        metrics: counts calls and reports in this registry of prometheus-client (extra ``metrics``). It stays in this
            process: a client that is pickled counts nothing where it is read.

    Raises:
        ImportError: `metrics` is given, and prometheus-client is not installed.
        TrackerError: by any call: the tracker refuses it, for the reason in `reason`. Such calls are not repeated.
        TrackerUnavailable: by any call: no answer within `retry_for`.

    >>> client = TrackerClient("127.0.0.1:7654", timeout=5)
    >>> client
    TrackerClient('127.0.0.1:7654', timeout=5, retry_for=60.0)
    """

    def __repr__(self) -> str:
        return f"TrackerClient({self._address!r}, timeout={self._timeout}, retry_for={self._retry_for})"

    def __reduce__(self) -> tuple[type[TrackerClient], tuple[str, float, float, Credentials]]:
        return TrackerClient, (self._address, self._timeout, self._retry_for, self._credentials)

    def __exit__(self, *_: object) -> None:
        self.close()

    def with_patience(self, timeout: float, retry_for: float) -> TrackerClient:
        """Return a client for the same trackers that waits for another time."""
        return TrackerClient(self._address, timeout, retry_for, self._credentials, self._metrics)

    def logs(self, job: str) -> list[tuple[TrackerClient, str]]:
        """Return the logs that a job's events are in: this client, and the job's name.

        `ShardedClient.logs` returns one for each shard, so a caller that keeps positions can treat both alike.
        """
        return [(self, job)]

    def server_info(self) -> ServerInfo:
        """Return the server's version and limits; with several servers, those of the first by name."""
        request = tracker_pb2.GetServerInfoRequest()
        calls = next(iter(self._servers().values()))
        return codec.read(calls.repeat(lambda connection: connection.stubs.GetServerInfo, request), ServerInfo)

    def backup(self) -> Iterator[bytes]:
        """Yield a backup of the whole state, in parts: the file that `tracker restore` reads.

        It has everything that was answered before this call. Check it before you trust it: `tracker.backup`.

        Raises:
            ValueError: the client has several servers.
            TrackerError: ``PERMISSION_DENIED``: the client needs the scope ``backup`` and the pattern ``*``.
            TrackerUnavailable: the tracker cannot be reached, or has ended the backup. Make it again.

        >>> def keep(client, file):
        ...     for part in client.backup():
        ...         file.write(part)
        """
        return backup(self._only("backup"))

    def move_leader(self) -> str:
        """Have the leader hand its journal to the standby that follows it. Return who that is, for people.

        The call returns before the standby serves. Calls wait for that, as they do after any loss of a server, and none
        is lost. It is made once, since after a lost answer it could reach the new leader.

        Raises:
            ValueError: the client has several servers.
            TrackerError: ``NO_STANDBY``; ``PERMISSION_DENIED``: the client needs the scope ``admin`` and the pattern
                ``*``.
            TrackerUnavailable: no answer came. `server_info().instance` shows whether another server leads now.
        """
        calls = self._only("move_leader")
        return calls.once(lambda connection: connection.stubs.MoveLeader, tracker_pb2.MoveLeaderRequest()).to

    # ---------------------------------------------------------------- jobs

    def define_job(self, spec: JobSpec, force: bool = False) -> JobDefined:
        """Create a job, or starts a deployment of it. If the job has this spec already, nothing changes.

        Args:
            force: accept the spec whatever is open: staged epochs are revoked and open substreams abandoned.

        Raises:
            TrackerError: ``SPEC_CONFLICT`` (this deployment has another spec), ``DEPLOYMENT_MISMATCH`` (the job has
                left this deployment), ``DRAIN_IN_PROGRESS``, ``INCOMPATIBLE_GRAPH`` (the message lists the
                differences), ``EPOCH_STAGED``, ``MODE_CONFLICT`` (`committed_ends` while an immediate producer is
                under way), ``UNKNOWN_SEGMENT``, ``MALFORMED``; ``UNSUPPORTED`` (a server of an older release does not
                know `committed_ends`, `deadline`, `threshold`, `scope_idle_after` or `front_idle_after`); of
                several servers, ``OTHER_SERVERS`` (another of them has the job already).
        """
        request = tracker_pb2.DefineJobRequest(spec=codec.write_job_spec(spec), force=force)
        calls = self._to(spec.job)
        if spec.committed_ends:
            _require(calls, COMMITTED_ENDS, spec.job, "would let what is not committed bring an end")
        if spec.deadline or spec.threshold or spec.scope_idle_after or spec.front_idle_after:
            _require(calls, UNPROMISED, spec.job, "would never end what no front has promised")
        new = len(self._servers()) > 1 and spec.job not in _jobs(calls)
        if new:
            self._refuse_if_elsewhere(spec.job)
        defined = codec.read(calls.repeat(lambda connection: connection.stubs.DefineJob, request), JobDefined)
        if new:
            try:  # another client, with another list, may have checked at the same moment
                self._refuse_if_elsewhere(spec.job)
            except TrackerError:
                calls.once(lambda connection: connection.stubs.DeleteJob, tracker_pb2.DeleteJobRequest(job=spec.job))
                raise
        return defined

    def _refuse_if_elsewhere(self, job: str) -> None:
        own = self._to(job)
        for other in self._servers().values():
            if other is not own and job in _jobs(other):
                raise TrackerError(
                    "FAILED_PRECONDITION",
                    "OTHER_SERVERS",
                    f"OTHER_SERVERS: with this list of servers job {job!r} belongs to {own.address}, but "
                    f"{other.address} has it, since it was defined with another list. All clients of a job need the "
                    f"same list: use that one, or drain the job there and delete it: tracker delete-job {job} "
                    f"--server {other.address}",
                )

    def job(self, job: str) -> JobStatus:
        """Describe the current state of a job.

        Raises:
            TrackerError: ``UNKNOWN_JOB``.
        """
        request = tracker_pb2.GetJobRequest(job=job)
        return codec.read(self._to(job).repeat(lambda connection: connection.stubs.GetJob, request), JobStatus)

    def jobs(self) -> list[str]:
        """Return the names of all jobs, of all servers."""
        return sorted({job for calls in self._servers().values() for job in _jobs(calls)})

    def delete_job(self, job: str, force: bool = False) -> None:
        """Delete a job with all its events. Not repeated.

        Args:
            force: delete it even if a producer has not closed its run.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``JOB_ACTIVE``.
        """
        request = tracker_pb2.DeleteJobRequest(job=job, force=force)
        self._to(job).once(lambda connection: connection.stubs.DeleteJob, request)

    def substreams(
        self, job: str, scopes: Sequence[str] = (), include_ended: bool = False, only_stalled: bool = False
    ) -> Iterator[SubstreamStatus]:
        """Describe substreams in the order in which they were first named; fetches page by page.

        Args:
            scopes: only substreams of these scopes; empty: of all.
            include_ended: also substreams that have ended on every segment and are still kept.
            only_stalled: only substreams that were announced as stalled and have not changed since.

        Raises:
            TrackerError: ``UNKNOWN_JOB``; raised when the iteration begins.
        """
        request = tracker_pb2.ListSubstreamsRequest(
            job=job, scopes=codec.names_of(scopes), include_ended=include_ended, only_stalled=only_stalled
        )
        while True:
            page = self._to(job).repeat(lambda connection: connection.stubs.ListSubstreams, request)
            yield from (codec.read(each, SubstreamStatus) for each in page.substreams)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def explain(self, job: str, scope: str, name: str) -> Explained:
        """Describe one substream, and every epoch that has reported elements of it and is not committed.

        Raises:
            TrackerError: ``UNKNOWN_JOB``. An unknown substream is not an error.
        """
        request = tracker_pb2.ExplainRequest(job=job, scope=scope, name=name)
        return codec.read(self._to(job).repeat(lambda connection: connection.stubs.Explain, request), Explained)

    def abandon(self, job: str, scope: str, name: str) -> None:
        """End an open substream on every segment at once, even if elements are in flight. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SUBSTREAM``.
        """
        request = tracker_pb2.AbandonRequest(job=job, scope=scope, name=name)
        self._to(job).once(lambda connection: connection.stubs.Abandon, request)

    def finish_front(self, job: str, front: str) -> None:
        """Finish a front by hand, for a source that will never report again.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_FRONT``, ``EPOCH_STAGED`` (its owner has a staged epoch).
        """
        request = tracker_pb2.FinishFrontRequest(job=job, front=front)
        self._to(job).repeat(lambda connection: connection.stubs.FinishFront, request)

    # ---------------------------------------------------------------- drain

    def drain(
        self,
        job: str,
        deployment: str,
        drain_id: str,
        timeout: timedelta | float | None = None,
        hand_over: bool = False,
    ) -> DrainStatus:
        """Ask a deployment to stop: to finish what it has begun, or to hand it over to the next deployment.

        To finish, its sources receive an event and finish their fronts with their last epochs, and the job is drained
        once everything has ended. To hand over, its sources stop between two epochs, and the job is drained once
        nothing is in flight and every run has closed: open substreams stay open. The call may come before the
        deployment is defined.

        Args:
            deployment: the deployment to drain; a drain never affects another one.
            drain_id: a name for this drain. While a drain is under way, another call returns its progress.
            timeout: seconds or a timedelta after which `DrainTimedOut` is announced; None: never.
            hand_over: leave what is open to the next deployment.

        Raises:
            TrackerError: ``DEPLOYMENT_MISMATCH`` (the job has left this deployment), ``DRAIN_MISMATCH`` (a drain of the
                other kind is under way or done), ``UNSUPPORTED`` (a server of an older release cannot hand over).

        >>> def stop(client):
        ...     client.drain("shop", "d1", drain_id="release 17", timeout=600)
        ...     return client.get_drain("shop")
        """
        calls = self._to(job)
        if hand_over:
            _require(calls, HAND_OVER, job, "would finish the deployment instead of handing it over")
        length = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        request = tracker_pb2.DrainRequest(
            job=job,
            deployment=deployment,
            drain_id=drain_id,
            timeout=codec.write_length(length),
            mode=tracker_pb2.DRAIN_MODE_HAND_OVER if hand_over else tracker_pb2.DRAIN_MODE_FINISH,
        )
        return codec.read(calls.repeat(lambda connection: connection.stubs.Drain, request), DrainStatus)

    def get_drain(self, job: str, deployment: str = "") -> DrainStatus:
        """Describe a drain's progress and what it waits for.

        Args:
            deployment: the deployment that is drained; empty: the current one.
        """
        request = tracker_pb2.GetDrainRequest(job=job, deployment=deployment)
        return codec.read(self._to(job).repeat(lambda connection: connection.stubs.GetDrain, request), DrainStatus)

    def cancel_drain(self, job: str, drain_id: str = "", deployment: str = "") -> DrainStatus:
        """Cancel a drain. Where none is under way, the answer is its state: of one that has finished, ``DRAINED``.

        Args:
            drain_id: cancel only this drain; empty: the one that is under way.
            deployment: the deployment that is drained; empty: the current one.

        Raises:
            TrackerError: ``DRAIN_IN_PROGRESS`` (a front has finished in it, so it can no longer be cancelled; define a
                new deployment), ``DRAINED`` (it has been handed over), ``DRAIN_MISMATCH`` (another drain is under way),
                ``DEPLOYMENT_MISMATCH``.
        """
        request = tracker_pb2.CancelDrainRequest(job=job, drain_id=drain_id, deployment=deployment)
        return codec.read(self._to(job).repeat(lambda connection: connection.stubs.CancelDrain, request), DrainStatus)

    # ---------------------------------------------------------------- producers

    def open_producer(
        self,
        job: str,
        producer: str,
        run: str,
        mode: Mode = "staged",
        resume_epoch: int | None = None,
        seals: bool = False,
        replays: bool = False,
    ) -> Producer:
        """Make a run the current one of its producer; the tracker refuses earlier runs from now on.

        Args:
            producer: the producer's name, the same across restarts.
            run: a name for this start, new each time.
            mode: when entries take effect: ``"staged"``, with the commit of their epoch; or ``"immediate"``, on
                receipt, which is faster, but an end may be announced for elements that a replay will process again.
            resume_epoch: the first epoch that this run will report, if known. Epochs before it that earlier runs have
                staged are committed, the others revoked. Leave it out where the engine of an earlier run may yet commit
                one: the first report of this run then decides.
            seals: this run seals every epoch before its engine commits it.
            replays: this run may report again what earlier runs have committed, and gets ALREADY_COMMITTED for it, as a
                program needs that works through the same input from its start. Without it, and without `resume_epoch`,
                the client refuses such a report with `EpochCommittedError`, since it would not count.

        Raises:
            ValueError: `resume_epoch` is out of range.
            TrackerError: ``UNKNOWN_JOB``, ``FENCED`` (this run was superseded or closed), ``MODE_CONFLICT``,
                ``EPOCH_REWOUND`` (`resume_epoch` is committed already).

        >>> def count(client):
        ...     with client.open_producer("shop", "till", run="2026-01-01T06:00") as till:
        ...         report = till.epoch()
        ...         report.sent("orders", "berlin", "monday", label=4711)
        ...         report.report(commit=True)
        """
        check_texts(job=job, producer=producer, run=run)
        request = tracker_pb2.OpenProducerRequest(
            job=job,
            producer=producer,
            run=run,
            mode=codec.write_mode(mode),
            resume_epoch=checked_epoch(resume_epoch),
            seals=seals,
        )
        answer = self._to(job).repeat(lambda connection: connection.stubs.OpenProducer, request)
        committed = answer.committed_epoch if answer.HasField("committed_epoch") else None
        first = resume_epoch if resume_epoch is not None else 0 if committed is None else committed + 1
        return Producer(
            self._to(job),
            RunName(job, producer, run),
            committed,
            keep_apart=seals,
            next_epoch=first,
            replays=replays or resume_epoch is not None,
        )

    def producer(self, job: str, producer: str, run: str, keep_apart: bool = False) -> Producer:
        """Return a run that another process has opened, without a call: for executors, whose driver has opened it.

        Args:
            keep_apart: the engine may drop some of the reports (the run seals, or the manifests of its commits leave
                units out), so a relay must not combine them.
        """
        return Producer(self._to(job), RunName(job, producer, run), None, keep_apart)

    def forget_producer(self, job: str, producer: str) -> None:
        """Forget a producer that will not return: its staged epochs are dropped, its fronts are free. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_PRODUCER``.
        """
        request = tracker_pb2.ForgetProducerRequest(job=job, producer=producer)
        self._to(job).once(lambda connection: connection.stubs.ForgetProducer, request)


def backup(calls: Calls) -> Iterator[bytes]:
    """Yield a backup's file, in parts.

    Raises:
        TrackerError: the tracker refuses it.
        TrackerUnavailable: the tracker cannot be reached, or has ended it.
    """
    calls.wait_until_reachable()
    with forking.using_grpc():
        stream = calls.connection().stubs.Backup(tracker_pb2.BackupRequest())
        forking.may_last(stream, stream.cancel)
    try:
        while True:
            with forking.using_grpc():
                part = next(stream, None)
            if part is None:
                return
            yield part.data
    except grpc.RpcError as error:
        raise refusal(error) or TrackerUnavailable(
            f"the tracker at {calls.address} has not sent the whole backup ({error.code().name}: {error.details()}); "
            "make it again"
        ) from error
    finally:
        stream.cancel()
        forking.is_over(stream)


def _require(calls: Calls, feature: str, job: str, otherwise: str) -> None:
    """Refuse a server of an earlier release, which would not notice what it is asked for."""
    asked = tracker_pb2.GetServerInfoRequest()
    if feature not in calls.repeat(lambda connection: connection.stubs.GetServerInfo, asked).features:
        raise TrackerError(
            "UNIMPLEMENTED",
            "UNSUPPORTED",
            f"UNSUPPORTED: the tracker of job {job!r} is of an earlier release, which {otherwise}; upgrade it first",
        )


def _jobs(calls: Calls) -> list[str]:
    """Return the names of one server's jobs."""
    return list(calls.repeat(lambda connection: connection.stubs.ListJobs, tracker_pb2.ListJobsRequest()).jobs)
