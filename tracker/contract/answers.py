"""What the tracker answers to a command that it has carried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .commands import Spec
from .status import DrainStatus
from .values import U8, Outcome


@dataclass(frozen=True, slots=True)
class JobDefined:
    spec: Spec
    created: bool
    last_seq: int
    drain: DrainStatus
    log_id: str
    incarnation: int


@dataclass(frozen=True, slots=True, eq=False)
class Reported:
    outcome: Outcome
    last_seq: int
    duplicate_units: tuple[str, ...] = ()
    substream_ids: U8 | None = None  #: if asked for and applied: one for each of names
    log_id: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    committed_epoch: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    last_seq: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    acknowledged: int  #: the subscription's place
    last_seq: int
    log_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Acknowledged:
    acknowledged: int


Answer: TypeAlias = JobDefined | Reported | Opened | Committed | DrainStatus | Subscribed | Acknowledged | None
