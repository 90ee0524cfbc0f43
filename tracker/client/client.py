"""The client for all calls of a tracker."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, cast

import grpc

from tracker.client import administration, awaiting, forking, servers
from tracker.client.calls import Backoff, Calls, refusal
from tracker.client.credentials import Credentials
from tracker.client.errors import TrackerError
from tracker.client.metrics import ClientMetrics
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
from tracker.contract.values import DrainMode
from tracker.wire import HAND_OVER, codec
from tracker.wire.gen import tracker_pb2

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_LONGEST_WAIT: Final = 60.0  #: seconds that one Await lasts before it is made again


class TrackerClient:
    """Calls a tracker, or several that each have a share of the jobs.

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

    def __init__(
        self,
        address: str,
        timeout: float = 10.0,
        retry_for: float = 60.0,
        credentials: Credentials | None = None,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        self._address = address
        self._metrics = metrics
        self._credentials = Credentials.from_environment() if credentials is None else credentials
        self._timeout = timeout
        self._retry_for = retry_for
        self._calls: dict[str, Calls] = {}  # by server
        if "@" not in address:
            self._servers()

    def __repr__(self) -> str:
        return f"TrackerClient({self._address!r}, timeout={self._timeout}, retry_for={self._retry_for})"

    def __reduce__(self) -> tuple[type[TrackerClient], tuple[str, float, float, Credentials]]:
        return TrackerClient, (self._address, self._timeout, self._retry_for, self._credentials)

    def __enter__(self) -> TrackerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the connections. A later call takes them again."""
        for calls in self._calls.values():
            calls.disconnect()

    @property
    def address(self) -> str:
        """The address of the tracker, or the trackers, as the caller gave it."""
        return self._address

    @property
    def command_options(self) -> str:
        """The options with which the commands of `tracker` call the same trackers, as a shell takes them."""
        return f"--server {shlex.quote(self._address)}"

    @property
    def credentials(self) -> Credentials:
        """What the client shows to the tracker."""
        return self._credentials

    @property
    def metrics(self) -> CollectorRegistry | None:
        """Where the client counts."""
        return self._metrics

    def with_patience(self, timeout: float, retry_for: float) -> TrackerClient:
        """Returns a client for the same trackers that waits for another time.

        Args:
            timeout: seconds that one attempt of a call may take.
            retry_for: seconds within which failed calls are repeated; 0: never.
        """
        return TrackerClient(self._address, timeout, retry_for, self._credentials, self._metrics)

    def logs(self, job: str) -> list[tuple[TrackerClient, str]]:
        """Returns the logs that a job's events are in: this client, and the job's name.

        `ShardedClient.logs` returns one for each shard, so a caller that keeps positions can treat both alike.
        """
        return [(self, job)]

    def server_info(self) -> ServerInfo:
        """Returns the server's version and limits; with several servers, those of the first by name."""
        request = tracker_pb2.GetServerInfoRequest()
        calls = next(iter(self._servers().values()))
        return codec.read_server_info(calls.repeat(lambda connection: connection.stubs.GetServerInfo, request))

    def backup(self) -> Iterator[bytes]:
        """Yields a backup of the whole state, in parts: the file that `tracker restore` reads.

        It has everything that was answered before this call. Check it before you trust it: `tracker.backup.form`.

        Raises:
            ValueError: the client has several servers.
            TrackerError: ``PERMISSION_DENIED``: the client needs the scope ``backup`` and the pattern ``*``.
            TrackerUnavailable: the tracker cannot be reached, or has ended the backup. Make it again.

        >>> def keep(client, file):
        ...     for part in client.backup():
        ...         file.write(part)
        """
        return administration.backup(self._only("backup"))

    def move_leader(self) -> str:
        """Has the leader hand its journal to the standby that follows it, and returns who that is, for people.

        The call returns before the standby serves. Calls wait for that, as they do after any loss of a server, and none
        is lost. It is made once, since after a lost answer it could reach the new leader.

        Raises:
            ValueError: the client has several servers.
            TrackerError: ``NO_STANDBY``; ``PERMISSION_DENIED``: the client needs the scope ``admin`` and the pattern
                ``*``.
            TrackerUnavailable: no answer came. `server_info().instance` tells whether another server leads now.
        """
        calls = self._only("move_leader")
        return calls.once(lambda connection: connection.stubs.MoveLeader, tracker_pb2.MoveLeaderRequest()).to

    def _only(self, call: str) -> Calls:
        """Returns the calls to the only server."""
        found = self._servers()
        if len(found) > 1:
            raise ValueError(f"{call} concerns one tracker, and there are {len(found)}: {', '.join(found)}; name one")
        return next(iter(found.values()))

    def _servers(self) -> dict[str, Calls]:
        """Returns the calls to each server, by name and in that order."""
        if not self._calls:
            counting = None if self._metrics is None else ClientMetrics.of(self._metrics)
            self._calls = {
                name: Calls(name, self._timeout, self._retry_for, self._credentials, counting)
                for name in servers.names(self._address)
            }
        return self._calls

    def _to(self, job: str) -> Calls:
        """Returns the calls to the server that has the job."""
        calls = self._servers()
        return calls[servers.choose(tuple(calls), job)]

    # ---------------------------------------------------------------- jobs

    def define_job(self, spec: JobSpec, force: bool = False) -> JobDefined:
        """Creates a job, or starts a deployment of it. If the job has this spec already, nothing changes.

        Args:
            spec: the job.
            force: accept the spec whatever is open: staged epochs are revoked and open substreams abandoned.

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
        """Describes the current state of a job.

        Raises:
            TrackerError: ``UNKNOWN_JOB``.
        """
        request = tracker_pb2.GetJobRequest(job=job)
        return codec.read_job_status(self._to(job).repeat(lambda connection: connection.stubs.GetJob, request))

    def jobs(self) -> list[str]:
        """Returns the names of all jobs, of all servers."""
        return sorted({job for calls in self._servers().values() for job in _jobs(calls)})

    def delete_job(self, job: str, force: bool = False) -> None:
        """Deletes a job with all its events. Not repeated.

        Args:
            job: its name.
            force: delete it even if a producer has not closed its run.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``JOB_ACTIVE``.
        """
        request = tracker_pb2.DeleteJobRequest(job=job, force=force)
        self._to(job).once(lambda connection: connection.stubs.DeleteJob, request)

    def substreams(
        self, job: str, scopes: Sequence[str] = (), include_ended: bool = False, only_stalled: bool = False
    ) -> Iterator[SubstreamStatus]:
        """Describes substreams in the order in which they were first named; fetches page by page.

        Args:
            job: its name.
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
            yield from map(codec.read_substream, page.substreams)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def explain(self, job: str, scope: str, name: str) -> Explained:
        """Describes one substream, and every epoch that has reported elements of it and is not committed.

        Raises:
            TrackerError: ``UNKNOWN_JOB``. An unknown substream is not an error.
        """
        request = tracker_pb2.ExplainRequest(job=job, scope=scope, name=name)
        return codec.read_explained(self._to(job).repeat(lambda connection: connection.stubs.Explain, request))

    def abandon(self, job: str, scope: str, name: str) -> None:
        """Ends an open substream on every segment at once, even if elements are in flight. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SUBSTREAM``.
        """
        request = tracker_pb2.AbandonRequest(job=job, scope=scope, name=name)
        self._to(job).once(lambda connection: connection.stubs.Abandon, request)

    def finish_front(self, job: str, front: str) -> None:
        """Finishes a front by hand, for a source that will never report again.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_FRONT``, ``EPOCH_STAGED`` (its owner has a staged epoch).
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
        """Makes a run the current one of its producer; the tracker refuses earlier runs from now on.

        Args:
            job: the job to which it reports.
            producer: the producer's name, the same across restarts.
            run: a name for this start, new each time.
            mode: when entries take effect: ``"staged"``, with the commit of their epoch; or ``"immediate"``, on
                receipt, which is faster, but an end may be announced for elements that a replay will process again.
            resume_epoch: the first epoch that this run will report, if known. Epochs before it that earlier runs have
                staged are committed, the others revoked.
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
        """Returns a run that another process has opened, without a call: for executors, whose driver has opened it.

        Args:
            job: the job to which it reports.
            producer: the producer's name.
            run: the name with which it was opened.
            keep_apart: the engine may drop some of the reports (the run seals, or the manifests of its commits leave
                units out), so a relay must not combine them.
        """
        return Producer(self._to(job), job, producer, run, None, keep_apart)

    def forget_producer(self, job: str, producer: str) -> None:
        """Forgets a producer that will not return: its staged epochs are dropped, its fronts are free. Not repeated.

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
        """Watches the job's events: first those that are kept, then new ones as they happen; each once, in order.

        Args:
            job: its name.
            after_seq: the number of the last event that the caller has; 0: from the oldest that is kept.
            segments: only `Ended`, `Late`, `Excess` and `Advanced` on these; other kinds always. Empty: on all.
            scopes: only `Ended`, `Late` and `Excess` in these. Empty: in all.
            log_id: the log to which `after_seq` belongs; empty: the current one.
            own_position: `after_seq` is a position that the caller has reached, even if it is 0: the watch is refused
                with ``EVENTS_EXPIRED`` if retention has dropped an event after it that the filters pass.

        Returns:
            An iterator that reconnects by itself. Errors are raised during the iteration: see `Watch.__next__`.

        >>> def print_ends(client):
        ...     with client.watch("shop", segments=["orders"]) as events:
        ...         for event in events:
        ...             print(event.seq, event.kind)
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
        """Returns a range of the job's events.

        Args:
            job: its name.
            after_seq: the number of the last event that the caller has; 0: from the oldest that is kept.
            up_to_seq: the number of the last event to return; 0: the newest.
            limit: the most events to return; 0: the server's page size. Continue after `EventPage.last_seq`.
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
        """Makes a durable reader, or continues an existing one.

        The tracker keeps a subscription's events until the reader has acknowledged them.

        An existing subscription continues where it was; if the filter differs from its own, the new one replaces it.

        Args:
            job: the job's name.
            name: the subscription's name: 1 to 512 bytes, unique in the job.
            segments: only `Ended`, `Late`, `Excess` and `Advanced` on these; other kinds always. Empty: on all.
            scopes: only `Ended`, `Late` and `Excess` in these. Empty: in all.
            after_seq: a new subscription gets the events after this number, and is refused if some of them were
                dropped; None: it starts at the oldest event from which none is missing, the one after
                `Subscription.acknowledged`.
            max_age: the subscription expires if it leaves an event unacknowledged for so long, and retention does not
                keep the event either; None: 30 days.
            max_events: the subscription expires if more events are kept for it beyond retention; None: 1,000,000.
            log_id: the log to which `after_seq` belongs; empty: the current one.

        Raises:
            TrackerError: ``SUBSCRIPTION_EXPIRED`` (some of its events may be gone: unsubscribe it, subscribe again, and
                decide what to do about those events), ``EVENTS_EXPIRED`` (an event after `after_seq`, or after the
                position at which a new filter begins, was dropped), ``UNKNOWN_SEGMENT``, ``UNKNOWN_JOB``,
                ``LOG_CHANGED``, ``MALFORMED``, ``LIMIT``.

        >>> def release(client):
        ...     with client.subscribe("flights", "mailer", segments=["clean"]) as ends:
        ...         for event in ends:
        ...             print("done:", event.kind)  # after a crash, this may be done again
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
        """Removes a subscription, even an expired one: the tracker keeps no more events for it. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SUBSCRIPTION``.
        """
        request = tracker_pb2.UnsubscribeRequest(job=job, name=name)
        self._to(job).once(lambda connection: connection.stubs.Unsubscribe, request)

    def subscriptions(self, job: str) -> list[SubscriptionStatus]:
        """Describes a job's subscriptions, by name, including expired ones.

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
        """Waits until a substream has ended on a segment, even across restarts of the tracker.

        Args:
            job: its name.
            segment: where to wait for the end.
            scope: the substream's.
            name: the substream's. If no report has named it yet, this waits for it, too.
            end_time: the substream's; with it, the call does not wait for ever for a substream that has ended and is
                forgotten.
            timeout: seconds; None: for ever.

        Returns:
            How the substream ended; at once if it has ended before.

        Raises:
            TimeoutError: the substream has not ended in time.
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SEGMENT``, ``EVENTS_EXPIRED`` (the substream has ended, and the
                tracker has forgotten how).
            TrackerUnavailable: the tracker could not be reached for `retry_for`.
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
                pause = backoff.after(error)
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{name!r} of scope {scope!r} has not ended on {segment!r} within {timeout} s")
            if waited:
                backoff.reset()
            else:
                time.sleep(min(left, pause))
            # A deadline that has passed does not show whether the tracker is reachable.
            calls = self._to(job).with_patience(min(left, self._timeout), min(left, self._retry_for))
            calls.wait_until_reachable()

    async def await_end(
        self,
        job: str,
        segment: str,
        scope: str,
        name: str,
        end_time: int | None = None,
        timeout: float | None = None,
    ) -> Ended:
        """Waits in an event loop until a substream has ended, as `wait_for_end` does, and without a thread.

        >>> async def both(client):
        ...     days = [client.await_end("flights", "clean", airport, "2013-01-01") for airport in ("JFK", "LGA")]
        ...     return await asyncio.gather(*days)
        """
        request = tracker_pb2.AwaitRequest(job=job, segment=segment, scope=scope, name=name, end_time=end_time)
        return await awaiting.end_of(self._to(job), request, timeout)

    async def await_progress(self, job: str, segment: str, end_time: int, timeout: float | None = None) -> int:
        """Waits in an event loop until a segment has come up to a time, as `wait_for_progress` does, and without a
        thread.
        """
        return await awaiting.progress_of(self._to(job), job, segment, end_time, timeout)

    def _await(self, request: tracker_pb2.AwaitRequest, seconds: float) -> tracker_pb2.AwaitResponse:
        with forking.using_grpc():
            connection = self._to(request.job).waiting_connection()  # without a reference it would be closed
            call = connection.stubs.Await.future(request, timeout=seconds)
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

    def drain(
        self,
        job: str,
        deployment: str,
        drain_id: str,
        timeout: timedelta | float | None = None,
        hand_over: bool = False,
    ) -> DrainStatus:
        """Asks a deployment to stop: to finish what it has begun, or to hand it over to the next deployment.

        To finish, its sources receive an event and finish their fronts with their last epochs, and the job is drained
        once everything has ended. To hand over, its sources stop between two epochs, and the job is drained once
        nothing is in flight and every run has closed: open substreams stay open. The call may come before the
        deployment is defined.

        Args:
            job: its name.
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
            asked = tracker_pb2.GetServerInfoRequest()
            if HAND_OVER not in calls.repeat(lambda connection: connection.stubs.GetServerInfo, asked).features:
                raise TrackerError(  # it would finish the deployment
                    "UNIMPLEMENTED",
                    "UNSUPPORTED",
                    f"UNSUPPORTED: the tracker of job {job!r} is of a release that cannot hand over; upgrade it first",
                )
        length = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        request = tracker_pb2.DrainRequest(
            job=job,
            deployment=deployment,
            drain_id=drain_id,
            timeout=codec.write_length(length),
            mode=codec.write_drain_mode(DrainMode.HAND_OVER if hand_over else DrainMode.FINISH),
        )
        return codec.read_drain_status(calls.repeat(lambda connection: connection.stubs.Drain, request))

    def get_drain(self, job: str, deployment: str = "") -> DrainStatus:
        """Describes a drain's progress and what it waits for.

        Args:
            job: its name.
            deployment: the deployment that is drained; empty: the current one.
        """
        request = tracker_pb2.GetDrainRequest(job=job, deployment=deployment)
        return codec.read_drain_status(self._to(job).repeat(lambda connection: connection.stubs.GetDrain, request))

    def cancel_drain(self, job: str, drain_id: str = "", deployment: str = "") -> DrainStatus:
        """Cancels a drain.

        Args:
            job: its name.
            drain_id: cancel only this drain; empty: the one that is under way.
            deployment: the deployment that is drained; empty: the current one.

        Raises:
            TrackerError: ``DRAIN_IN_PROGRESS`` (a front has finished in it, so it can no longer be cancelled; define a
                new deployment), ``DRAIN_MISMATCH`` (another drain is under way), ``DEPLOYMENT_MISMATCH``.
        """
        request = tracker_pb2.CancelDrainRequest(job=job, drain_id=drain_id, deployment=deployment)
        return codec.read_drain_status(self._to(job).repeat(lambda connection: connection.stubs.CancelDrain, request))


def _jobs(calls: Calls) -> list[str]:
    """Returns the names of one server's jobs."""
    return list(calls.repeat(lambda connection: connection.stubs.ListJobs, tracker_pb2.ListJobsRequest()).jobs)
