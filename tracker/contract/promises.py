"""Promises of fronts: what they no longer send, or how much they send.

A report numbers the substreams that it names; a promise in it names one by its number. A commit has no such table: the
promise in it names the substream itself (`Expected`), and its reader makes a table of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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


@dataclass(frozen=True, slots=True)
class Expected:
    """The same as a caller gives it with a commit: the substream by its name.

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


Promise: TypeAlias = Frontier | Finish | Close | Expect
CommitPromise: TypeAlias = Frontier | Finish | Expected
