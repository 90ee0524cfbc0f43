"""Clients' knowledge of the jobs' logs, which no answer may contradict."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracker.contract.events import Event
from tracker.core import Tracker

JOB = "job"
PRODUCERS = ("p", "q")


class FoundOut(AssertionError):  # noqa: N818 - what happens to a tracker
    """A tracker has broken a promise."""


class Lost(Exception):  # noqa: N818 - what happens to a call
    """A call has had no answer: it may have been carried out."""


@dataclass
class Log:
    """Clients' knowledge of one log."""

    events: dict[int, Event] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    answered: dict[tuple[str, int], int] = field(default_factory=dict)  #: when, in ns, by reporter and epoch
    ends: dict[tuple[str, str], int] = field(default_factory=dict)  #: the events' numbers, by segment and substream

    @property
    def last(self) -> int:
        """The newest event that was seen."""
        return max(self.events, default=0)


@dataclass
class Status:
    """An answer to a look-up."""

    log_id: str
    last: int
    committed: dict[str, int]
    runs: dict[str, int]  #: the newest of each reporter
    events: dict[int, Event]


def status_of(tracker: Tracker, after: int = 0) -> Status | None:
    """Return the job's state, with the events after one; None: there is no such job."""
    if JOB not in tracker.jobs():
        return None
    view = tracker.view(JOB)
    last = view.last_seq
    events, _ = view.events(min(after, last))
    producers = view.status().producers
    return Status(
        view.log_id,
        last,
        {each.producer: -1 if each.committed_epoch is None else each.committed_epoch for each in producers},
        {each.producer: int(each.run.rpartition(".")[2]) for each in producers if "." in each.run},
        {event.seq: event for event in events},
    )
