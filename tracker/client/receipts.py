"""Receipts as plain data: which substream each is about, which segments have any, and what was set aside beside them.

The Spark client writes them; its ledger and that of the command line are made of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

COUNTS: Final = "_counts"  #: the directory beside a table of late rows that has how many were set aside
Receipt: TypeAlias = Mapping[str, Any]  #: by the columns of a receipt; those that an old one lacks are None or absent
_REVISION: Final = re.compile(r"(.+)#r[1-9][0-9]*", re.DOTALL)
#: The columns of receipts that a ledger is made of.
NEEDED: Final = (
    *("job", "deployment", "segment", "scope", "name", "end_time", "revision", "reason", "elements", "expected"),
    *("by_drain", "before", "in_flight", "upstream", "upstream_in_flight", "origins", "given_up"),
    *("rows", "kept", "late", "bad", "query", "seq"),
)


class Key(NamedTuple):
    """A substream of a job; rows that belong to none have neither scope nor name."""

    job: str
    scope: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class Aside:
    """Rows that a query has set aside.

    Attributes:
        key: their substream.
        segment: that the query reads.
        kind: ``late``, ``bad`` (they belong to no substream) or ``doubled`` (a channel would take them for copies).
        rows: how many.
    """

    key: Key
    segment: str
    kind: str
    rows: int


def key_of(receipt: Receipt) -> Key:
    """Return the substream that a receipt is about.

    Releases that a revision does not concern leave an empty receipt under its own name.

    >>> key_of({"job": "shop", "scope": "berlin", "name": "monday#r1", "revision": 0, "elements": 0})
    Key(job='shop', scope='berlin', name='monday')
    """
    name = receipt["name"]
    of_revision = None if receipt["elements"] or receipt["revision"] else _REVISION.fullmatch(name)
    return Key(receipt["job"], receipt["scope"], name if of_revision is None else of_revision[1])


@dataclass
class Releases:
    """The segments that have receipts, with the origins of each, by job and deployment."""

    found: dict[tuple[str, str], dict[str, tuple[str, ...]]] = field(default_factory=dict)

    def add(self, job: str, deployment: str, segment: str, origins: str | None) -> None:
        """Note that a receipt was found."""
        known = self.found.setdefault((job, deployment), {})
        if origins is not None or segment not in known:
            known[segment] = tuple(json.loads(origins)) if origins is not None else (segment,)

    def of(self, job: str, deployments: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Return the segments of some deployments of a job, or of all, with their origins."""
        wanted = None if deployments is None else {*deployments}
        found: dict[str, tuple[str, ...]] = {}
        for (its_job, deployment), segments in self.found.items():
            if its_job == job and (wanted is None or deployment in wanted):
                found.update(segments)
        return found


def bad_rows(receipts: Iterable[Receipt], asides: Iterable[Aside]) -> list[Aside]:
    """Return the rows of no substream, of each job and segment: as receipts have them, or as they were set aside.

    Args:
        receipts: each has how many its query had set aside by then, in all.
        asides: of the tables of late rows, of which not all need to be known.
    """
    by_query: dict[tuple[str, str, str], int] = {}
    for receipt in receipts:
        query = (receipt["job"], receipt["segment"], receipt["query"])
        by_query[query] = max(by_query.get(query, 0), receipt["bad"] or 0)
    known: dict[tuple[str, str], int] = {}
    for (job, segment, _), rows in by_query.items():
        known[job, segment] = known.get((job, segment), 0) + rows
    counted: dict[tuple[str, str], int] = {}
    for each in asides:
        if each.kind == "bad":
            place = (each.key.job, each.segment)
            counted[place] = counted.get(place, 0) + each.rows
    most = {place: max(known.get(place, 0), counted.get(place, 0)) for place in {**known, **counted}}
    return [Aside(Key(job, None, None), segment, "bad", n) for (job, segment), n in sorted(most.items()) if n]


def asides_of(note: Mapping[str, Any]) -> list[Aside]:
    """Return what a note in `COUNTS` has counted."""
    job, segment, kind = note["job"], note["segment"], note["kind"]
    return [Aside(Key(job, scope, name), segment, kind, rows) for scope, name, rows in note["rows"]]
