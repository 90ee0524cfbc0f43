"""Client as this package needs it, and where the trackers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tracker.client import Credentials, Ordering, TrackerClient

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tracker.client import Producer
    from tracker.sharded import ShardedClient, ShardedProducer

#: Client of all trackers of a job. Events are read from each log by itself: see `EventLogs`.
JobClient: TypeAlias = "TrackerClient | ShardedClient"
#: Run of a producer, at all trackers of its job.
JobProducer: TypeAlias = "Producer | ShardedProducer"


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
