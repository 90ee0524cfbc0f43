"""Client as this package needs it, and where the trackers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tracker.client import (
    Credentials,
    DrainStatus,
    JobDefined,
    JobSpec,
    JobStatus,
    Mode,
    Ordering,
    Report,
    ServerInfo,
    SubstreamStatus,
    TrackerClient,
)
from tracker.contract.commands import CommitPromise, Contents, Reported

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class JobProducer(Protocol):
    """A run of a producer, at all trackers of its job: see `tracker.client.Producer`."""

    @property
    def committed_epoch(self) -> int | None:
        """The last epoch that was committed everywhere when the run was opened; None: none was."""
        ...

    def __enter__(self) -> JobProducer: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def epoch(self, epoch: int | None = None) -> Report:
        """Return an empty report."""
        ...

    def deliver(self, epoch: int, contents: Contents, units: Sequence[str], commit: bool) -> Reported:
        """Send a report that was made before."""
        ...

    def commit(
        self,
        epoch: int | None = None,
        units: Sequence[str] | None = None,
        seal: bool = False,
        promises: Sequence[CommitPromise] = (),
    ) -> int:
        """Commit or seal an epoch, or make promises."""
        ...

    def close(self, resume_epoch: int | None = None) -> None:
        """Close the run."""
        ...


class JobClient(Protocol):
    """Client of all trackers of a job: `tracker.client.TrackerClient` or `tracker.sharded.ShardedClient`.

    Their docstrings describe the methods. Events are read from each log by itself: see `EventLogs`.
    """

    def __enter__(self) -> JobClient: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @property
    def command_options(self) -> str:
        """The options with which the commands of ``tracker`` call the same trackers."""
        ...

    def with_patience(self, timeout: float, retry_for: float) -> JobClient:
        """Return a client that waits for another time, in seconds."""
        ...

    def logs(self, job: str) -> list[tuple[TrackerClient, str]]:
        """Return the logs of the job's events: for each, who has it and under which name."""
        ...

    def close(self) -> None:
        """Release the connections."""
        ...

    def server_info(self) -> ServerInfo:
        """Return the limits that all trackers keep."""
        ...

    def define_job(self, spec: JobSpec, force: bool = False) -> JobDefined:
        """Create a job, or starts a deployment of it."""
        ...

    def job(self, job: str) -> JobStatus:
        """Describe a job."""
        ...

    def substreams(
        self, job: str, scopes: Sequence[str] = (), include_ended: bool = False, only_stalled: bool = False
    ) -> Iterator[SubstreamStatus]:
        """Describe substreams."""
        ...

    def finish_front(self, job: str, front: str) -> None:
        """Finish a front."""
        ...

    def open_producer(
        self,
        job: str,
        producer: str,
        run: str,
        mode: Mode = "staged",
        resume_epoch: int | None = None,
        seals: bool = False,
        replays: bool = False,
    ) -> JobProducer:
        """Make a run the current one of its producer."""
        ...

    def producer(self, job: str, producer: str, run: str, keep_apart: bool = False) -> JobProducer:
        """Return a run that another process has opened."""
        ...

    def drain(
        self,
        job: str,
        deployment: str,
        drain_id: str,
        timeout: timedelta | float | None = None,
        hand_over: bool = False,
    ) -> DrainStatus:
        """Ask a deployment to finish, or to hand over."""
        ...

    def get_drain(self, job: str, deployment: str = "") -> DrainStatus:
        """Describe a drain."""
        ...


@dataclass(frozen=True, slots=True)
class Trackers:
    """Addresses of a job's trackers, and how they are called. Each process makes its client of them.

    Attributes:
        server: the address; or several.
        ordering: of the job, if all of these servers share it; None: one of them has it.
        retry_for: seconds for which a tracker that cannot be reached is waited for.
        credentials: the names of the files that the client shows, where it runs.
    """

    server: str
    ordering: Ordering | None
    retry_for: float
    credentials: Credentials

    def client(self, metrics: CollectorRegistry | None = None) -> JobClient:
        """Return a client of its own.

        Args:
            metrics: where it counts; None: it does not.
        """
        more: dict[str, Any] = {"retry_for": self.retry_for, "credentials": self.credentials, "metrics": metrics}
        if self.ordering is None:
            return TrackerClient(self.server, **more)
        from tracker.sharded import ShardedClient

        return ShardedClient(self.server, self.ordering, **more)
