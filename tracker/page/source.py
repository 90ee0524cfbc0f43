"""Source of what the page shows, and who decides what a caller may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starlette.requests import HTTPConnection

from tracker.contract.events import Event
from tracker.contract.status import Explained, Found, JobStatus, Survey, Wanted

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EventTail:
    """The newest events of a job."""

    first_seq: int  #: every event from this one on is kept
    last_seq: int
    events: Sequence[Event]  #: the newest, in order


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Survey of a job's open substreams, at a moment."""

    survey: Survey
    at: int  #: ms since the Unix epoch


class Source(Protocol):
    """Source of jobs for the page. Each method raises `Refused` (``UNKNOWN_JOB``) for a job that does not exist."""

    @property
    def version(self) -> str:
        """The server's version."""

    @property
    def journal(self) -> str:
        """The kind of the server's journal."""

    def jobs(self) -> Sequence[str]:
        """Return the names of all jobs, sorted."""

    async def status(self, job: str, describe: Callable[[JobStatus], _T]) -> _T:
        """Return what `describe` makes of a job's state; it runs where the state is read, so it should make it
        small."""

    async def survey(self, job: str) -> Surveyed:
        """Return what the open substreams wait for. It takes its time, and other work of the job is done meanwhile. The
        source bounds how often it is counted: whoever asks again soon may get the same."""

    async def search(self, job: str, wanted: Wanted, limit: int, after: int) -> Found:
        """Return some open substreams. One call looks at a bounded number, so it may find none while others follow."""

    async def explain(self, job: str, scope: str, name: str) -> tuple[JobStatus, Explained]:
        """Return a substream, and of its job's state what explains it."""

    async def tail(self, job: str, before: int, limit: int) -> EventTail:
        """Return the newest events before a number (0: of all)."""


class Access(Protocol):
    """Judge of what a caller may see. It is asked once for each request, and again while a live view lasts."""

    def may_see(self, request: HTTPConnection, job: str) -> bool:
        """Return whether the caller may see a job."""
