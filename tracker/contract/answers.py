"""Answers of the tracker to commands that it has carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .merging import ALL, FIRST, JOINED, MAX, SUM, WHOLE
from .notebooks import Shown
from .spec import JobSpec
from .status import DrainStatus
from .values import U8, Outcome


@dataclass(frozen=True, slots=True)
class JobDefined(Shown):
    """The answer to `define_job`."""

    #: the job is new; also False when a first answer was lost and the call was repeated
    created: bool = field(metadata=ALL)
    last_seq: int = field(metadata=SUM)
    log_id: str = field(metadata=JOINED)
    #: how often the job has started afresh; records carry it from one query to the next
    incarnation: int = field(metadata=MAX)
    drain: DrainStatus = field(metadata=WHOLE)
    spec: JobSpec = field(metadata=FIRST)


@dataclass(frozen=True, slots=True)
class Reported(Shown):
    """The tracker's answer to a report."""

    outcome: Outcome
    duplicate_units: tuple[str, ...]  #: with PARTIAL_DUPLICATE: what to leave out of the next attempt
    last_seq: int  #: the job's newest event
    #: if asked for and applied: one for each of the report's names
    substream_ids: U8 | None = field(default=None, repr=False, compare=False)
    log_id: str = field(default="", repr=False)  #: the log that the ids are of

    @property
    def done(self) -> bool:
        """Return whether there is nothing left to do: false for PARTIAL_DUPLICATE only."""
        return self.outcome is not Outcome.PARTIAL_DUPLICATE


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
