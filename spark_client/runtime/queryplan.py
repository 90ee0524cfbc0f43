"""A query as it is declared, whole. Data: a runtime can be made from it in another process.

The user's steps and functions are all the code in it. `spark_client.spark_internals.columns` carries them to another
process of the same version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias

from spark_client.counting.batch import CountingPlan
from spark_client.destinations.destination import Destination, Nowhere
from spark_client.destinations.sink import Sink
from spark_client.plan.releases import ReleasePlan
from spark_client.plan.streams import Stream
from spark_client.storage.folder import Folder
from spark_client.trackers import Trackers

CountingMode: TypeAlias = Literal["driver", "executors"]


@dataclass(frozen=True)
class JobSettings:
    """Settings that the queries of one job share.

    Attributes:
        job: the name by which the trackers know the job.
        trackers: the addresses of the job's trackers.
        mode: who reports the rows that are passed on, ``"driver"`` or ``"executors"``.
        max_away: how long a query may be stopped while the tracker keeps its ends for it; None: 30 days.
        remember: how long the tracker remembers names that have ended; None: as long as there is the job.
        outbox: whether reports are kept in the checkpoint while the tracker is away.
    """

    job: str
    trackers: Trackers
    mode: CountingMode
    max_away: timedelta | None
    remember: timedelta | None = None
    outbox: bool = False


@dataclass(frozen=True, eq=False)
class QueryPlan:
    """A query whose batches this package processes.

    Attributes:
        stream: the source or channel that it reads, with its segment.
        release: what it releases of it; None: it passes the rows on.
        destination: where its rows go.
        late: where the table of what came late is.
        late_to: a sink that the rows of this table go to instead.
        seals: whether what counts of a batch is fixed at the tracker before Spark commits it.
        compact_from: how many parts of state there may be before they are made one.
        receipts: where receipts go; None: none are written.
        given_up: whether what it releases are rows that were given up.
        upstream: the segments that lead to the stream's.
        connected: those, the stream's own, and those that can be reached from it.
        origins: those of them, or the stream's own, on which rows enter the job, with what the promise of each trusts.
        received_beside: the segments that the application receives, each by a query of its own.
        state_segment: the segment that stands for a release's state, if its results are sent on.
        name: of the release, among several; empty: there is one.
        bounded: whether a run of it takes what is there and ends: it releases all that it has ended.
        pace: seconds between two times at which it writes results, at least, as its trigger has it; 0: none.
        beside: further releases of the same stream, each with a name and a destination of its own. They are made of the
            same batches: `stream`, `settings`, `checkpoint` and `late` are the same.
    """

    settings: JobSettings
    stream: Stream
    release: ReleasePlan | None
    destination: Destination
    checkpoint: Folder
    late: Folder
    seals: bool = False
    compact_from: int = 24
    receipts: Folder | Sink | None = None
    given_up: bool = False
    upstream: tuple[str, ...] = field(default=())
    connected: tuple[str, ...] = field(default=())
    origins: Mapping[str, str] = field(default_factory=dict)
    received_beside: frozenset[str] = frozenset()
    state_segment: str | None = None
    name: str = ""
    bounded: bool = False
    pace: float = 0.0
    beside: tuple[QueryPlan, ...] = field(default=())
    late_to: Sink | None = None

    @property
    def only_counts(self) -> bool:
        """Return whether the query's rows are counted by substream, and go nowhere."""
        return isinstance(self.destination, Nowhere)

    @property
    def releases(self) -> list[QueryPlan]:
        """The plan of each release; the first one's aggregation counts the rows, if any aggregates."""
        plans = [each for each in (self, *self.beside) if each.release is not None]
        return sorted(plans, key=lambda each: (bool(each.release and each.release.kept), each.name))

    def counting(self) -> CountingPlan:
        """Return what of its batches is counted."""
        return CountingPlan.of(
            self.stream,
            released=self.release is not None,
            sends=self.destination.sends,
            xor=any(each.receipts is not None for each in self.releases) and self.stream.input.named,
            aggregated=self.only_counts
            or any(each.release is not None and not each.release.kept for each in self.releases),
        )
