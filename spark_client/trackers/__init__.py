"""The trackers of a job, one or several: how they are called, and positions in the logs of a job's events.

With several trackers, a hash assigns each substream to one of them (`tracker.sharded`): each has a shard of the job,
with a log of its own. The other rooms call a `JobClient` and keep `Place`s, and do not depend on how many there are.
These rules hold then:

- **Reports** of the driver and of executors go to every shard with the same units, even if they hold nothing for it. So
  each shard has every unit of every epoch, a seal's manifest fits on all of them, and each commits every epoch.
- **Seals, commits, promises, runs and finishes** go to the first shard, and to the others when it has agreed. If a
  shard is away, the call fails and is repeated until all have it: those that have it already change nothing. Spark
  commits a batch when every shard has its report. A batch's next one begins when every shard has its commit.
- **A run that starts again** gives every shard the first batch that Spark has not committed, and each resolves what is
  staged there. So shards that differ after a crash agree before the first batch.
- **Positions** have one number and one log id for each shard. Each shard's events are read in its order, each once.
  Ends of two shards are of two substreams, so a release needs no order between them. A log that was lost is noticed
  at its shard, with `LOG_CHANGED`.
- **Progress** is the minimum over the shards, for the exact watermark as well.
- **A drain** or a hand-over begins when every shard has it, and is over when every shard is drained. A shard that is
  drained before the others takes empty epochs and new runs, so a driver that starts again in between completes it.
  `JobStatus.last_seq` is a sum over the shards: it is the same again only if no shard has announced anything.

``ordering="global"`` is refused for `Tracking`: a release acts on ends as their shards announce them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_client.errors import TrackingError
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


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the log of a job's events, or in the logs of its shards, in their order.

    If there is one log, its parts are a number and a text in JSON, as they were before there could be several.

    Attributes:
        seqs: for each log, the number of the last event that was taken.
        log_ids: for each log, its id.

    >>> place = Place.of([7, 2], ["a", "b"])
    >>> place.numbers, place.ids, Place.of(7, "a").numbers
    ([7, 2], ['a', 'b'], 7)
    """

    seqs: tuple[int, ...]
    log_ids: tuple[str, ...]

    @classmethod
    def of(cls, numbers: int | Sequence[int], ids: str | Sequence[str]) -> Place:
        """Read `numbers` and `ids`."""
        return cls(
            (numbers,) if isinstance(numbers, int) else tuple(numbers), (ids,) if isinstance(ids, str) else tuple(ids)
        )

    @property
    def numbers(self) -> int | list[int]:
        """The numbers, for JSON."""
        return self.seqs[0] if len(self.seqs) == 1 else list(self.seqs)

    @property
    def ids(self) -> str | list[str]:
        """The logs' ids, for JSON."""
        return self.log_ids[0] if len(self.log_ids) == 1 else list(self.log_ids)

    @property
    def log_id(self) -> str:
        """One id for all logs."""
        return "+".join(self.log_ids)

    def is_beyond(self, other: Place) -> bool:
        """Return whether there are events in some log that this position has and the other has not."""
        return any(own > its for own, its in zip(self.seqs, other.seqs, strict=True))

    def check(self, logs: int) -> Place:
        """Return this position if it is one in so many logs.

        Raises:
            TrackingError: it is one in another number of logs.
        """
        if len(self.seqs) != logs:
            raise TrackingError(
                f"the checkpoint has a position in {len(self.seqs)} logs of events, and the job has {logs}: it was "
                "written for another list of servers, or without sharded=True. A job keeps its servers for its whole "
                "life: use those that it was started with, or start it from the beginning, with new checkpoints"
            )
        return self
