"""The values that `tracker top` shows: the jobs, how fast they move, what one waits for, and the user's choice of them.

A look is one call for each job, and one page of the oldest open substreams of a single job. Its cost does not depend on
how many substreams are open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, Final

from tracker.cli.live import KEYS, Sort
from tracker.cli.views import read_statuses, uneven
from tracker.client import DrainStatus, FrontStatus, JobStatus, SubstreamStatus, TrackerClient
from tracker.client.errors import TrackerError
from tracker.contract.refusal import Refusal
from tracker.python310 import StrEnum
from tracker.sharded import ShardedClient

SAMPLE: Final = 1000  #: the most substreams whose reasons are counted: what the server puts on one page
_SAMPLE_CELLS: Final = 10_000  # the same in pairs of a substream and a segment, for jobs of many segments


class Kind(StrEnum):
    """Kind of wait of an open substream."""

    FRONT = "front"  #: the promise of a front
    ELEMENTS = "elements"  #: elements that are in flight on a segment
    COMMIT = "commit"  #: a commit that a producer owes, for a revoked epoch
    ORDER = "order"  #: the ends of substreams with earlier end times
    OTHER = "other"  #: something that its state does not show, such as a staged epoch


@dataclass(frozen=True)
class Wait:
    """Number of substreams that wait for one thing. A substream that waits for several things counts for each.

    Args:
        name: of which front, segment or producer; empty for the other kinds.
    """

    kind: Kind
    name: str
    substreams: int


@dataclass(frozen=True)
class SilentFront:
    """A front that has not finished, and has promised nothing for long.

    Args:
        last_promise: when it promised last; None: never.
    """

    front: str
    last_promise: datetime | None


@dataclass(frozen=True)
class JobLook:
    """A job at one moment. Rates are per second since the look before, and None in the first look.

    Args:
        in_flight: elements sent and not received.
        staged: epochs and units that are reported and not committed.
        events_per_s: new events; nearly all are ends of a substream on a segment.
        epochs_per_s: epochs that producers have committed.
        silent_fronts: which of them have promised nothing for long.
    """

    job: str
    deployment: str
    open: int
    in_flight: int
    staged: int
    late: int
    events_per_s: float | None
    epochs_per_s: float | None
    late_per_s: float | None
    last_report: datetime | None
    running_fronts: int
    silent_fronts: tuple[SilentFront, ...]
    drain: DrainStatus


@dataclass(frozen=True)
class Waiting:
    """Waits of a job's oldest open substreams.

    Args:
        counted: how many substreams were counted: all that are open, or the oldest.
        waits: what they wait for, the most frequent first.
    """

    job: str
    counted: int
    waits: tuple[Wait, ...]
    oldest: SubstreamStatus | None


@dataclass(frozen=True)
class Look:
    """Everything at one moment.

    Args:
        version: the server's version; of several servers, that of the first by name; empty if they share each job.
        jobs: the jobs, in the order of their names.
        waiting: what the substreams of the chosen job wait for; None: there is no such job.
        took: the seconds that the calls took.
    """

    at: datetime
    version: str
    journal: str
    jobs: tuple[JobLook, ...]
    waiting: Waiting | None
    took: float


class Observer:
    """Observer of a tracker over time that keeps what the rates need.

    Args:
        silent_after: after how long without a promise a front counts as silent.
    """

    def __init__(self, client: TrackerClient | ShardedClient, silent_after: timedelta) -> None:
        self._client = client
        self._silent_after = silent_after
        self._before: dict[str, tuple[float, JobStatus]] = {}

    def look(self, choose: Callable[[Sequence[JobLook]], str | None]) -> Look:
        """Look at all jobs, and at the substreams of one.

        Args:
            choose: the job whose substreams are looked at; None: no job's.

        Raises:
            TrackerError: the tracker refuses to answer.
            TrackerUnavailable: it cannot be reached.
        """
        started = time.monotonic()
        server = self._client.server_info() if isinstance(self._client, TrackerClient) else None
        before, self._before = self._before, {}
        jobs = []
        for status in read_statuses(self._client):
            name = status.spec.job
            self._before[name] = (time.monotonic(), status)
            jobs.append(self._job(status, before.get(name)))
        jobs.sort(key=lambda each: each.job)
        chosen = choose(jobs)
        waiting = None if chosen not in self._before else self._waiting(self._before[chosen][1])
        version, journal = (server.version, server.journal) if server else ("", "")
        return Look(datetime.now(timezone.utc), version, journal, tuple(jobs), waiting, time.monotonic() - started)

    def _job(self, now: JobStatus, before: tuple[float, JobStatus] | None) -> JobLook:
        # A job that was deleted and defined again has another log, and no rates yet.
        moment, then = before if before is not None and before[1].log_id == now.log_id else (0.0, None)
        elapsed = max(time.monotonic() - moment, 1e-6)

        def rate(count: Callable[[JobStatus], int]) -> float | None:
            return None if then is None else (count(now) - count(then)) / elapsed

        return JobLook(
            now.spec.job,
            now.spec.deployment,
            now.open_substreams,
            now.in_flight,
            now.staged_units,
            now.late_reports,
            rate(lambda status: status.last_seq),
            None if then is None else _committed(now, then) / elapsed,
            rate(lambda status: status.late_reports),
            max((each.last_heard for each in now.producers), default=None),
            sum(not front.finished for front in now.fronts),
            tuple(SilentFront(each.front, each.last_promise) for each in now.fronts if self._is_silent(each)),
            now.drain,
        )

    def _is_silent(self, front: FrontStatus) -> bool:
        if front.finished:
            return False
        return front.last_promise is None or datetime.now(timezone.utc) - front.last_promise >= self._silent_after

    def _waiting(self, job: JobStatus) -> Waiting | None:
        name, most = job.spec.job, max(1, min(SAMPLE, _SAMPLE_CELLS // len(job.spec.segments)))
        try:
            found = list(islice(self._client.substreams(name), most))
        except TrackerError as refused:
            if refused.reason != Refusal.UNKNOWN_JOB:
                raise
            return None
        waits = Counter(wait for each in found for wait in set(waits_of(each, job.spec.ordering != "none")))
        ranked = sorted(waits.items(), key=lambda each: (-each[1], each[0]))
        return Waiting(
            name,
            len(found),
            tuple(Wait(kind, of, count) for (kind, of), count in ranked),
            found[0] if found else None,
        )


def _committed(now: JobStatus, then: JobStatus) -> int:
    """Count the epochs that were committed between two looks, by producers that both have."""
    earlier = {each.producer: each.committed_epoch for each in then.producers}
    total = 0
    for each in now.producers:
        if each.committed_epoch is not None and each.producer in earlier:
            last = earlier[each.producer]
            # The first epoch of a producer may have any number, and one that was forgotten may begin again.
            total += 1 if last is None else max(0, each.committed_epoch - last)
    return total


def waits_of(substream: SubstreamStatus, ordered: bool) -> list[tuple[Kind, str]]:
    """Return what an open substream waits for.

    Args:
        ordered: whether ends of its job wait for those of earlier end times.
    """
    waits = [(Kind.FRONT, front) for front in substream.waiting_for]
    waits += [(Kind.ELEMENTS, segment) for segment in uneven(substream)]
    waits += [(Kind.COMMIT, producer) for producer in substream.held_by]
    return waits or [(Kind.ORDER if ordered else Kind.OTHER, "")]


_VALUES: Final[dict[Sort, Callable[[JobLook], Any]]] = {
    Sort.NAME: lambda job: job.job,
    Sort.OPEN: lambda job: job.open,
    Sort.IN_FLIGHT: lambda job: job.in_flight,
    Sort.EVENTS: lambda job: job.events_per_s or 0.0,
    Sort.EPOCHS: lambda job: job.epochs_per_s or 0.0,
    Sort.LATE: lambda job: job.late,
    Sort.SILENT: lambda job: len(job.silent_fronts),
}


@dataclass
class Choice:
    """The order of the jobs, and the chosen job.

    Args:
        sort: the order. Numbers are listed from the highest, names from the first.
        job: the chosen job; None: the first one in the order.
    """

    sort: Sort = Sort.OPEN
    turned: bool = False
    job: str | None = None

    def ordered(self, jobs: Sequence[JobLook]) -> list[JobLook]:
        """Return the jobs in the order; those that are alike by their names."""
        by_name = sorted(jobs, key=lambda job: job.job)
        return sorted(by_name, key=_VALUES[self.sort], reverse=(self.sort is not Sort.NAME) != self.turned)

    def chosen(self, jobs: Sequence[JobLook]) -> str | None:
        """Return the chosen job; if it does not exist, the first one."""
        names = [job.job for job in self.ordered(jobs)]
        return self.job if self.job in names else next(iter(names), None)

    def press(self, key: str, jobs: Sequence[JobLook]) -> bool:
        """Change the choice as a key asks for it.

        Args:
            key: a letter of `KEYS`, which turns the order around if it is the same as before; or ``up``, ``down``,
                ``home``, ``end``, or ``k`` and ``j`` for up and down.

        Returns:
            True if another job is chosen now.
        """
        if key in KEYS:
            self.turned = KEYS[key] is self.sort and not self.turned
            self.sort = KEYS[key]
            return False
        names = [job.job for job in self.ordered(jobs)]
        before = self.chosen(jobs)
        if before is None:
            return False
        place = names.index(before)
        places = {"up": place - 1, "k": place - 1, "down": place + 1, "j": place + 1, "home": 0, "end": len(names) - 1}
        self.job = names[max(0, min(places.get(key, place), len(names) - 1))]
        return self.job != before
