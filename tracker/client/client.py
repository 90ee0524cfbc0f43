"""The client for all calls of a tracker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import grpc

from tracker.client import forking
from tracker.client.calls import Calls, refusal
from tracker.client.credentials import Credentials
from tracker.client.errors import TrackerUnavailable
from tracker.client.eventcalls import EventCalls
from tracker.client.jobcalls import JobCalls
from tracker.client.producer import Producer, RunName
from tracker.contract.bounds import checked_epoch
from tracker.contract.spec import ModeWord as Mode
from tracker.contract.spec import check_texts
from tracker.contract.status import ServerInfo
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2


class TrackerClient(JobCalls, EventCalls, AbstractContextManager["TrackerClient"]):
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
