"""The table: rows as data, as text, and as the tables of docs/design/exactness.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.exactness.judge import Verdict

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "exactness.md"
DATA = ROOT / "docs" / "design" / "exactness.json"


@dataclass(frozen=True)
class Line:
    """A line of the table: what an engine has made of a query on a workload.

    Attributes:
        workload, engine, query: names.
        configured: with what.
        windows, right, wrong, never, dropped, doubled, lost: see `judge.Verdict`; results of no window count as wrong.
        aside: late rows that the engine has kept and can hand out; None: it keeps none.
        median, longest: delays in minutes, of the windows that are right; None: none is.
    """

    workload: str
    engine: str
    query: str
    configured: str
    windows: int
    right: int
    wrong: int
    never: int
    dropped: int
    doubled: int
    lost: int
    aside: int | None
    median: float | None
    longest: float | None

    @property
    def key(self) -> tuple[str, str, str]:
        """Its names."""
        return self.workload, self.engine, self.query


@dataclass(frozen=True)
class Windows:
    """Outcome of the windows of a fault on an engine.

    Attributes:
        row: the name of the engine in the table of all faults.
        windows, right, lost, marked: see `judge.Verdict`.
        longest: delay in minutes, of the windows that are right; None: none is.
        marked_after: minutes after their end, of the windows that are marked; None: none is.
    """

    row: str
    windows: int
    right: int
    lost: int = 0
    longest: float | None = None
    marked: int = 0
    marked_after: float | None = None

    @property
    def cell(self) -> str:
        """In few words."""
        some = f"{self.right}/{self.windows}"
        parts = [f"**{some}**" if self.right == self.windows else some]
        parts += [] if self.longest is None else [f"{self.longest:.1f}"]
        parts += [f"−{self.lost:,}"] if self.lost else []
        parts += [f"({self.marked} marked, {self.marked_after:.1f})"] if self.marked else []
        return " ".join(parts)


@dataclass(frozen=True)
class Fault:
    """Outcome of a fault on an engine.

    Attributes:
        fault, engine: names.
        right: whether the results are.
        found: what came of it.
        windows: the same as figures; None: it has a table of its own.
    """

    fault: str
    engine: str
    right: bool
    found: str
    windows: Windows | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Its names."""
        return self.fault, self.engine


def line(workload: str, engine: str, configured: str, query: str, verdict: Verdict, aside: int | None) -> Line:
    """Return a line of a verdict."""
    return Line(
        workload=workload,
        engine=engine,
        query=query,
        configured=configured,
        windows=verdict.windows,
        right=verdict.right,
        wrong=verdict.wrong + verdict.extra,
        never=verdict.never,
        dropped=verdict.dropped,
        doubled=verdict.doubled,
        lost=verdict.lost,
        aside=aside,
        median=_rounded(verdict.median_delay),
        longest=_rounded(verdict.longest_delay),
    )


class Data:
    """Measurements, in a file of JSON."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one."""
        self._path = path
        known = json.loads(path.read_text()) if path.exists() else {}
        self.workloads: dict[str, dict[str, Any]] = known.get("workloads", {})
        self._lines = {each.key: each for each in (Line(**each) for each in known.get("lines", []))}
        self._faults = {each.key: each for each in map(_fault, known.get("faults", []))}

    @property
    def lines(self) -> list[Line]:
        """The lines of the table."""
        return list(self._lines.values())

    @property
    def faults(self) -> list[Fault]:
        """Outcomes of faults."""
        return list(self._faults.values())

    def take(self, lines: Iterable[Line] = (), faults: Iterable[Fault] = ()) -> None:
        """Take in what was measured, in the place of what was measured before of the same names; write it down."""
        self._lines.update({each.key: each for each in lines})
        self._faults.update({each.key: each for each in faults})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(
            json.dumps(
                {
                    "workloads": self.workloads,
                    "lines": [asdict(each) for each in self.lines],
                    "faults": [asdict(each) for each in self.faults],
                },
                indent=1,
                ensure_ascii=False,
            )
            + "\n"
        )


def _fault(known: dict[str, Any]) -> Fault:
    windows = known.get("windows")
    return Fault(**{**known, "windows": windows and Windows(**windows)})


Column = tuple[str, Callable[[Line], str]]

_COLUMNS: Sequence[Column] = (
    ("right", lambda row: _right(row)),
    ("wrong", lambda row: f"{row.wrong:,}"),
    ("never", lambda row: f"{row.never:,}"),
    ("of these dropped", lambda row: f"{row.dropped:,}"),
    ("doubled", lambda row: f"{row.doubled:,}"),
    ("rows lost", lambda row: f"{row.lost:,}"),
    ("set aside", lambda row: "–" if row.aside is None else f"{row.aside:,}"),
    ("median, min", lambda row: _minutes(row.median)),
    ("longest, min", lambda row: _minutes(row.longest)),
)


def text(lines: Sequence[Line]) -> str:
    """Return lines as a table for a terminal."""
    rows = [["", "", *(heading for heading, _ in _COLUMNS)]]
    rows += [[each.query, each.engine, *(cell(each) for _, cell in _COLUMNS)] for each in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    made = ["  ".join([*map(str.ljust, row[:2], widths[:2]), *map(str.rjust, row[2:], widths[2:])]) for row in rows]
    return "\n".join([made[0], "-" * len(made[0]), *made[1:]])


def tables(data: Data) -> dict[str, str]:
    """Return the tables of the page, by name: of each workload and query, of the faults, and of what was configured."""
    made = {}
    for workload in dict.fromkeys(each.workload for each in data.lines):
        queries = [*dict.fromkeys(each.query for each in data.lines if each.workload == workload)]
        right = {(each.engine, each.query): each for each in data.lines if each.workload == workload}
        made[f"{workload}, right"] = _table(
            ["right", *queries],
            [
                [engine, *(_right(right.get((engine, query))) for query in queries)]
                for engine in dict.fromkeys(engine for engine, _ in right)
            ],
        )
        for query in queries:
            rows = [each for each in data.lines if (each.workload, each.query) == (workload, query)]
            made[f"{workload}, {query}"] = _table(
                ["", *(heading for heading, _ in _COLUMNS)],
                [[_engine(each), *(cell(each) for _, cell in _COLUMNS)] for each in rows],
            )
    engines = {each.engine: each.configured for each in data.lines}
    made["engines"] = _table(["", "configured with"], [[name, how] for name, how in engines.items()], left=2)
    measured = {(each.windows.row, each.fault): each.windows for each in data.faults if each.windows}
    faults = dict.fromkeys(fault for _, fault in measured)
    made["faults"] = _table(
        ["", *faults],
        [
            [row, *(measured[row, fault].cell if (row, fault) in measured else "–" for fault in faults)]
            for row in _by_engine(row for row, _ in measured)
        ],
        left=1 + len(faults),
    )
    for fault in dict.fromkeys(each.fault for each in data.faults if not each.windows):
        rows_of = [
            [each.engine, "yes" if each.right else "**no**", each.found] for each in data.faults if each.fault == fault
        ]
        made[f"fault: {fault}"] = _table(["", "right", "what came of it"], rows_of, left=3)
    return made


def _by_engine(rows: Iterable[str]) -> list[str]:
    """Return each row once, those of an engine together."""
    each = [*dict.fromkeys(rows)]
    engines = [*dict.fromkeys(row.partition(",")[0] for row in each)]
    return sorted(each, key=lambda row: engines.index(row.partition(",")[0]))


_BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str, data: Data) -> str:
    """Return a page with the tables in their places.

    Raises:
        KeyError: the page has a place for a table that there is not.
    """
    made = tables(data)
    return _BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", page)


def named_tables(page: str) -> list[str]:
    """Return the names of the tables that a page has places for."""
    return [match[2] for match in _BLOCK.finditer(page)]


def _right(each: Line | None) -> str:
    return "–" if each is None else f"{each.right:,}/{each.windows:,}"


def _engine(each: Line) -> str:
    return f"**{each.engine}**" if each.windows == each.right and not each.wrong else each.engine


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    marks = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [headings, marks, *rows])


def _minutes(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
