"""The tracker's Python face."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Final, cast

import grpc

from tracker.client import forking, servers
from tracker.client.calls import Backoff, Calls, refusal
from tracker.client.errors import TrackerError
from tracker.client.producer import Producer
from tracker.client.report import checked_epoch
from tracker.client.subscription import Subscription
from tracker.client.watch import Watch
from tracker.contract.callers import (
    EventPage,
    Explained,
    JobDefined,
    JobSpec,
    JobStatus,
    Mode,
    ServerInfo,
    SubscriptionStatus,
    SubstreamStatus,
)
from tracker.contract.events import Ended
from tracker.contract.status import DrainStatus
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2

_LONGEST_WAIT: Final = 60.0  #: seconds that one Await lasts before it is made again


class TrackerClient:
    """Talks to a tracker, or to several that have a share of the jobs each.

    Cheap to make, for many threads, and picklable: by its options.

    The connection is made by the first call and shared by all clients of the process for the same address, as long as
    one of them lives: a program that makes clients often keeps one. After a fork, parent and child each go on with a
    connection of their own.

    Where a relay (`tracker relay`) runs on the node, reports that it can combine with others' go over it, without any
    setting: see `tracker.client.relay`.

    Given several servers, it speaks of each job to the one that `servers.choose` chooses by the job's name, and of all
    jobs to all. Every client of a job has to be given the same servers.

    Every call has a deadline and is repeated, after a pause that grows, when the tracker cannot be reached, does not
    answer in time, or cannot write its journal. That is safe:

    - reports, since the tracker knows each unit of an epoch (`Report.report` says what a repeated one answers);
    - `define_job`, `open_producer`, `finish_front`, `subscribe`, commits, drains and all that only reads, since doing
      them twice is doing them once; of `define_job`, only `JobDefined.created` is False when a first answer was lost;
    - `Producer.close`, since a run that turns out to be closed already counts as closed.

    `delete_job`, `forget_producer`, `abandon` and `unsubscribe` name something that may have been deleted and made
    again between two attempts, so they are sent once: they wait until the tracker can be reached. If no answer comes
    then, they raise `TrackerUnavailable`, and the caller has to find out whether the call took effect.

    Args:
        address: `host:port`, or several servers: see `tracker.client.servers.names`.
        timeout: seconds that one attempt of a call may take.
        retry_for: seconds within which failed calls are made again; 0: never. A watch gives up after so long without
            a sign of the tracker.

    Raises:
        TrackerError: by any call: the tracker refuses; `reason` says why. Never repeated.
        TrackerUnavailable: by any call: no answer within `retry_for`.

    >>> client = TrackerClient("127.0.0.1:7654", timeout=5)
    >>> client
    TrackerClient('127.0.0.1:7654', timeout=5, retry_for=60.0)
    """

    def __init__(self, address: str, timeout: float = 10.0, retry_for: float = 60.0) -> None:
        self._address = address
        self._timeout = timeout
        self._retry_for = retry_for
        self._calls: dict[str, Calls] = {}  # by server
        if "@" not in address:
            self._servers()

    def __repr__(self) -> str:
        return f"TrackerClient({self._address!r}, timeout={self._timeout}, retry_for={self._retry_for})"

    def __reduce__(self) -> tuple[type[TrackerClient], tuple[str, float, float]]:
        return TrackerClient, (self._address, self._timeout, self._retry_for)

    def __enter__(self) -> TrackerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the connections back. A later call would take them again."""
        for calls in self._calls.values():
            calls.disconnect()

    @property
    def address(self) -> str:
        """The tracker's, or the trackers', as it was given."""
        return self._address

    def server_info(self) -> ServerInfo:
        """Says which server answers, and what it allows; of several the first by name."""
        request = tracker_pb2.GetServerInfoRequest()
        calls = next(iter(self._servers().values()))
        return codec.read_server_info(calls.repeat(lambda connection: connection.stubs.GetServerInfo, request))

    def _servers(self) -> dict[str, Calls]:
        """Calls to each server, by name and in that order."""
        if not self._calls:
            self._calls = {name: Calls(name, self._timeout, self._retry_for) for name in servers.names(self._address)}
        return self._calls

    def _to(self, job: str) -> Calls:
        """Calls to the server that has the job."""
        calls = self._servers()
        return calls[servers.choose(tuple(calls), job)]

    # ---------------------------------------------------------------- jobs

    def define_job(self, spec: JobSpec, force: bool = False) -> JobDefined:
        """Creates a job, or starts a deployment of it. With a spec that holds already it changes nothing.

        Args:
            spec: the job.
            force: take the spec over whatever is open: staged epochs are revoked and open substreams abandoned.

        Raises:
            TrackerError: ``SPEC_CONFLICT`` (this deployment has another spec), ``DEPLOYMENT_MISMATCH`` (the job has
                left this deployment), ``DRAIN_IN_PROGRESS``, ``INCOMPATIBLE_GRAPH`` (the message lists the
                differences), ``EPOCH_STAGED``, ``UNKNOWN_SEGMENT``, ``MALFORMED``; of several servers,
                ``OTHER_SERVERS`` (another of them has the job already).
        """
        request = tracker_pb2.DefineJobRequest(spec=codec.write_job_spec(spec), force=force)
        calls = self._to(spec.job)
        new = len(self._servers()) > 1 and spec.job not in _jobs(calls)
        if new:
            self._refuse_if_elsewhere(spec.job)
        defined = codec.read_job_defined(calls.repeat(lambda connection: connection.stubs.DefineJob, request))
        if new:
            try:  # another client, with another list, may have looked at the same moment
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
        """Describes a job as it stands.

        Raises:
            TrackerError: ``UNKNOWN_JOB``.
        """
        request = tracker_pb2.GetJobRequest(job=job)
        return codec.read_job_status(self._to(job).repeat(lambda connection: connection.stubs.GetJob, request))

    def jobs(self) -> list[str]:
        """Names all jobs, of all servers."""
        return sorted({job for calls in self._servers().values() for job in _jobs(calls)})

    def delete_job(self, job: str, force: bool = False) -> None:
        """Forgets a job with all its events. Not repeated.

        Args:
            job: its name.
            force: also while a producer has not closed its run.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``JOB_ACTIVE``.
        """
        request = tracker_pb2.DeleteJobRequest(job=job, force=force)
        self._to(job).once(lambda connection: connection.stubs.DeleteJob, request)

    def substreams(
        self, job: str, scopes: Sequence[str] = (), include_ended: bool = False, only_stalled: bool = False
    ) -> Iterator[SubstreamStatus]:
        """Describes substreams in the order in which they were first named; fetched page by page.

        Args:
            job: its name.
            scopes: only of these; empty: of all.
            include_ended: also those that have ended on every segment and are not forgotten.
            only_stalled: only those that were announced as stalled and have not changed since.

        Raises:
            TrackerError: ``UNKNOWN_JOB``; raised when the iteration begins.
        """
        request = tracker_pb2.ListSubstreamsRequest(
            job=job, scopes=codec.names_of(scopes), include_ended=include_ended, only_stalled=only_stalled
        )
        while True:
            page = self._to(job).repeat(lambda connection: connection.stubs.ListSubstreams, request)
            yield from map(codec.read_substream, page.substreams)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def explain(self, job: str, scope: str, name: str) -> Explained:
        """One substream as it stands, and every epoch that has reported something of it and is not committed.

        Raises:
            TrackerError: ``UNKNOWN_JOB``. A substream that is not known is no error.
        """
        request = tracker_pb2.ExplainRequest(job=job, scope=scope, name=name)
        return codec.read_explained(self._to(job).repeat(lambda connection: connection.stubs.Explain, request))

    def abandon(self, job: str, scope: str, name: str) -> None:
        """Ends an open substream on every segment at once, whatever is in flight. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SUBSTREAM``.
        """
        request = tracker_pb2.AbandonRequest(job=job, scope=scope, name=name)
        self._to(job).once(lambda connection: connection.stubs.Abandon, request)

    def finish_front(self, job: str, front: str) -> None:
        """Finishes a front by hand, for a source that will never speak again.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_FRONT``, ``EPOCH_STAGED`` (its owner has one).
        """
        request = tracker_pb2.FinishFrontRequest(job=job, front=front)
        self._to(job).repeat(lambda connection: connection.stubs.FinishFront, request)

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
        """Makes a run the current one of its producer; earlier runs are refused from now on.

        Args:
            job: the job it reports to.
            producer: its name, the same across restarts.
            run: new at every start.
            mode: when its entries take effect: ``"staged"``, with the commit of their epoch, or ``"immediate"``, on
                receipt: faster, and an end may be announced for elements that a replay will process again.
            resume_epoch: the first epoch that this run will report, where that is known. What earlier runs left
                staged before it is committed, the rest revoked.
            seals: this run seals every epoch before its engine commits it.
            replays: this run may report again what earlier runs have committed, and wants to hear ALREADY_COMMITTED of
                it: a program that works through the same input from its start. Without it, and without `resume_epoch`,
                such a report is refused with `EpochCommittedError`, since it would count for nothing.

        Raises:
            ValueError: an epoch that cannot be.
            TrackerError: ``UNKNOWN_JOB``, ``FENCED`` (this run was superseded or closed), ``MODE_CONFLICT``,
                ``EPOCH_REWOUND`` (`resume_epoch` is committed already).
        """
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
            job,
            producer,
            run,
            committed,
            keep_apart=seals,
            next_epoch=first,
            replays=replays or resume_epoch is not None,
        )

    def producer(self, job: str, producer: str, run: str, keep_apart: bool = False) -> Producer:
        """A run that another process has opened, without a call: for executors, whose driver did.

        Args:
            job: the job it reports to.
            producer: its name.
            run: the one that was opened.
            keep_apart: the engine may drop some of what is reported (the run seals, or its commits have manifests that
                leave units out), so a relay must combine none of it.
        """
        return Producer(self._to(job), job, producer, run, None, keep_apart)

    def forget_producer(self, job: str, producer: str) -> None:
        """Forgets a producer that will not come back: what it has staged is void, its fronts are free. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_PRODUCER``.
        """
        request = tracker_pb2.ForgetProducerRequest(job=job, producer=producer)
        self._to(job).once(lambda connection: connection.stubs.ForgetProducer, request)

    # ---------------------------------------------------------------- events

    def watch(
        self,
        job: str,
        after_seq: int = 0,
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        log_id: str = "",
        own_position: bool = False,
    ) -> Watch:
        """The job's events, those kept and then new ones as they happen; each once, in order.

        Args:
            job: its name.
            after_seq: the last one seen; 0: from the oldest that is kept.
            segments: only `Ended`, `Late`, `Excess` and `Advanced` on these; other kinds always. Empty: on all.
            scopes: only `Ended`, `Late` and `Excess` in these. Empty: in all.
            log_id: the log that `after_seq` is of; empty: whichever there is.
            own_position: `after_seq` is a position of the caller's own, also if it is 0: the watch is refused with
                ``EVENTS_EXPIRED`` if retention has dropped an event after it that the filters let through.

        Returns:
            An iterator that reconnects by itself. What can go wrong is raised where it is iterated: see
            `Watch.__next__`.
        """

        request = tracker_pb2.WatchRequest(
            job=job,
            after_seq=after_seq,
            segments=codec.names_of(segments),
            scopes=codec.names_of(scopes),
            log_id=log_id,
            own_position=own_position,
        )
        return self._watch(request)

    def _watch(self, request: tracker_pb2.WatchRequest) -> Watch:
        calls = self._to(request.job)

        def find_log(sleep: Callable[[float], object]) -> tuple[str, int]:
            page = tracker_pb2.ListEventsRequest(
                job=request.job, limit=1, segments=request.segments, scopes=request.scopes
            )
            answer = calls.repeat(lambda connection: connection.stubs.ListEvents, page, sleep=sleep)
            return answer.log_id, answer.first_seq

        return Watch(calls, find_log, request)

    def list_events(
        self,
        job: str,
        after_seq: int = 0,
        up_to_seq: int = 0,
        limit: int = 0,
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        log_id: str = "",
        own_position: bool = False,
    ) -> EventPage:
        """A range of the job's events.

        Args:
            job: its name.
            after_seq: the last one seen; 0: from the oldest that is kept.
            up_to_seq: the last one wanted; 0: the newest.
            limit: at most so many; 0: as many as the server likes. Go on after `EventPage.last_seq`.
            segments: as for `watch`.
            scopes: as for `watch`.
            log_id: as for `watch`.
            own_position: as for `watch`.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``EVENTS_EXPIRED``, ``LOG_CHANGED``.
        """
        request = tracker_pb2.ListEventsRequest(
            job=job,
            after_seq=after_seq,
            up_to_seq=up_to_seq,
            limit=limit,
            segments=codec.names_of(segments),
            scopes=codec.names_of(scopes),
            log_id=log_id,
            own_position=own_position,
        )
        page = self._to(job).repeat(lambda connection: connection.stubs.ListEvents, request)
        events = tuple(event for event in map(codec.read_event, page.events) if event is not None)
        return EventPage(events, page.last_seq, page.log_id, page.first_seq)

    # ---------------------------------------------------------------- subscriptions

    def subscribe(
        self,
        job: str,
        name: str,
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        after_seq: int | None = None,
        max_age: timedelta | None = None,
        max_events: int | None = None,
        log_id: str = "",
    ) -> Subscription:
        """Makes a durable reader, or takes up one that exists: its events are kept until it has acknowledged them.

        A subscription that exists goes on where it was; a filter that differs from its own replaces it.

        Args:
            job: the job's name.
            name: the subscription's: 1 to 512 bytes, once in a job.
            segments: only `Ended`, `Late`, `Excess` and `Advanced` on these; other kinds always. Empty: on all.
            scopes: only `Ended`, `Late` and `Excess` in these. Empty: in all.
            after_seq: a new subscription gets what comes after this, and is refused if some of it was dropped; None:
                it starts at the oldest event from which on none is missing, the one after `Subscription.acknowledged`.
            max_age: when it has left an event lying for so long, and retention does not keep it either, it expires;
                None: 30 days.
            max_events: when more events than that are kept for it beyond retention, it expires; None: 1,000,000.
            log_id: the log that `after_seq` is of; empty: whichever there is.

        Raises:
            TrackerError: ``SUBSCRIPTION_EXPIRED`` (some of what it waited for may be gone: unsubscribe it, subscribe
                again, and decide what to do about that), ``EVENTS_EXPIRED`` (something after `after_seq`, or after its
                place for a new filter, was dropped), ``UNKNOWN_SEGMENT``, ``UNKNOWN_JOB``, ``LOG_CHANGED``,
                ``MALFORMED``, ``LIMIT``.

        >>> def release(client):
        ...     with client.subscribe("flights", "mailer", segments=["clean"]) as ends:
        ...         for event in ends:
        ...             print("done:", event.kind)  # what is done with it may be done again after a crash
        ...             ends.ack(event)
        """
        calls = self._to(job)
        request = tracker_pb2.SubscribeRequest(
            job=job,
            name=name,
            segments=codec.names_of(segments),
            scopes=codec.names_of(scopes),
            after_seq=after_seq,
            max_age=codec.write_length(max_age),
            max_events=max_events or 0,
            log_id=log_id,
        )
        answer = calls.repeat(lambda connection: connection.stubs.Subscribe, request)

        def watch(place: int) -> Watch:
            return self._watch(
                tracker_pb2.WatchRequest(
                    job=job, after_seq=place, log_id=answer.log_id, own_position=True, subscription=name
                )
            )

        return Subscription(calls, watch, job, name, answer)

    def unsubscribe(self, job: str, name: str) -> None:
        """Ends a subscription, also one that has expired: the tracker keeps nothing for it any more. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SUBSCRIPTION``.
        """
        request = tracker_pb2.UnsubscribeRequest(job=job, name=name)
        self._to(job).once(lambda connection: connection.stubs.Unsubscribe, request)

    def subscriptions(self, job: str) -> list[SubscriptionStatus]:
        """Describes a job's subscriptions, by name; expired ones, too.

        Raises:
            TrackerError: ``UNKNOWN_JOB``.
        """
        request = tracker_pb2.ListSubscriptionsRequest(job=job)
        answer = self._to(job).repeat(lambda connection: connection.stubs.ListSubscriptions, request)
        return [codec.read_subscription(each) for each in answer.subscriptions]

    def wait_for_end(
        self,
        job: str,
        segment: str,
        scope: str,
        name: str,
        end_time: int | None = None,
        timeout: float | None = None,
    ) -> Ended:
        """Waits until a substream has ended on a segment; at once if it has. Outlasts restarts of the tracker.

        Args:
            job: its name.
            segment: where it is to have ended.
            scope: the substream's.
            name: the substream's. One that nobody has named yet is waited for.
            end_time: the substream's; with it, one that is over and forgotten is not waited for for ever.
            timeout: seconds; None: for ever.

        Raises:
            TimeoutError: it has not ended in time.
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SEGMENT``, ``EVENTS_EXPIRED`` (it is over, and what there was is
                forgotten).
            TrackerUnavailable: no sign of the tracker for as long as `retry_for` says.
        """
        request = tracker_pb2.AwaitRequest(job=job, segment=segment, scope=scope, name=name, end_time=end_time)
        until = math.inf if timeout is None else time.monotonic() + timeout
        backoff = Backoff()
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                return codec.read_ended(self._await(request, min(left, _LONGEST_WAIT)).ended)
            except grpc.RpcError as error:
                refused = refusal(error)
                if refused is not None:
                    raise refused from None
                waited = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{name!r} of scope {scope!r} has not ended on {segment!r} within {timeout} s")
            if waited:
                backoff.reset()
            else:
                time.sleep(min(left, backoff.next()))
            # A deadline that has passed does not say whether anybody is there.
            calls = Calls(self._to(job).address, min(left, self._timeout), min(left, self._retry_for))
            calls.wait_until_reachable()

    def _await(self, request: tracker_pb2.AwaitRequest, seconds: float) -> tracker_pb2.AwaitResponse:
        with forking.using_grpc():
            call = self._to(request.job).connection().stubs.Await.future(request, timeout=seconds)
            forking.may_last(call, call.cancel)
            try:
                if call.code() is not grpc.StatusCode.OK:
                    raise cast(grpc.RpcError, call)
                answer: tracker_pb2.AwaitResponse = call.result()
                return answer
            finally:
                call.cancel()
                forking.is_over(call)

    # ---------------------------------------------------------------- drain

    def drain(self, job: str, deployment: str, drain_id: str, timeout: timedelta | float | None = None) -> DrainStatus:
        """Asks a deployment to finish what it has begun and to stop.

        Its sources hear it as an event, finish their fronts with their last epochs, and the job is drained when
        everything has ended. May be asked before the deployment is defined.

        Args:
            job: its name.
            deployment: which one: a drain never hits another.
            drain_id: names this drain. Asking again while one is under way answers how far it is.
            timeout: seconds or a timedelta after which `DrainTimedOut` is announced; None: never.

        Raises:
            TrackerError: ``DEPLOYMENT_MISMATCH`` (the job has left this deployment).
        """
        length = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        request = tracker_pb2.DrainRequest(
            job=job, deployment=deployment, drain_id=drain_id, timeout=codec.write_length(length)
        )
        return codec.read_drain_status(self._to(job).repeat(lambda connection: connection.stubs.Drain, request))

    def get_drain(self, job: str, deployment: str = "") -> DrainStatus:
        """Says how far a drain is and what it waits for; of the current deployment, if none is named."""
        request = tracker_pb2.GetDrainRequest(job=job, deployment=deployment)
        return codec.read_drain_status(self._to(job).repeat(lambda connection: connection.stubs.GetDrain, request))

    def cancel_drain(self, job: str, drain_id: str = "", deployment: str = "") -> DrainStatus:
        """Takes a drain back.

        Args:
            job: its name.
            drain_id: only this one; empty: whichever is under way.
            deployment: of this deployment; empty: the current one.

        Raises:
            TrackerError: ``DRAIN_IN_PROGRESS`` (a front has finished in it: the way is forward only),
                ``DRAIN_MISMATCH`` (another drain's id), ``DEPLOYMENT_MISMATCH``.
        """
        request = tracker_pb2.CancelDrainRequest(job=job, drain_id=drain_id, deployment=deployment)
        return codec.read_drain_status(self._to(job).repeat(lambda connection: connection.stubs.CancelDrain, request))


def _jobs(calls: Calls) -> list[str]:
    """What one server has."""
    return list(calls.repeat(lambda connection: connection.stubs.ListJobs, tracker_pb2.ListJobsRequest()).jobs)
