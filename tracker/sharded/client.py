"""The client of jobs that are too large for one server, and the runs of producers that report to all shards."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from heapq import merge
from typing import TYPE_CHECKING, NoReturn, TypeVar

from tracker.client import servers
from tracker.client.client import TrackerClient
from tracker.client.credentials import Credentials
from tracker.client.errors import TrackerError
from tracker.client.producer import Producer, ProducerRun, RunName
from tracker.client.waiting import Passed, Token
from tracker.contract.commands import CommitPromise, Contents, Expected, JobDefined, Reported
from tracker.contract.events import Ended
from tracker.contract.spec import JobSpec
from tracker.contract.spec import ModeWord as Mode
from tracker.contract.spec import OrderingWord as Ordering
from tracker.contract.status import DrainStatus, Explained, JobStatus, ServerInfo, SubstreamStatus, merged
from tracker.contract.values import Outcome
from tracker.sharded.agreement import Sharding, at_once, base, cancel_drain, first_decides, refuse_in_parts, status_of
from tracker.sharded.merged_events import Merge, Position, ShardedWatch, beginning

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class ShardedProducer(ProducerRun):
    """A run of a producer, made by `ShardedClient.open_producer` and `ShardedClient.producer`: see `Producer`.

    Every report goes to every shard with the same units, even if it holds nothing for a shard, and so does every
    commit. So each shard knows all units and epochs. If a call fails in between, some shards have them and others do
    not. Repeating the call, or starting again at the epoch that the engine has not committed, completes it, as after a
    lost answer of one tracker: the shards that have it already change nothing.

    If one shard refuses a report (an end time that differs, a limit), the others keep their parts staged. When the
    cause is gone, report the same units again, and leave everything unchanged that the other shards have accepted.

    If the shards already have different units of a report, its outcome is PARTIAL_DUPLICATE without names of units:
    then report each unit separately.

    Attributes:
        committed_epoch: the last epoch that was committed on every shard when the run was opened; None: none was, or
            the trackers were not asked. A program that restarts after it may report an epoch that some shards have
            committed.
    """

    _where = " on every shard"

    def __init__(
        self,
        sharding: Sharding,
        job: str,
        producers: Sequence[Producer],
        committed_epoch: int | None,
        replays: bool = True,
    ) -> None:
        super().__init__(RunName(job, producers[0].producer, producers[0].run), committed_epoch, replays)
        self._sharding = sharding
        self._producers = tuple(producers)

    def deliver(self, epoch: int, contents: Contents, units: Sequence[str], commit: bool) -> Reported:
        parts = self._sharding.split(contents)
        calls = [
            partial(producer.deliver, epoch, part, units, commit)
            for producer, part in zip(self._producers, parts, strict=True)
        ]
        return reported(first_decides(calls) if commit else at_once(calls))

    def next_epoch(self) -> int:
        """Return the epoch to report next: the lowest of the shards'. Some of them may have committed it."""
        return min(producer.next_epoch() for producer in self._producers)

    def commit(
        self,
        epoch: int | None = None,
        units: Sequence[str] | None = None,
        seal: bool = False,
        promises: Sequence[CommitPromise] = (),
    ) -> int:
        """Commit or seal on all shards, or make promises there: see `Producer.commit`.

        An expectation goes to the shard of its substream, all other promises go to all shards.

        Returns:
            The number of events of all shards together.
        """

        def of(shard: int) -> list[CommitPromise]:
            return [
                promise
                for promise in promises
                if not isinstance(promise, Expected) or self._sharding.shard(promise.scope, promise.name) == shard
            ]

        calls = [partial(one.commit, epoch, units, seal, of(shard)) for shard, one in enumerate(self._producers)]
        return sum(first_decides(calls))

    def close(self, resume_epoch: int | None = None) -> None:
        """Close the run on all shards: see `Producer.close`. Safe to repeat, unless a later run has taken over."""
        first_decides([partial(_close, one, resume_epoch) for one in self._producers])


def _close(producer: Producer, resume_epoch: int | None) -> None:
    """Close a run, unless it is closed already: an earlier attempt may have failed at another shard."""
    try:
        producer.close(resume_epoch)
    except TrackerError as refused:
        producer.must_be_closed(refused)


def reported(shards: Sequence[Reported]) -> Reported:
    """Merge the shards' answers to the parts of a report.

    APPLIED means that all shards have the report now, and it was new to some of them. PARTIAL_DUPLICATE names the units
    that every shard has; it names none if the shards have different units.
    """
    last_seq, log_id = sum(shard.last_seq for shard in shards), "+".join(shard.log_id for shard in shards)
    partial = [set(shard.duplicate_units) for shard in shards if shard.outcome is Outcome.PARTIAL_DUPLICATE]
    if partial:
        return Reported(Outcome.PARTIAL_DUPLICATE, tuple(sorted(set.intersection(*partial))), last_seq)
    outcomes = {shard.outcome for shard in shards}
    return Reported(outcomes.pop() if len(outcomes) == 1 else Outcome.APPLIED, (), last_seq, log_id=log_id)


_OfJob = TypeVar("_OfJob", JobStatus, JobDefined)


class ShardedClient(AbstractContextManager["ShardedClient"]):
    """Client of trackers that share each job: a hash of its scope and name assigns each substream to one of them.

    Each server has a job of its own, a *shard*, with the whole graph, all fronts and all producers. Reports are split,
    and each shard gets its part; promises, commits and drains go to all shards; their answers are merged. The servers
    do not communicate. The methods are those of `TrackerClient`; their docstrings here describe only the differences.

    **The servers and the ordering belong to the job** and must be the same in all clients for the job's whole life.
    They are in the names of the shards (``flights.2of3-none-6cb1aa09``, by which `TrackerClient` finds a single one).
    So a client with other servers or another ordering does not find the job, and cannot define it while a server of its
    list has it.

    Args:
        address: the servers: see `tracker.client.servers.names`. Use names that they can keep.
        ordering: of the jobs. ``"scope"`` keeps each scope on one server. ``"global"`` needs fronts and progress, and
            its watches are as far as the slowest shard: see `tracker.sharded.merged_events`.
        timeout, retry_for, credentials: as for `TrackerClient`, of each server.
        metrics: as for `TrackerClient`: the calls to each server are counted.

    >>> ShardedClient("tracker-{0..3}.tracker:7654", ordering="scope")
    ShardedClient('tracker-{0..3}.tracker:7654', ordering='scope', timeout=10.0, retry_for=60.0)
    """

    def __init__(
        self,
        address: str,
        ordering: Ordering = "none",
        timeout: float = 10.0,
        retry_for: float = 60.0,
        credentials: Credentials | None = None,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        if ordering not in ("none", "scope", "global"):
            raise ValueError(f"ordering={ordering!r} is not a known value; use one of 'none', 'scope', 'global'")
        self._address = address
        self._ordering: Ordering = ordering
        self._timeout = timeout
        self._retry_for = retry_for
        self._credentials = Credentials.from_environment() if credentials is None else credentials
        self._metrics = metrics
        self._made: tuple[TrackerClient, ...] = ()
        if "@" not in address:
            self._sharding  # noqa: B018 - raises if the list is wrong

    def __repr__(self) -> str:
        return (
            f"ShardedClient({self._address!r}, ordering={self._ordering!r}, timeout={self._timeout}, "
            f"retry_for={self._retry_for})"
        )

    def __reduce__(self) -> tuple[type[ShardedClient], tuple[str, Ordering, float, float, Credentials]]:
        return ShardedClient, (self._address, self._ordering, self._timeout, self._retry_for, self._credentials)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connections. A later call takes them again."""
        for client in self._made:
            client.close()

    @cached_property
    def _sharding(self) -> Sharding:
        return Sharding(servers.names(self._address), self._ordering)

    @property
    def _clients(self) -> tuple[TrackerClient, ...]:
        if not self._made:
            found = self._sharding.servers
            self._made = tuple(
                TrackerClient(server, self._timeout, self._retry_for, self._credentials, self._metrics)
                for server in found
            )
        return self._made

    @property
    def command_options(self) -> str:
        """The options with which the commands of `tracker` call the same trackers, as a shell takes them."""
        return f"--server {shlex.quote(self._address)} --sharded {self._ordering}"

    def with_patience(self, timeout: float, retry_for: float) -> ShardedClient:
        """Return a client for the same trackers that waits for another time: see `TrackerClient.with_patience`."""
        return ShardedClient(self._address, self._ordering, timeout, retry_for, self._credentials, self._metrics)

    def server_info(self) -> ServerInfo:
        """Describe the first server, with the lowest limits and the features of all: what one takes, all take."""
        found = at_once([client.server_info for client in self._clients])
        names = set[str]().union(*(each.limits for each in found))
        limits = {name: min(each.limits[name] for each in found if name in each.limits) for name in sorted(names)}
        features = tuple(each for each in found[0].features if all(each in other.features for other in found))
        return replace(found[0], limits=limits, features=features)

    def logs(self, job: str) -> list[tuple[TrackerClient, str]]:
        """Return the logs that a job's events are in: each server's client, with the name of its shard of the job.

        For callers that keep a position for each log themselves. Calls that change a job are made by this client alone.
        """
        return self._shards(job)

    def _shards(self, job: str) -> list[tuple[TrackerClient, str]]:
        """Return each server, with the name of its shard of the job."""
        return list(zip(self._clients, self._sharding.jobs(job), strict=True))

    def _shard(self, job: str, scope: str, name: str) -> tuple[TrackerClient, str]:
        """Return the server that has a substream, with the name of its shard of the job."""
        return self._shards(job)[self._sharding.shard(scope, name)]

    # ---------------------------------------------------------------- jobs

    def define_job(self, spec: JobSpec, force: bool = False) -> JobDefined:
        """Create a job on all servers, or starts a deployment of it there.

        If it fails in between, some shards have the deployment and others do not: call it again. The shards accept
        another graph or other fronts only when the job is drained, or with `force`.

        Raises:
            ValueError: the spec has another ordering than this client; or it is ``"global"``, and there are no fronts
                or no progress.
            TrackerError: as `TrackerClient.define_job`, and ``OTHER_SERVERS``: a server of the list has the job, or
                a shard of it, for another list or another ordering.
        """
        if spec.ordering != self._ordering:
            raise ValueError(
                f"job {spec.job!r} has ordering {spec.ordering!r}, and its client {self._ordering!r}; give a sharded "
                "job's ordering to both: ShardedClient(…, ordering=…)"
            )
        if spec.ordering == "global" and not (spec.fronts and spec.progress):
            raise ValueError(
                f"job {spec.job!r}: in a sharded job ordering 'global' needs progress=True and fronts: an end waits "
                "until all shards have advanced that far"
            )
        shards = self._shards(spec.job)
        found = at_once([partial(status_of, client, name) for client, name in shards])
        if None in found:
            self._refuse_if_elsewhere(spec.job)
        if not force:
            refuse_in_parts(spec, [status for status in found if status is not None])
        calls = [partial(client.define_job, replace(spec, job=name), force) for client, name in shards]
        defined = first_decides(calls)
        if None in found:
            try:  # another client, with another list, may have checked at the same moment
                self._refuse_if_elsewhere(spec.job)
            except TrackerError:
                for (client, name), before in zip(shards, found, strict=True):
                    if before is None:
                        client.delete_job(name)
                raise
        return _whole(spec.job, defined)

    def _refuse_if_elsewhere(self, job: str) -> None:
        for server, (client, own) in zip(self._sharding.servers, self._shards(job), strict=True):
            for other in client.jobs():
                if other == job or (other != own and base(other) == job):
                    raise TrackerError(
                        "FAILED_PRECONDITION",
                        "OTHER_SERVERS",
                        f"OTHER_SERVERS: {server} has job {other!r}, but with this list of servers and this ordering "
                        f"it would be {own!r}. All clients of a job need the same servers and ordering for as long "
                        f"as it exists: use those it was defined with, or drain it and delete all its shards: "
                        f"tracker delete-job {other} --server {server}",
                    )

    def job(self, job: str) -> JobStatus:
        """Describe a job: counts are sums over its shards, progress is the minimum over them.

        `JobStatus.first_seq` and `JobStatus.last_seq` are sums, too, so they show how many events there are.
        """
        shards = at_once([partial(client.job, name) for client, name in self._shards(job)])
        return _whole(job, shards)

    def jobs(self) -> list[str]:
        """Return the names of the jobs that are sharded over these servers with this ordering."""
        named = zip(self._clients, at_once([client.jobs for client in self._clients]), strict=True)
        found = {job for _, jobs in named for name in jobs if (job := base(name)) and name in self._sharding.jobs(job)}
        return sorted(found)

    def delete_job(self, job: str, force: bool = False) -> None:
        """Delete a job on all servers. Not repeated; if it fails in between, call it again."""
        self._where_known(
            "UNKNOWN_JOB", [partial(client.delete_job, name, force) for client, name in self._shards(job)]
        )

    def substreams(
        self, job: str, scopes: Sequence[str] = (), include_ended: bool = False, only_stalled: bool = False
    ) -> Iterator[SubstreamStatus]:
        """Describe the substreams of all shards, in the order in which they were first named."""
        shards = [client.substreams(name, scopes, include_ended, only_stalled) for client, name in self._shards(job)]
        return merge(*shards, key=lambda substream: substream.created_ns)

    def explain(self, job: str, scope: str, name: str) -> Explained:
        """Describe one substream at its shard, and the epochs that have staged elements of it there."""
        client, shard = self._shard(job, scope, name)
        return client.explain(shard, scope, name)

    def abandon(self, job: str, scope: str, name: str) -> None:
        """End an open substream on every segment at once, even if elements are in flight. Not repeated."""
        client, shard = self._shard(job, scope, name)
        client.abandon(shard, scope, name)

    def finish_front(self, job: str, front: str) -> None:
        """Finish a front by hand, on all shards."""
        first_decides([partial(client.finish_front, name, front) for client, name in self._shards(job)])

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
    ) -> ShardedProducer:
        """Make a run the current one of its producer, on all shards."""
        calls = [
            partial(client.open_producer, name, producer, run, mode, resume_epoch, seals)
            for client, name in self._shards(job)
        ]
        opened = first_decides(calls)
        committed = [one.committed_epoch for one in opened if one.committed_epoch is not None]
        on_all = min(committed) if len(committed) == len(opened) else None
        return ShardedProducer(self._sharding, job, opened, on_all, replays or resume_epoch is not None)

    def producer(self, job: str, producer: str, run: str, keep_apart: bool = False) -> ShardedProducer:
        """Return a run that another process has opened, without a call."""
        shards = [client.producer(name, producer, run, keep_apart) for client, name in self._shards(job)]
        return ShardedProducer(self._sharding, job, shards, None)

    def forget_producer(self, job: str, producer: str) -> None:
        """Forget a producer on all shards. Not repeated; if it fails in between, call it again."""
        self._where_known(
            "UNKNOWN_PRODUCER",
            [partial(client.forget_producer, name, producer) for client, name in self._shards(job)],
        )

    def _where_known(self, unknown: str, calls: Sequence[Callable[[], None]]) -> None:
        """Make the calls one by one. Some may find nothing, if an earlier attempt failed in between.

        Raises:
            TrackerError: none of them finds anything, or a tracker refuses for another reason.
        """
        missing = []
        for call in calls:
            try:
                call()
            except TrackerError as refused:
                if refused.reason != unknown:
                    raise
                missing.append(refused)
        if len(missing) == len(calls):
            raise missing[0]

    # ---------------------------------------------------------------- events

    def wait_for(self, token: Token | str, timeout: float | None = None) -> Passed:
        """Wait until all that a report has sent is through everything, on each shard: see `TrackerClient.wait_for`."""
        return Passed.merged(at_once([partial(one.wait_for, part, timeout) for one, part in self._parts(token)]))

    async def await_token(self, token: Token | str, timeout: float | None = None) -> Passed:
        """Wait for a token in an event loop, as `wait_for` does, and without a thread."""
        waits = [one.await_token(part, timeout) for one, part in self._parts(token)]
        return Passed.merged(await asyncio.gather(*waits))

    def _parts(self, token: Token | str) -> list[tuple[TrackerClient, Token]]:
        """Return the servers that a report has reached, each with the token of its part."""
        whole = Token.of(token)
        log_ids, shards = whole.log_id.split("+"), self._shards(whole.job)
        if len(log_ids) != len(shards):
            raise ValueError(f"the token is of {len(log_ids)} shards, but job {whole.job!r} has {len(shards)}")
        parts: list[list[tuple[str, str]]] = [[] for _ in shards]
        for scope, name in whole.substreams:
            parts[self._sharding.shard(scope, name)].append((scope, name))
        return [
            (client, replace(whole, job=job, log_id=log_id, substreams=tuple(part)))
            for (client, job), log_id, part in zip(shards, log_ids, parts, strict=True)
        ]

    def watch(
        self, job: str, after: Position | None = None, segments: Sequence[str] = (), scopes: Sequence[str] = ()
    ) -> ShardedWatch:
        """Watch the job's events: first those that are kept, then new ones as they happen; each once.

        Args:
            after: the position of another watch of this job with the same segments and scopes
                (`ShardedWatch.position`); None: before the oldest events that are kept.
            segments, scopes: the watch's filter, as for `TrackerClient.watch`; empty: everything.

        Raises:
            ValueError: the position belongs to another number of shards.
        """
        shards = self._shards(job)
        position = beginning(len(shards)) if after is None else after
        if len(position.seqs) != len(shards):
            raise ValueError(f"the position has {len(position.seqs)} shards, but the job has {len(shards)}")
        state = Merge(self._ordering == "global", position)
        watches = [
            client.watch(name, state.after(shard), segments, scopes, log_id)
            for shard, ((client, name), log_id) in enumerate(zip(shards, position.log_ids, strict=True))
        ]
        return ShardedWatch(watches, state, lambda: shards[0][0].job(shards[0][1]).spec)

    def subscribe(self, job: str, name: str, **_: object) -> NoReturn:
        """Refuse: over several servers, each shard would have a position of its own.

        Raises:
            TrackerError: ``NOT_SHARDED``, always.
        """
        raise TrackerError(
            "UNIMPLEMENTED",
            "NOT_SHARDED",
            f"NOT_SHARDED: job {job!r} is shared by several servers, so subscription {name!r} would be one on each; "
            "store `ShardedWatch.position` with your results, and watch from there",
        )

    def wait_for_end(
        self,
        job: str,
        segment: str,
        scope: str,
        name: str,
        end_time: int | None = None,
        timeout: float | None = None,
    ) -> Ended:
        """Wait until a substream has ended on a segment at its shard. Only a watch waits for the other shards."""
        client, shard = self._shard(job, scope, name)
        return client.wait_for_end(shard, segment, scope, name, end_time, timeout)

    # ---------------------------------------------------------------- drain

    def drain(
        self,
        job: str,
        deployment: str,
        drain_id: str,
        timeout: timedelta | float | None = None,
        hand_over: bool = False,
    ) -> DrainStatus:
        """Ask a deployment to finish what it has begun, or to hand it over, and to stop, on all shards.

        It is drained when all of them are. If it fails in between, call it again: sources learn of the drain when every
        shard has it.
        """
        calls = [
            partial(client.drain, name, deployment, drain_id, timeout, hand_over) for client, name in self._shards(job)
        ]
        return merged(first_decides(calls))

    def get_drain(self, job: str, deployment: str = "") -> DrainStatus:
        """Describe a drain's progress, which is that of the slowest shard, and what it waits for."""
        calls = [partial(client.get_drain, name, deployment) for client, name in self._shards(job)]
        return merged(at_once(calls))

    def cancel_drain(self, job: str, drain_id: str = "", deployment: str = "") -> DrainStatus:
        """Cancel a drain on all shards, or on none.

        All are asked how far they are before the first cancels it. If one has come further meanwhile, or has a front
        that has finished in the drain, the others are asked for the drain again: without the timeout that it had,
        which they no longer know.

        Raises:
            TrackerError: as `TrackerClient.cancel_drain`, and ``DRAINED``: some shards are drained.
        """
        return cancel_drain(job, self._shards(job), drain_id, deployment)


def _whole(job: str, shards: Sequence[_OfJob]) -> _OfJob:
    """Merge what the shards of a job answer, which is of shards by name."""
    whole = merged(shards)
    return replace(whole, spec=replace(whole.spec, job=job))
