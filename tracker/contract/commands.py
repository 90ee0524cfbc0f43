"""The commands that a tracker takes, the promises in them, and its answers.

Commands are plain values: what a caller sends, without transport. A command with the time at which it was taken is
all that the state depends on, so a journal of them rebuilds it. All times and durations are in nanoseconds.

A promise states what a front no longer sends, or how much it sends. A report numbers the substreams that it names; a
promise in it names one by its number. A commit has no such table: the promise in it names the substream itself
(`Expected`), and its reader makes a table of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from .spec import JobSpec, Spec
from .status import ALL, FIRST, JOINED, MAX, SUM, WHOLE, DrainStatus
from .values import I8, U4, U8, DrainMode, Mode, Outcome, Shown


@dataclass(frozen=True, slots=True)
class Frontier:
    """A promise: the front will send no more elements of substreams with an end time up to `time`."""

    front: str
    time: int
    scope: str | None = None  #: None: of every scope


@dataclass(frozen=True, slots=True)
class Close:
    """A promise: the front will send no more elements of one substream."""

    front: str  #: empty: every front, since the caller is the substream's only source
    substream_index: int  #: its place among the report's substreams
    only_without_fronts: bool = False  #: refused with an empty front in a job that has fronts


@dataclass(frozen=True, slots=True)
class Finish:
    """A promise: the front will send nothing more at all."""

    front: str


@dataclass(frozen=True, slots=True)
class Expect:
    """A promise: the front will send exactly `elements` of one substream on a segment that it feeds."""

    front: str
    segment: str
    substream_index: int  #: its place among the substreams of the report, or of the commit
    elements: int
    revise: bool = False  #: takes the place of another number
    xor: int | None = None  #: of the identities of these elements, 64 bits; None: any elements count


@dataclass(frozen=True, slots=True)
class Identities:
    """The elements of one substream that a report has of a front on a segment: see `Expect.xor`."""

    front: str
    segment: str
    substream_index: int  #: its place among the substreams of the report
    xor: int  #: of the elements' identities, 64 bits


@dataclass(frozen=True, slots=True)
class Expected:
    """An `Expect` as a caller gives it with a commit: it names its substream.

    >>> Expected("control", "raw", "JFK", "2013-01-01", 20, end_time=24).elements
    20
    """

    front: str
    segment: str
    scope: str
    name: str
    elements: int
    end_time: int | None = None  #: the substream's, if it has one
    revise: bool = False
    xor: int | None = None


Promise: TypeAlias = Frontier | Finish | Close | Expect | Identities
AboutSubstream: TypeAlias = Close | Expect | Identities  #: promises about one substream
CommitPromise: TypeAlias = Frontier | Finish | Expected


def _no_u4() -> U4:
    return np.empty(0, np.uint32)


def _no_u8() -> U8:
    return np.empty(0, np.uint64)


def _no_i8() -> I8:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class DefineJob:
    spec: Spec
    force: bool = False

    @property
    def job(self) -> str:
        return self.spec.job


@dataclass(frozen=True, slots=True)
class DeleteJob:
    job: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class OpenProducer:
    job: str
    producer: str
    run: str
    mode: Mode = Mode.STAGED
    resume_epoch: int | None = None
    seals: bool = False


@dataclass(frozen=True, slots=True)
class CloseProducer:
    job: str
    producer: str
    run: str
    resume_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ForgetProducer:
    job: str
    producer: str


@dataclass(frozen=True, slots=True)
class FinishFront:
    job: str
    front: str


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The entries and promises of one or more units of an epoch, in columns.

    Substreams are numbered within the report: first `names`, each with its scope and end time, then
    `substream_ids`. `entry_count` is the length that each column of the entries must have.
    """

    job: str
    producer: str
    run: str
    epoch: int
    units: Sequence[str] = ()
    scopes: Sequence[str] = ()
    names: Sequence[str] = ()
    scope_index: U4 = field(default_factory=_no_u4)
    end_times: I8 = field(default_factory=_no_i8)  #: empty (none has any), or one for each name
    substream_ids: U8 = field(default_factory=_no_u8)
    log_id: str = ""
    want_ids: bool = False
    segments: Sequence[str] = ()
    substream_index: U4 = field(default_factory=_no_u4)
    segment_index: U4 = field(default_factory=_no_u4)
    xor: U8 = field(default_factory=_no_u8)
    sent: U4 = field(default_factory=_no_u4)
    received: U4 = field(default_factory=_no_u4)
    entry_count: int = 0
    promises: Sequence[Promise] = ()
    commit: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The contents of a report in the making: substreams, and one entry for each (substream, segment) that it changes.

    `substreams` and `segments` are tables; `substream_index` and `segment_index` point into them, one row an entry,
    in line with `xor`, `sent` and `received`.
    """

    substreams: Sequence[tuple[str, str]]  #: (scope, name)
    end_times: I8  #: one for each substream; NO_END_TIME: it has none
    segments: Sequence[str]
    substream_index: U4
    segment_index: U4
    xor: U8
    sent: U4
    received: U4
    promises: Sequence[Promise]


@dataclass(frozen=True, slots=True)
class Commit:
    job: str
    producer: str
    run: str
    epoch: int | None = None
    units: tuple[str, ...] | None = None  #: the manifest; None: there is none
    seal: bool = False
    promises: Sequence[Promise] = ()
    substreams: tuple[tuple[str, str, int | None], ...] = ()  #: (scope, name, end time): what expectations index


@dataclass(frozen=True, slots=True)
class Drain:
    job: str
    deployment: str
    drain_id: str
    timeout: int | None = None
    mode: DrainMode = DrainMode.FINISH


@dataclass(frozen=True, slots=True)
class CancelDrain:
    job: str
    drain_id: str = ""
    deployment: str = ""


@dataclass(frozen=True, slots=True)
class Abandon:
    job: str
    scope: str
    name: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A durable reader: what its filter lets through is kept until it has acknowledged it."""

    job: str
    name: str
    segments: tuple[str, ...] = ()  #: empty: all
    scopes: tuple[str, ...] = ()  #: empty: all
    after_seq: int | None = None  #: a position of its own; None: it starts at the oldest event kept
    max_age: int | None = None  #: ns; None: the default
    max_events: int | None = None  #: None: the default
    log_id: str = ""  #: the log that `after_seq` counts in; empty: any


@dataclass(frozen=True, slots=True)
class Ack:
    job: str
    name: str
    seq: int
    log_id: str = ""


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    job: str
    name: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: stalls, expiry, idleness, retention and drains' timeouts are seen to, by no other command."""

    job: str = ""  #: for this job only; empty: for all


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state was rebuilt from a journal: idle timers start again; with `lost_tail`, all logs get new ids."""

    lost_tail: str = ""  #: empty, or the new prefix of log ids
    fences: bool = False  #: with `lost_tail`: open runs are fenced (no start before version 0.2 did)

    @property
    def job(self) -> str:
        """None: it is for all."""
        return ""


Command: TypeAlias = (
    DefineJob
    | DeleteJob
    | OpenProducer
    | CloseProducer
    | ForgetProducer
    | FinishFront
    | Report
    | Commit
    | Drain
    | CancelDrain
    | Abandon
    | Subscribe
    | Ack
    | Unsubscribe
    | Tick
    | Recovered
)


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
