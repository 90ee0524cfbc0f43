"""`tracker top` on a terminal: looks in the background, draws them in one place, and acts on keys."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.live import Live
from rich.text import Text

from tracker.cli.live import KEYS, Sort
from tracker.cli.live.looks import Choice, JobLook, Kind, Look, Observer, SilentFront, Wait, Waiting
from tracker.cli.output import console
from tracker.cli.views import substream
from tracker.client import DrainMode, DrainState, DrainStatus, TrackerError, TrackerUnavailable
from tracker.client.texts import ago, shown

_SHARE: Final = 10  # a tracker is looked at for one part in so many of the time at most
_SOON_S: Final = 0.3  # seconds until the next look if another job is chosen
_REDRAW_S: Final = 0.5  # seconds after which the ages are drawn again, and a new size of the terminal is noticed
_TERMINATED: Final = 128 + signal.SIGTERM


def pause_after(took: float, interval: float, soon: bool = False) -> float:
    """Return the seconds to wait before the next look, so that a tracker with much to show is not asked all the time.

    Args:
        took: the seconds that the last look took.
        interval: the seconds between two looks that the user wants.

    >>> pause_after(0.01, 2), pause_after(1, 2), pause_after(1, 2, soon=True)
    (2, 9, 1)
    """
    return max(_SOON_S, took) if soon else max(interval, took * (_SHARE - 1))


class _Looking(threading.Thread):
    """Thread of repeated looks, beside the loop that draws and reads keys.

    Attributes:
        look: what was found last.
        trouble: why there is nothing newer; empty: there is no trouble.
        failed: what has ended the looks; None: nothing.
        news: a descriptor from which something can be read after each look.
    """

    def __init__(self, observer: Observer, choice: Choice, look: Look, interval: float) -> None:
        super().__init__(daemon=True)  # a call that gets no answer does not keep the process
        self._observer = observer
        self._choice = choice
        self._interval = interval
        self._sooner = threading.Event()
        self.look = look
        self.trouble = ""
        self.failed: Exception | None = None
        self.news, self._found = os.pipe()

    def look_soon(self) -> None:
        """Ask for the next look at once, or nearly so."""
        self._sooner.set()

    def run(self) -> None:
        """Look until the process ends."""
        away = ""
        while self.failed is None:
            if self._sooner.wait(pause_after(self.look.took, self._interval)):
                self._sooner.clear()
                time.sleep(pause_after(self.look.took, self._interval, soon=True))
            try:
                self.look = self._observer.look(self._choice.chosen)
                self.trouble = away = ""
            except (TrackerError, TrackerUnavailable) as refused:
                away = away or f"{datetime.now(timezone.utc):%H:%M:%S} UTC"
                self.trouble = f"no answer since {away}: {refused}"
            except Exception as failed:
                self.failed = failed
            os.write(self._found, b".")


def show(observer: Observer, choice: Choice, server: str, first: Look, interval: float) -> None:
    """Show looks until the user presses q.

    Args:
        choice: the order of the jobs and the chosen one; keys change it.
        server: the server's address, as the user gave it.
    """
    screen = console()
    looking = _Looking(observer, choice, first, interval)
    with _terminable(), raw_keys() as keys, Live(console=screen, screen=True, auto_refresh=False) as live:
        looking.start()
        while True:
            width, height = screen.size
            lines = draw(looking.look, choice, server, width, height, looking.trouble)
            live.update(Group(*lines), refresh=True)
            ready, _, _ = select.select([keys, looking.news], [], [], _REDRAW_S)
            if looking.news in ready:
                os.read(looking.news, 1)
            if looking.failed is not None:
                raise looking.failed
            if keys in ready:
                try:
                    pressed = read_keys(keys)
                except EOFError:
                    return
                for key in pressed:
                    if key == "q":
                        return
                    if choice.press(key, looking.look.jobs):
                        looking.look_soon()


@contextmanager
def _terminable() -> Iterator[None]:
    """Leave in the usual way on SIGTERM, so that the terminal is as it was before."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


_LONGEST: Final = 64  # bytes that are read together: one key, or some that are pressed fast
_NAMES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}


@contextmanager
def raw_keys() -> Iterator[int]:
    """Give stdin's descriptor, from which keys can be read at once as long as the context is open.

    Ctrl-C still interrupts. Ctrl-Z does nothing, since it would leave the terminal as it is here.
    """
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin, termios.TCSADRAIN)
    changed = termios.tcgetattr(stdin)
    changed[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(stdin, termios.TCSADRAIN, changed)
    try:
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def read_keys(descriptor: int) -> list[str]:
    """Read what was pressed: letters, ``up``, ``down``, ``home``, ``end``; other keys are left out.

    Raises:
        EOFError: the terminal is gone.
    """
    try:
        data = os.read(descriptor, _LONGEST)
    except OSError:
        data = b""
    if not data:
        raise EOFError
    return keys_in(data)


def keys_in(data: bytes) -> list[str]:
    r"""Return the keys for which a terminal sends some bytes.

    >>> keys_in(b"o\x1b[Bq\x1b[15~\x1b[A")
    ['o', 'down', 'q', 'up']
    """
    keys = []
    while data:
        length = _length(data)
        key, data = data[:length], data[length:]
        if key in _NAMES:
            keys.append(_NAMES[key])
        elif length == 1 and key.isalpha():
            keys.append(key.decode())
    return keys


def _length(data: bytes) -> int:
    """Return how many bytes the first key has: sequences of escape end with a letter or a tilde."""
    if data[:1] != b"\x1b" or data[1:2] not in (b"[", b"O"):
        return 1
    for place, byte in enumerate(data[2:], 2):
        if 0x40 <= byte <= 0x7E:
            return place + 1
    return len(data)
