"""Looks of `tracker top`: the jobs, how fast they move, what one waits for, the user's choice of them, and a drawing.

A look is one call for each job, and one page of the oldest open substreams of a single job. Its cost does not depend on
how many substreams are open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tracker.cli.options import Sort
from tracker.cli.views import read_statuses, substream, uneven
from tracker.client import (
    DrainMode,
    DrainState,
    DrainStatus,
    FrontStatus,
    JobStatus,
    SubstreamStatus,
    TrackerClient,
    TrackerError,
)
from tracker.client.texts import ago, shown
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


#: The key of each order.
KEYS: Final = {
    "n": Sort.NAME,
    "o": Sort.OPEN,
    "i": Sort.IN_FLIGHT,
    "e": Sort.EVENTS,
    "c": Sort.EPOCHS,
    "l": Sort.LATE,
    "s": Sort.SILENT,
}
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


_GAP: Final = "  "
_MARK: Final = ("  ", "> ")  # before the other jobs, and before the chosen one
_SHORTEST: Final = 8  # columns that the name of a job has at least, however narrow the terminal is
_MOST_FRONTS: Final = 5  # silent fronts that are named
_MOST_WAITS: Final = 10  # things that substreams wait for
_UNDER_WAY: Final = {DrainState.PENDING: "yellow", DrainState.DRAINING: "yellow", DrainState.TIMED_OUT: "red"}
_BOTTOM: Final = "q quit  ↑↓ job  sort by: " + "  ".join(f"{key} {sort}" for key, sort in KEYS.items())


@dataclass(frozen=True)
class _Column:
    """A column of the list of jobs.

    Args:
        rank: columns of a higher rank are left out first if a terminal is narrow; those of 0 never are.
        sort: the order of the jobs that is by this column.
        style: a style of rich for a job.
    """

    title: str
    value: Callable[[JobLook], str]
    rank: int
    sort: Sort | None = None
    style: Callable[[JobLook], str] = lambda _: ""


_COLUMNS: Final = (
    _Column("OPEN", lambda job: f"{job.open:,}", 0, Sort.OPEN),
    _Column("IN FLIGHT", lambda job: f"{job.in_flight:,}", 0, Sort.IN_FLIGHT),
    _Column("STAGED", lambda job: f"{job.staged:,}", 7),
    _Column("EVENTS/S", lambda job: _rate(job.events_per_s), 1, Sort.EVENTS),
    _Column("EPOCHS/S", lambda job: _rate(job.epochs_per_s), 5, Sort.EPOCHS),
    _Column("LATE", lambda job: f"{job.late:,}", 6, Sort.LATE, lambda job: "yellow" if job.late_per_s else ""),
    _Column(
        "SILENT",
        lambda job: f"{len(job.silent_fronts):,}/{job.running_fronts:,}" if job.running_fronts else "-",
        2,
        Sort.SILENT,
        lambda job: "yellow" if job.open and job.silent_fronts else "",
    ),
    _Column("LAST REPORT", lambda job: ago(job.last_report) or "-", 4),
    _Column(
        "DRAIN",
        lambda job: "-" if job.drain.state is DrainState.NOT_DRAINING else str(job.drain.state),
        3,
        style=lambda job: _UNDER_WAY.get(job.drain.state, ""),
    ),
)


def draw(
    look: Look, choice: Choice, server: str, width: int | None = None, height: int | None = None, trouble: str = ""
) -> list[Text]:
    """Return the lines of a look.

    Args:
        choice: the order of the jobs, and the chosen one.
        server: the server's address, as the user gave it.
        width: how many columns there are; None: as many as are needed.
        height: how many lines there are; the last one then names the keys. None: as many as are needed.
        trouble: why there is no newer look; empty: there is no trouble.
    """
    top = [_summary(look, server), *([Text(shown(trouble), style="red")] if trouble else []), Text()]
    jobs = choice.ordered(look.jobs)
    chosen = choice.chosen(jobs)
    below = list(_details(look, chosen))
    if height is None:
        return [*top, *_table(jobs, chosen, choice.sort, width), *below]
    below = below[: max(0, (height - len(top)) // 2)]
    rows = max(1, height - len(top) - len(below) - 2)  # without the header and the last line
    place = next((place for place, job in enumerate(jobs) if job.job == chosen), 0)
    first = max(0, min(place - rows // 2, len(jobs) - rows))
    lines = [*top, *_table(jobs[first : first + rows], chosen, choice.sort, width), *below]
    lines = [*lines[: height - 1], *(Text() for _ in range(height - 1 - len(lines))), Text(_BOTTOM, style="dim")]
    for line in lines:
        line.truncate(width or 0, overflow="ellipsis")
    return lines


def _summary(look: Look, server: str) -> Text:
    which = f" {look.version} ({look.journal})" if look.version else ""
    jobs = "1 job" if len(look.jobs) == 1 else f"{len(look.jobs):,} jobs"
    counts = f"{sum(job.open for job in look.jobs):,} open, {sum(job.in_flight for job in look.jobs):,} in flight"
    return Text(shown(f"tracker{which} at {server}: {jobs}, {counts}, {look.at:%H:%M:%S} UTC"), style="bold")


def _table(jobs: Sequence[JobLook], chosen: str | None, sort: Sort, width: int | None) -> list[Text]:
    """Return the header, and a line for each job."""
    if not jobs:
        return [Text("no jobs")]
    names = [shown(job.job) for job in jobs]
    columns = list(_COLUMNS)
    values = {column.title: [column.value(job) for job in jobs] for column in columns}
    widths = {title: max(len(title), *map(len, texts)) for title, texts in values.items()}
    name = max(len("JOB"), *map(cell_len, names))

    def needed(of_name: int) -> int:
        return len(_MARK[0]) + of_name + sum(len(_GAP) + widths[column.title] for column in columns)

    if width is not None:
        while needed(min(name, 2 * _SHORTEST)) > width and (rank := max(column.rank for column in columns)):
            columns = [column for column in columns if column.rank != rank]
        name = max(min(name, _SHORTEST), min(name, width - needed(0)))
    header = Text(_MARK[0] + "JOB".ljust(name), style="bold")
    for column in columns:
        header.append(_GAP)
        title = column.title.rjust(widths[column.title])
        header.append(title, style="underline" if column.sort is sort else "")
    lines = [header]
    for place, (job, text) in enumerate(zip(jobs, names, strict=True)):
        short = text if cell_len(text) <= name else f"{set_cell_size(text, name - 1)}…"
        is_chosen = job.job == chosen
        line = Text(_MARK[is_chosen] + set_cell_size(short, name), style="reverse" if is_chosen else "")
        for column in columns:
            value = values[column.title][place].rjust(widths[column.title])
            line.append(_GAP).append(value, style=column.style(job))
        lines.append(line)
    return lines


def _details(look: Look, chosen: str | None) -> Iterator[Text]:
    """Yield the lines about the chosen job."""
    job = next((each for each in look.jobs if each.job == chosen), None)
    if job is None:
        return
    yield Text()
    waiting = look.waiting
    heading = f"{shown(job.job)}, deployment {shown(job.deployment)}"
    if waiting is None or waiting.job != job.job:  # it was chosen a moment ago
        yield Text(f"{heading}: …", style="bold")
        return
    yield Text(f"{heading}: {_heading(job, waiting)}", style="bold")
    width = max((len(f"{each.substreams:,}") for each in waiting.waits), default=0)
    for each in waiting.waits[:_MOST_WAITS]:
        yield Text(f"  {each.substreams:>{width},}  {_described(each)}")
    if more := len(waiting.waits) - _MOST_WAITS:
        yield from [Text(f"  … and for {more:,} more")] if more > 0 else []
    if waiting.oldest is not None:
        oldest = waiting.oldest
        named = substream(oldest.scope, oldest.name)
        yield Text(f"  oldest: {shown(named)}, known since {_age(oldest.created)}, {oldest.in_flight:,} in flight")
    if job.silent_fronts:
        named = ", ".join(f"{shown(each.front)} ({_promised(each)})" for each in job.silent_fronts[:_MOST_FRONTS])
        more = len(job.silent_fronts) - _MOST_FRONTS
        yield Text(f"  silent: {named}{f' and {more:,} more' if more > 0 else ''}", style="yellow" if job.open else "")
    if job.drain.state is not DrainState.NOT_DRAINING:
        yield Text(f"  drain: {_drain(job.drain)}", style=_UNDER_WAY.get(job.drain.state, ""))


def _heading(job: JobLook, waiting: Waiting) -> str:
    if not waiting.counted:
        return "nothing is open"
    if waiting.counted < job.open:
        return f"the oldest {waiting.counted:,} of {job.open:,} open substreams wait for"
    return f"{waiting.counted:,} open {'substream waits' if waiting.counted == 1 else 'substreams wait'} for"


def _described(wait: Wait) -> str:
    name = shown(wait.name)
    match wait.kind:
        case Kind.FRONT:
            return f"front {name}"
        case Kind.ELEMENTS:
            return f"elements on {name}"
        case Kind.COMMIT:
            return f"a commit of {name}"
        case Kind.ORDER:
            return "substreams of earlier end times"
        case Kind.OTHER:
            return "a commit, or nothing any more; `tracker explain` shows more"


def _drain(drain: DrainStatus) -> str:
    waits = [f"{drain.open_substreams:,} open", f"{drain.in_flight:,} in flight"]
    missing = {"unfinished": drain.unfinished_fronts, "not committed": drain.uncommitted_producers}
    if drain.mode is DrainMode.HAND_OVER:
        missing = {"in flight on": drain.unbalanced_segments, "open runs": drain.open_producers}
    for what, names in missing.items():
        if names:
            more = len(names) - _MOST_FRONTS
            named = ", ".join(map(shown, names[:_MOST_FRONTS]))
            waits.append(f"{what}: {named}{f' and {more:,} more' if more > 0 else ''}")
    return f"{drain.state} {shown(drain.drain_id)}: {', '.join(waits)}"


def _promised(front: SilentFront) -> str:
    return "never promised" if front.last_promise is None else f"last promise {_age(front.last_promise)}"


def _age(moment: datetime) -> str:
    return ago(moment) or "-"


def _rate(rate: float | None) -> str:
    """Format a rate.

    >>> _rate(None), _rate(0.0), _rate(0.25), _rate(12345.6)
    ('-', '0', '0.2', '12,346')
    """
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"
