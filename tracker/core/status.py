"""What the tracker can be asked: plain values that describe a job as it stands."""

from __future__ import annotations

from dataclasses import dataclass

from .commands import DrainStatus, Mode, Spec


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    producer: str
    run: str
    mode: Mode
    committed_epoch: int | None
    staged_epochs: tuple[int, ...]
    closed: bool
    last_heard: int  #: ns since the Unix epoch


@dataclass(frozen=True, slots=True)
class FrontStatus:
    front: str
    finished: bool
    idle: bool
    frontiers: dict[str, int]  #: by scope; ``"*"`` is the frontier for every scope
    producer: str  #: its owner; empty: nobody has promised for it yet
    last_promise: int | None


@dataclass(frozen=True, slots=True)
class JobStatus:
    spec: Spec
    first_seq: int
    last_seq: int
    open_substreams: int
    ended_substreams: int
    in_flight: int
    late_reports: int
    producers: tuple[ProducerStatus, ...]
    fronts: tuple[FrontStatus, ...]
    drain: DrainStatus
    log_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    segment: str
    ended: bool
    xor: int
    sent: int
    received: int
    last_sender: str
    last_receiver: str


@dataclass(frozen=True, slots=True)
class SubstreamStatus:
    scope: str
    name: str
    end_time: int | None
    closed: bool
    waiting_for: tuple[str, ...]
    segments: tuple[SegmentStatus, ...]
    late_reports: int
    created: int
    changed: int
    held_by: tuple[str, ...]
