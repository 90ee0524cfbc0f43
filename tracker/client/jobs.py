"""What a job is and how it stands, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias

Ordering: TypeAlias = Literal["none", "scope", "global"]
Mode: TypeAlias = Literal["staged", "immediate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job: its graph of segments, its fronts, its rules.

    Args:
        job: its name, of ``[A-Za-z0-9._-]``, 1 to 128 characters.
        deployment: which deployment of the job this is, 1 to 128 characters.
        segments: for each segment those that its elements travel on next; cycles are allowed.
        fronts: the sources that promise what they will not send any more. Without any, substreams are closed one by
            one by whoever is their only source.
        ordering: which ends wait for those of smaller end times: none, those in the same scope, or all.
        progress: announce `Advanced`, how far each segment has come.
        stall_after: a closed substream that has not balanced nor changed for so long is announced as `Stalled`;
            None: never.
        expire_after: and is given up after so long; None: never.
        idle_after: a front that was silent for so long is not waited for; None: never.
        retention: how long ended substreams and events are kept; None: as long as the server likes.

    >>> JobSpec(job="flights", deployment="d1", segments={"raw": ["clean"], "clean": []}, fronts=["schedule"]).ordering
    'none'
    """

    job: str
    deployment: str
    segments: Mapping[str, Sequence[str]]
    fronts: Sequence[str] = ()
    ordering: Ordering = "none"
    progress: bool = False
    stall_after: timedelta | None = None
    expire_after: timedelta | None = None
    idle_after: timedelta | None = None
    retention: timedelta | None = None


class DrainState(StrEnum):
    """How far a drain has come."""

    NOT_DRAINING = "NOT_DRAINING"
    PENDING = "PENDING"  #: asked for before its deployment was defined
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    TIMED_OUT = "TIMED_OUT"  #: not over in time; it goes on
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """A drain, and what it still waits for."""

    state: DrainState
    drain_id: str
    deployment: str
    unfinished_fronts: tuple[str, ...]
    open_substreams: int
    in_flight: int
    uncommitted_producers: tuple[str, ...]  #: with staged epochs
    open_producers: tuple[str, ...]  #: whose runs have not closed


@dataclass(frozen=True, slots=True)
class JobDefined:
    """The answer to `define_job`."""

    created: bool  #: the job is new; also False when a first answer was lost and the call was repeated
    last_seq: int
    log_id: str
    incarnation: int  #: how often the job has started afresh; records carry it from one query to the next
    drain: DrainStatus
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    producer: str
    run: str
    mode: Mode
    committed_epoch: int | None
    staged_epochs: tuple[int, ...]
    closed: bool
    last_heard: datetime


@dataclass(frozen=True, slots=True)
class FrontStatus:
    front: str
    finished: bool
    idle: bool
    frontiers: Mapping[str, int]  #: by scope; ``"*"`` is the frontier for every scope
    producer: str  #: its owner; empty: nobody has promised for it yet
    last_promise: datetime | None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as it stands."""

    spec: JobSpec
    first_seq: int  #: the oldest event still kept
    last_seq: int
    open_substreams: int
    ended_substreams: int
    in_flight: int  #: elements sent and not yet received, over all segments
    late_reports: int
    producers: tuple[ProducerStatus, ...]
    fronts: tuple[FrontStatus, ...]
    drain: DrainStatus
    log_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """A substream's account on one segment."""

    segment: str
    ended: bool
    xor: int
    sent: int
    received: int
    last_sender: str
    last_receiver: str


@dataclass(frozen=True, slots=True)
class SubstreamStatus:
    """A substream as it stands."""

    scope: str
    name: str
    end_time: int | None
    closed: bool
    waiting_for: tuple[str, ...]  #: the fronts that have not closed it
    segments: tuple[SegmentStatus, ...]
    late_reports: int
    created: datetime
    changed: datetime
    held_by: tuple[str, ...]  #: producers that owe a commit for a revoked immediate epoch

    @property
    def in_flight(self) -> int:
        """Elements sent and not yet received, over the segments where more were sent than received."""
        return sum(max(0, segment.sent - segment.received) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Which server answers."""

    version: str
    journal: str  #: ``"memory"``, ``"sqlite"``, …
    leader: bool  #: False: a standby, which serves nothing else
    limits: Mapping[str, int]
