"""A look at a tracker, drawn as lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tracker.cli.live.choosing import Choice
from tracker.cli.live.observing import JobLook, Kind, Look, SilentFront, Wait, Waiting
from tracker.cli.live.sorting import KEYS, Sort
from tracker.client import DrainMode, DrainState, DrainStatus
from tracker.client.texts import ago, shown

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
        title: its header.
        value: what stands in it.
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
        lambda job: _silent(job),
        2,
        Sort.SILENT,
        lambda job: "yellow" if job.open and job.silent_fronts else "",
    ),
    _Column("LAST REPORT", lambda job: ago(job.last_report) or "-", 4),
    _Column("DRAIN", lambda job: _drain_state(job), 3, style=lambda job: _UNDER_WAY.get(job.drain.state, "")),
)


def draw(
    look: Look, choice: Choice, server: str, width: int | None = None, height: int | None = None, trouble: str = ""
) -> list[Text]:
    """Return the lines of a look.

    Args:
        look: what was found.
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
        named = f"{oldest.scope}/{oldest.name}" if oldest.scope else oldest.name
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


def _drain_state(job: JobLook) -> str:
    return "-" if job.drain.state is DrainState.NOT_DRAINING else str(job.drain.state)


def _silent(job: JobLook) -> str:
    return f"{len(job.silent_fronts):,}/{job.running_fronts:,}" if job.running_fronts else "-"


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
