"""The result of a dry run: figures, an advice, a table, and one page of HTML that needs no network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from html import escape
from math import log10
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracker.contract.values import I8
from tracker.replay.history import NEVER, Columns, History, Windows
from tracker.replay.promises import Promise, in_words, microseconds, parse, rank, share, usual

_MOST_SCOPES: Final = 25  #: in the page's table
TITLES: Final = ("PROMISE", "WINDOWS", "WRONG", "NEVER", "LATE ROWS", "P50", "P95", "LONGEST", "P95 AFTER END")
_WIDTH, _LEFT, _ROW = 900, 170, 26


@dataclass(frozen=True)
class Delays:
    """Delays in microseconds: the median, the 95th percentile and the longest. Negative: before it was due."""

    p50: int
    p95: int
    longest: int


@dataclass(frozen=True)
class Figures:
    """Figures of a promise, for all windows or for those of a scope.

    Attributes:
        windows: how many there are.
        wrong: how many of them were released without all of their rows.
        never: how many were not released within the history.
        rows: how many all windows have; a row counts in each of its windows.
        late: how many of the rows came after their window's release.
        after_last: delays of those that were released, from the arrival of the window's last row; None: none was.
        after_end: the same from the end of the window.
    """

    windows: int
    wrong: int
    never: int
    rows: int
    late: int
    after_last: Delays | None
    after_end: Delays | None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a promise.

    Attributes:
        name: as the promise was given: ``watermark=5min``.
        all: for all windows that count.
        scopes: for each scope that has such windows, in the order of their names; empty if rows have no scope.
        front: the argument ``front=`` of `tracking.source`, as Python; empty: it takes no such promise.
        needs: a clause: what has to be true of the source.
        guess: whether it rests on arrivals that may be others tomorrow.
        note: a remark for readers.
        timeline: how many wrong windows ended in each part of the history's time.
    """

    name: str
    all: Figures
    scopes: Mapping[str, Figures]
    front: str
    needs: str
    guess: bool
    note: str
    timeline: Sequence[int]

    def kept(self, wrong: float) -> bool:
        """Return whether so small a share of windows was wrong, and nearly all were released."""
        allowed = self.all.wrong <= wrong * self.all.windows and self.all.never <= _MOST_NEVER * self.all.windows
        return allowed and self.all.after_last is not None


def judge(history: History, name: str, promise: Promise) -> Outcome:
    """Return the outcome of a promise over a history."""
    release = promise.release(history)
    judged = np.ones(len(history.end), np.bool_) if release.judged is None else release.judged
    late = np.bincount(history.window[history.batch > release.at[history.window]], minlength=len(history.end))
    scopes = {}
    if history.scoped:
        found = _figures(history, release.at, late, judged, history.scope)
        scopes = {history.scopes[place]: found[place] for place in sorted(found, key=history.scopes.__getitem__)}
    whole = _figures(history, release.at, late, judged, np.zeros_like(history.scope))
    first, last = int(history.end.min()), int(history.end.max())
    part = (history.end[judged & (late > 0)] - first) * _BINS // (last - first + 1)
    return Outcome(
        name=name,
        all=whole.get(0, Figures(0, 0, 0, 0, 0, None, None)),
        scopes=scopes,
        front=release.front,
        needs=promise.needs,
        guess=promise.guess,
        note=release.note,
        timeline=tuple(np.bincount(part, minlength=_BINS).tolist()),
    )


def _figures(history: History, at: I8, late: I8, judged: NDArray[np.bool_], scope: I8) -> dict[int, Figures]:
    """Return the figures of each scope that has windows that count."""
    number = int(scope.max()) + 1
    released = np.flatnonzero(judged & (at < NEVER))
    last = _delays_of(at[released] - history.last_arrived[released], scope[released])
    end = _delays_of(at[released] - history.end[released], scope[released])

    def added(values: NDArray[Any]) -> list[int]:
        return [round(each) for each in np.bincount(scope, np.where(judged, values, 0), number).tolist()]

    windows, wrong, never = added(judged), added(late > 0), added(at == NEVER)
    rows, late_rows = added(history.rows), added(late)
    return {
        each: Figures(
            windows[each], wrong[each], never[each], rows[each], late_rows[each], last.get(each), end.get(each)
        )
        for each in range(number)
        if windows[each]
    }


def _delays_of(values: I8, scope: I8) -> dict[int, Delays]:
    order = np.lexsort((values, scope))
    scopes, starts, sizes = np.unique(scope[order], return_index=True, return_counts=True)
    values = values[order]
    return {
        int(place): Delays(*(int(values[start + rank(share, int(size))]) for share in (0.5, 0.95, 1.0)))
        for place, start, size in zip(scopes, starts, sizes, strict=True)
    }


def best(outcomes: Iterable[Outcome], wrong: float) -> list[Outcome]:
    """Return the promises to take: the soonest of those that kept, and if it needs knowledge, the soonest guess too.

    The soonest has the least 95th percentile of delays from a window's last row. Promises that `tracking.source` does
    not take are left out.

    Args:
        wrong: the share of windows that may be wrong.
    """
    kept = [each for each in outcomes if each.front and each.kept(wrong)]
    kept.sort(key=lambda each: each.all.after_last.p95 if each.all.after_last else NEVER)
    return kept[:1] + [each for each in kept if each.guess][:1] if kept and not kept[0].guess else kept[:1]


@dataclass(frozen=True)
class Options:
    """Settings of a dry run: lengths as texts such as ``1h``.

    Attributes:
        window: the length of windows.
        slide: from the start of a window to that of the next; empty: the length.
        promises: that are tried, such as ``watermark=5min``; empty: the usual ones.
        trigger: the time from one trigger of the query to the next.
        wrong: the share of windows that may be wrong under a promise to take, such as ``0.1%``.
        ahead: how far beyond the clock a row's time may be to move a frontier; ``none``: as far as it is.
    """

    window: str = "1h"
    slide: str = ""
    promises: Sequence[str] = ()
    trigger: str = "1min"
    wrong: str = "0%"
    ahead: str = "5min"


@dataclass(frozen=True)
class Advice:
    """A promise to take, and the line of Python that makes it.

    Attributes:
        code: the call of `tracking.source`.
        needs: a clause: what has to be true of the source.
    """

    name: str
    code: str
    needs: str

    def __str__(self) -> str:
        return f"{self.name}, if {self.needs}:\n    {self.code}"


@dataclass(frozen=True)
class Replay:
    """The result of a dry run.

    Attributes:
        nulls: rows that were left out, since a time or the scope is null.
        ahead: rows whose time is after their arrival: one of them moves a watermark past the windows of all others.
        furthest_ahead: by how much the worst of them, in microseconds.
        scopes: the number of scopes; 0: rows have none.
        span: the first and the last arrival, in microseconds since 1970.
        ends: the first and the last end of a window, likewise.
        options: as they were given.
        outcomes: of the promises, in their order.
        advice: the promises to take, the soonest first; empty: none was kept.
    """

    rows: int
    nulls: int
    ahead: int
    furthest_ahead: int
    windows: int
    scopes: int
    span: tuple[int, int]
    ends: tuple[int, int]
    options: Options
    outcomes: Sequence[Outcome]
    advice: Sequence[Advice]

    @classmethod
    def of(cls, columns: Columns, options: Options) -> Replay:
        """Replay a history.

        Raises:
            ReplayError: an option that does not hold, or a history without rows.
        """
        cut = Windows(microseconds(options.window), microseconds(options.slide) if options.slide else 0)
        promises = parse(options.promises or usual(columns.scope is not None))
        wrong = share(options.wrong)
        trigger = microseconds(options.trigger)
        history = History(columns, cut, trigger, None if options.ahead == "none" else microseconds(options.ahead))
        ahead = columns.event - columns.arrived
        outcomes = [judge(history, name, promise) for name, promise in promises.items()]
        return cls(
            rows=len(ahead),
            nulls=columns.nulls,
            ahead=int((ahead > 0).sum()),
            furthest_ahead=max(0, int(ahead.max())),
            windows=len(history.end),
            scopes=len(history.scopes) if history.scoped else 0,
            span=(int(columns.arrived.min()), int(columns.arrived.max())),
            ends=(int(history.end.min()), int(history.end.max())),
            options=options,
            outcomes=outcomes,
            advice=[
                Advice(each.name, _source(columns, cut, each.front), f"{each.needs} ({_tried(each)})")
                for each in best(outcomes, wrong)
            ],
        )

    def table(self) -> str:
        """Return the figures as text, a line for each promise."""
        rows = [TITLES, *self.lines()]
        texts = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in texts)
        return "\n".join("  ".join(line) for line in lines)

    def lines(self, by_scope: bool = False) -> Iterator[list[Any]]:
        """Yield the cells of the table's lines; `TITLES` are above them.

        Args:
            by_scope: also a line for each scope, behind the promise's.
        """
        for outcome in self.outcomes:
            yield [outcome.name, *_cells(outcome.all)]
            for scope, figures in outcome.scopes.items() if by_scope else ():
                yield [f"  {scope}", *_cells(figures)]

    @property
    def remarks(self) -> list[str]:
        """Sentences about the history, and about promises that need one."""
        of = f" of {self.scopes:,} scopes" if self.scopes else ""
        first, last = (_moment(each) for each in self.span)
        found = [
            f"{self.rows:,} rows in {self.windows:,} windows{of} of {self.options.window}, which arrived from {first} "
            f"to {last}, are read once in {self.options.trigger}.",
            "A window is wrong if it was released without all of its rows; delays are from its last row's arrival. "
            "The watermark is Spark's own, for comparison.",
        ]
        if self.nulls:
            found.append(f"{self.nulls:,} rows were left out: a time or the scope is null.")
        if self.ahead:
            found.append(
                f"{self.ahead:,} rows are ahead of their arrival, by up to {short(self.furthest_ahead)}: a row that is "
                "far ahead moves a watermark past windows that are open"
                + (". It moves frontiers, too." if self.options.ahead == "none" else ", and no frontier.")
            )
        return found + [f"{each.name}: {each.note}." for each in self.outcomes if each.note]

    @property
    def verdict(self) -> str:
        """The advice as text."""
        if not self.advice:
            return (
                "No promise was kept: under each, windows were wrong, or more than 5 % of them were open at the end. "
                "Give longer delays or a longer history, or allow some windows to be wrong, and revise them."
            )
        return "Take " + "\nor ".join(map(str, self.advice))

    def document(self) -> dict[str, Any]:
        """Return everything as a document of JSON; times and delays are in microseconds."""
        return asdict(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one file of HTML, which needs no network."""
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            '<meta name="viewport" content="width=device-width"><title>Which promise would have been right</title>'
            f"</head><body><main>{self._repr_html_()}</main></body></html>\n"
        )
        Path(path).write_text(page, encoding="utf-8")

    def _repr_html_(self) -> str:
        code = "".join(
            f"<p>Take <b>{escape(each.name)}</b>, if {escape(each.needs)}:</p><pre>{escape(each.code)}</pre>"
            for each in self.advice
        )
        remarks = "".join(f"<li>{escape(each)}</li>" for each in self.remarks)
        parts = [
            f"<style>{_STYLE}</style><h1>Which promise would have been right</h1>",
            code or f"<p>{escape(self.verdict)}</p>",
            "<h2>What became of the windows</h2>",
            _html_table(TITLES, self.lines()),
            "<h2>How soon windows are released after their last row</h2>",
            _delays(self.outcomes),
            "<h2>When windows were wrong</h2>",
            _timelines(self.outcomes, self.ends),
            *self._scopes(),
            f"<h2>Remarks</h2><ul>{remarks}</ul>",
        ]
        return f'<div class="tracker-replay">{"".join(parts)}</div>'

    def _scopes(self) -> Iterator[str]:
        """Yield the table by scope, those with the most wrong windows first."""
        wrong: dict[str, int] = {}
        for outcome in self.outcomes:
            for scope, figures in outcome.scopes.items():
                wrong[scope] = wrong.get(scope, 0) + figures.wrong
        chosen = sorted(wrong, key=lambda scope: (-wrong[scope], scope))[:_MOST_SCOPES]
        if chosen:
            more = (
                f": the {len(chosen)} of {len(wrong):,} that are wrong most often" if len(wrong) > len(chosen) else ""
            )
            yield f"<h2>Wrong windows by scope{more}</h2>"
            rows = ([scope, *(_wrong_of(each, scope) for each in self.outcomes)] for scope in chosen)
            yield _html_table(["scope", *(each.name.replace("=", " ") for each in self.outcomes)], rows)


def short(micros: int | None) -> str:
    """Return a delay for people, in the largest unit that leaves a number above one.

    >>> short(90_000_000), short(-7_200_000_000), short(0), short(None)
    ('1.5 min', '-2.0 h', '0 s', '-')
    """
    if not micros:
        return "-" if micros is None else "0 s"
    for unit in ("d", "h", "min", "s"):
        if abs(micros) >= microseconds(f"1{unit}") * (2 if unit == "d" else 1):
            return f"{micros / microseconds(f'1{unit}'):,.1f} {unit}"
    return f"{micros / 1000:,.1f} ms"


def _cells(figures: Figures) -> list[Any]:
    last, end = figures.after_last, figures.after_end
    delays = [None] * 3 if last is None else [last.p50, last.p95, last.longest]
    counts = [figures.windows, figures.wrong, figures.never, figures.late]
    return [*counts, *map(short, [*delays, end.p95 if end else None])]


def _wrong_of(outcome: Outcome, scope: str) -> str:
    figures = outcome.scopes.get(scope)
    return f"{figures.wrong:,}" if figures else "-"


def _tried(outcome: Outcome) -> str:
    return f"here {outcome.all.wrong:,} of {outcome.all.windows:,} windows were wrong"


def _source(columns: Columns, cut: Windows, front: str) -> str:
    """Return the call that declares rows with a front."""
    length = json.dumps(in_words(cut.length))
    if 0 < cut.slide < cut.length:
        length = f"sliding({length}, {json.dumps(in_words(cut.slide))})"
    scope = f"scope={_literal(columns.scope_name)}, " if columns.scope_name else ""
    window = f"({_literal(columns.time_name)}, {length})"
    return f'tracking.source(raw, "events", {scope}window={window}, front={front})'


def _literal(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _moment(micros: int) -> str:
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=micros)
    except OverflowError:  # such as a sentinel of the year 99999
        return f"{micros} µs"
    return f"{moment:%Y-%m-%d %H:%M}"


def _html_table(titles: Sequence[str], rows: Iterator[list[Any]]) -> str:
    head = "".join(f"<th scope=col>{escape(each.lower())}</th>" for each in titles)
    body = "".join(
        f"<tr><th scope=row>{escape(str(row[0]))}</th>"
        + "".join(f"<td>{cell:,}</td>" if isinstance(cell, int) else f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide" tabindex=0><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _place(micros: int) -> float:
    """Return where a delay is on the axis: seconds on a logarithmic scale that has a zero."""
    return log10(1 + max(0, micros) / 1_000_000)


def _delays(outcomes: Sequence[Outcome]) -> str:
    """Draw the delays of each promise: a dot at the median, a bar to the 95th percentile, a line to the longest."""
    longest = max((each.all.after_last.longest for each in outcomes if each.all.after_last), default=0)
    scale = (_WIDTH - _LEFT - 20) / max(_place(longest), 1.0)
    parts, bottom = [], _ROW * len(outcomes) + 8
    for text in ("0s", "1s", "10s", "1min", "10min", "1h", "6h", "1d", "7d", "30d", "365d"):
        if microseconds(text) <= max(longest, 9_000_000):
            x = _LEFT + scale * _place(microseconds(text))
            parts.append(f'<line class=grid x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
            parts.append(f'<text class=axis x="{x:.1f}" y="{bottom + 16}" text-anchor=middle>{text}</text>')
    for number, outcome in enumerate(outcomes):
        figures, y = outcome.all, _ROW * number + 18
        kind = "bad" if figures.wrong else "good"
        parts.append(f'<text x="0" y="{y + 4}">{escape(outcome.name)}</text>')
        if figures.after_last is None:
            parts.append(f'<text class=axis x="{_LEFT + 6}" y="{y + 4}">no window was released</text>')
            continue
        p50, p95, last = figures.after_last.p50, figures.after_last.p95, figures.after_last.longest
        at = [_LEFT + scale * _place(each) for each in (p50, p95, last)]
        says = f"{outcome.name}: median {short(p50)}, 95 % within {short(p95)}, longest {short(last)}"
        parts.append(
            f"<g class={kind}><title>{escape(says)}; {figures.wrong:,} wrong, {figures.never:,} never</title>"
            f'<line x1="{at[0]:.1f}" x2="{at[2]:.1f}" y1="{y}" y2="{y}" stroke-width="1.5"/>'
            f'<line x1="{at[0]:.1f}" x2="{at[1]:.1f}" y1="{y}" y2="{y}" stroke-width="7"/>'
            f'<circle cx="{at[0]:.1f}" cy="{y}" r="5.5"/></g>'
        )
    return (
        _svg(bottom + 24, "Delays of each promise", parts)
        + "<p class=axis>Dot: the median. Bar: to the 95th percentile. Line: to the longest. "
        "<span class=bad>Red: some windows were wrong</span>; <span class=good>green: none was</span>.</p>"
    )


def _timelines(outcomes: Sequence[Outcome], ends: tuple[int, int]) -> str:
    """Draw when the wrong windows of each promise ended, darker where they were many."""
    most = max((count for each in outcomes for count in each.timeline), default=0) or 1
    parts, bottom = [], _ROW * len(outcomes) + 8
    for number, outcome in enumerate(outcomes):
        y, step = _ROW * number + 8, (_WIDTH - _LEFT - 20) / len(outcome.timeline)
        parts.append(f'<text x="0" y="{y + 14}">{escape(outcome.name)}</text>')
        parts.append(f'<rect class=lane x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - 20}" height="18"/>')
        parts += [
            f'<rect class=wrong x="{_LEFT + place * step:.1f}" y="{y}" width="{step:.1f}" height="18" '
            f'fill-opacity="{0.3 + 0.7 * count / most:.2f}"><title>{count:,} wrong</title></rect>'
            for place, count in enumerate(outcome.timeline)
            if count
        ]
    for micros, x, anchor in ((ends[0], _LEFT, "start"), (ends[1], _WIDTH - 20, "end")):
        parts.append(f'<text class=axis x="{x}" y="{bottom + 16}" text-anchor={anchor}>{_moment(micros)}</text>')
    return _svg(bottom + 24, "Wrong windows over time, by promise", parts)


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height}"'
    return f'<div class="wide" tabindex=0><svg {size} role=img aria-label="{title}">{"".join(parts)}</svg></div>'


_STYLE: Final = """
.tracker-replay{--ink:#1f2328;--soft:#59636e;--line:#d8dee4;--back:#fff;--lane:#f3f4f6;--good:#0b6e4f;--bad:#b3402a;
color:var(--ink);background:var(--back);font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem}
@media(prefers-color-scheme:dark){.tracker-replay{--ink:#e6edf3;--soft:#9aa4af;--line:#30363d;--back:#0d1117;
--lane:#161b22;--good:#4cc38a;--bad:#ff8f73}body:has(>main>.tracker-replay){background:#0d1117}}
.tracker-replay h1{font-size:1.5rem}.tracker-replay h2{font-size:1.1rem;margin:1.6rem 0 .5rem}
.tracker-replay .wide{overflow-x:auto}
.tracker-replay pre{background:var(--lane);padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere}
.tracker-replay table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.tracker-replay th,.tracker-replay td{padding:.2rem .45rem;text-align:right;border-bottom:1px solid var(--line);
white-space:nowrap;color:var(--ink);background:none}
.tracker-replay th[scope=row]{text-align:left;font-weight:500}
.tracker-replay thead th{color:var(--soft);white-space:normal}
.tracker-replay thead th:first-child{text-align:left}
.tracker-replay svg{width:100%;min-width:40rem;font-size:13px;fill:var(--ink)}
.tracker-replay .axis{fill:var(--soft);color:var(--soft);font-size:13px}.tracker-replay .grid{stroke:var(--line)}
.tracker-replay .lane{fill:var(--lane)}.tracker-replay .wrong{fill:var(--bad)}
.tracker-replay .good{stroke:var(--good);fill:var(--good);color:var(--good)}
.tracker-replay .bad{stroke:var(--bad);fill:var(--bad);color:var(--bad)}
"""


_BINS: Final = 80  #: of the timelines
_MOST_NEVER: Final = 0.05  #: of the windows: beyond, the 95th percentile of delays is never
