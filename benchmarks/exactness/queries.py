"""The four queries, and what a batch makes of them: plain Python over all rows, by none of the engines.

Each result has a key (tenant, entity, begin and end of its window) and a value (bids, the sum of their prices, the
highest). Windows are sixty times as long as Nexmark's, since events come so much more slowly here.

| query | results | like Nexmark's |
|---|---|---|
| `tumbling` | each tenant, ten minutes | 7 |
| `sliding` | each tenant and auction, ten minutes, every five | 5 |
| `session` | each tenant and bidder, while bids are less than ten minutes apart | 11 |
| `join` | each auction with the bids of the ten minutes in which it began | 8 |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.exactness.workload import MINUTE, Row

LENGTH = 10 * MINUTE
SLIDE = 5 * MINUTE
GAP = 10 * MINUTE


@dataclass(frozen=True, order=True)
class Key:
    """Names a result.

    Attributes:
        tenant: of the result.
        entity: the auction or the bidder; 0: all of the tenant.
        begin, end: of the window, or of the session with its gap; milliseconds since 1970.
    """

    tenant: str
    entity: int
    begin: int
    end: int


Value = tuple[int, int, int]  #: bids, the sum of their prices, the highest


@dataclass(frozen=True)
class Result:
    """A result of the truth.

    Attributes:
        value: what has to come out.
        complete: when no more could come: its last row had arrived, and its time was over.
    """

    value: Value
    complete: int


def tumbling(rows: Iterable[Row]) -> dict[Key, Result]:
    """Count each tenant's bids in windows."""
    return _grouped((Key(row.tenant, 0, *_window(row)), row) for row in rows if row.kind == "bid")


def sliding(rows: Iterable[Row]) -> dict[Key, Result]:
    """Count each auction's bids in windows that overlap."""
    return _grouped(_overlapping(rows))


def session(rows: Iterable[Row]) -> dict[Key, Result]:
    """Cut each bidder's sessions."""
    bids: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row.kind == "bid":
            bids[row.tenant, row.person].append(row)
    return _grouped(
        (Key(*who, of[0].at, of[-1].at + GAP), row)
        for who, own in bids.items()
        for of in _sessions(sorted(own, key=lambda row: row.at))
        for row in of
    )


def join(rows: Iterable[Row]) -> dict[Key, Result]:
    """Join each auction with the bids of the window in which it began; none without bids."""
    rows = list(rows)
    began: dict[Key, Row] = {Key(row.tenant, row.auction, *_window(row)): row for row in rows if row.kind == "auction"}
    bids = ((Key(row.tenant, row.auction, *_window(row)), row) for row in rows if row.kind == "bid")
    return {
        key: Result(result.value, max(result.complete, began[key].arrives))
        for key, result in _grouped((key, row) for key, row in bids if key in began).items()
    }


#: The queries by name.
QUERIES: Mapping[str, Callable[[Iterable[Row]], dict[Key, Result]]] = {
    "tumbling": tumbling,
    "sliding": sliding,
    "session": session,
    "join": join,
}


def _window(row: Row) -> tuple[int, int]:
    begin = row.at // LENGTH * LENGTH
    return begin, begin + LENGTH


def _overlapping(rows: Iterable[Row]) -> Iterator[tuple[Key, Row]]:
    for row in rows:
        begin = row.at // SLIDE * SLIDE
        while row.kind == "bid" and begin > row.at - LENGTH:
            yield Key(row.tenant, row.auction, begin, begin + LENGTH), row
            begin -= SLIDE


def _sessions(bids: Iterable[Row]) -> Iterator[list[Row]]:
    own: list[Row] = []
    for row in bids:
        if own and row.at - own[-1].at >= GAP:
            yield own
            own = []
        own.append(row)
    yield own


def _grouped(rows: Iterable[tuple[Key, Row]]) -> dict[Key, Result]:
    groups: dict[Key, list[Row]] = defaultdict(list)
    for key, row in rows:
        groups[key].append(row)
    return {
        key: Result(
            (len(own), sum(row.price for row in own), max(row.price for row in own)),
            max(key.end, *(row.arrives for row in own)),
        )
        for key, own in groups.items()
    }
