"""The calls about jobs: what they are, what is open in them, and their drains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from tracker.client.calls import Calls, Routing
from tracker.client.errors import TrackerError
from tracker.contract.commands import JobDefined
from tracker.contract.spec import JobSpec
from tracker.contract.status import DrainStatus, Explained, JobStatus, SubstreamStatus
from tracker.wire import COMMITTED_ENDS, HAND_OVER, UNPROMISED, codec
from tracker.wire.gen import tracker_pb2


class JobCalls(Routing):
    """Calls that define, describe and drain jobs."""

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
