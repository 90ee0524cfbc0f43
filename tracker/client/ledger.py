"""The ledger: of each substream, what became of every row that was sent, added up from the receipts of releases.

    sent = released + given up + filtered + late + quarantined + missing

A release's receipt has the tracker's count of what was sent on its segment, and the release's own count of what it took
in: these two are independent, so a row that was lost or doubled between them is found. How many rows entered the job is
known where a source's rows are counted by substream. Between there and the releases, steps drop rows and make several
of one; the difference is called filtered, as nothing but the steps decides it.

Here is arithmetic only: nothing reads a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from tracker.contract.values import Shown

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
        segment: that the query reads.
        kind: ``late``, ``bad`` (they belong to no substream) or ``doubled`` (a channel would take them for copies).
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


@dataclass(frozen=True, slots=True)
class Entry(Shown):
    """A line of the ledger. `sent` is the sum of the counts after it.

    Attributes:
        origins: the segments on which its rows entered the job, or left a release that sends its results on.
        segment: that the line is about: what a release reads, or the origins for the way up to there; None: all of it.
        sent: rows that were sent, or announced by their source.
        released: rows that results are made of.
        filtered: rows that steps have dropped, less those that steps have made of one row.
        late: rows that were set aside since they came after the end, and are in no revision.
        given_up: rows that a release of given-up rows has taken in.
        quarantined: rows that were set aside since they belong to no substream, or would be taken for copies.
        passed_on: rows that have reached releases; 0 in other lines than that of the way.
        missing: rows that nothing accounts for; negative: so many too many.
        wrong: what does not add up, and where.
        end_time: of a window, in microseconds since 1970.
    """

    key: Key
    origins: tuple[str, ...]
    segment: str | None
    sent: int = 0
    released: int = 0
    filtered: int = 0
    late: int = 0
    given_up: int = 0
    quarantined: int = 0
    passed_on: int = 0
    missing: int = 0
    wrong: tuple[str, ...] = ()
    end_time: int | None = None


def entries(key: Key, receipts: Sequence[Receipt], asides: Sequence[Aside], releases: Releases) -> list[Entry]:
    """Return the lines of one substream: for each set of origins the total, then the way, then each release.

    Args:
        receipts: all of it, whatever their order.
        releases: of all receipts of the job.
    """
    if key.name is None:
        return _of_no_substream(key, asides)
    end_time = next((receipt["end_time"] for receipt in receipts if receipt["end_time"] is not None), None)
    segments = releases.of(key.job, {receipt["deployment"] for receipt in receipts} or None)
    lines: list[Entry] = []
    for origins, group in _groups(segments):
        own = [receipt for receipt in receipts if receipt["segment"] in group]
        on_the_way = {name for receipt in own for name in _upstream(receipt)} | {*origins, *group}
        aside = [each for each in asides if each.segment in on_the_way]
        if own or aside:
            lines += _of_group(key, origins, group, own, aside)
    return [replace(line, end_time=end_time) for line in lines]


def ledger_of(receipts: Iterable[Receipt], asides: Iterable[Aside]) -> Iterator[list[Entry]]:
    """Yield the lines of all substreams, each one's together, in the order of jobs, times and names."""
    found, set_aside = [*receipts], [*asides]
    releases = Releases()
    by_key: dict[Key, tuple[list[Receipt], list[Aside]]] = {}
    for receipt in found:
        releases.add(receipt["job"], receipt["deployment"], receipt["segment"], receipt["origins"])
        by_key.setdefault(key_of(receipt), ([], []))[0].append(receipt)
    for aside in [*bad_rows(found, set_aside), *(each for each in set_aside if each.kind != "bad")]:
        by_key.setdefault(aside.key, ([], []))[1].append(aside)
    lines = [its for key, own in by_key.items() if (its := entries(key, *own, releases))]
    yield from sorted(lines, key=lambda its: (its[0].key.job, its[0].end_time or 0, *map(str, its[0].key[1:])))


def _of_no_substream(key: Key, asides: Sequence[Aside]) -> list[Entry]:
    return [
        Entry(key, (each.segment,), segment, sent=each.rows, quarantined=each.rows)
        for each in asides
        for segment in (None, each.segment)
    ]


def _groups(segments: Mapping[str, tuple[str, ...]]) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return the segments that share origins, with all origins of each group."""
    groups: list[tuple[set[str], list[str]]] = []
    for segment, origins in sorted(segments.items()):
        joined = ({*origins}, [segment])
        others = []
        for group in groups:
            if group[0].isdisjoint(joined[0]):
                others.append(group)
            else:
                joined = (group[0] | joined[0], [*group[1], *joined[1]])
        groups = [*others, joined]
    return sorted((tuple(sorted(origins)), sorted(group)) for origins, group in groups)


class _Release(NamedTuple):
    """Account of one release.

    Attributes:
        in_time: rows that were sent before the end, as the tracker has counted them.
        late: rows that came after it, and were not counted among those.
    """

    line: Entry
    in_time: int
    late: int


def _of_group(
    key: Key, origins: tuple[str, ...], group: Sequence[str], receipts: Sequence[Receipt], asides: Sequence[Aside]
) -> list[Entry]:
    """Return the lines of the releases that share their origins."""
    releases = []
    for segment in group:
        own = [receipt for receipt in receipts if receipt["segment"] == segment]
        late = sum(each.rows for each in asides if each.kind == "late" and each.segment == segment)
        if own or late:
            releases.append(_of_release(Entry(key, origins, segment), own, late))
    first = [each for each in receipts if not each["revision"] and each["name"] == key.name]
    present = {receipt["segment"] for receipt in first}
    absent = [segment for segment in group if present and segment not in present]
    way = None if [*origins] == [*group] else _way(key, origins, receipts, asides, releases, absent)
    lines = [*([] if way is None else [way]), *(release.line for release in releases)]
    wrong = [f"segment {line.segment!r}: {text}" for line in lines for text in line.wrong]
    wrong += [f"segment {segment!r}: it has no receipt: it has not ended there, or one is lost" for segment in absent]
    total = Entry(
        key,
        origins,
        None,
        sent=way.sent if way is not None else sum(line.sent for line in lines),
        released=sum(line.released for line in lines),
        filtered=sum(line.filtered for line in lines),
        late=sum(line.late for line in lines),
        given_up=sum(line.given_up for line in lines),
        quarantined=sum(line.quarantined for line in lines),
        missing=sum(line.missing for line in lines),
        wrong=tuple(wrong),
    )
    return [total, *lines]


def _of_release(blank: Entry, receipts: Sequence[Receipt], late: int) -> _Release:
    """Return what one release accounts for, with revisions."""
    first = [receipt for receipt in receipts if not receipt["revision"]]
    revised = [receipt for receipt in receipts if receipt["revision"]]
    ends = _ends(first)
    elements, rows, kept = _sum(ends, "elements"), _sum(first, "rows"), _kept(first)
    again, kept_again = _sum(revised, "rows"), _kept(revised)
    late = max(late, _sum(first, "late"), again)
    lost = elements - rows
    # Elements in flight when a substream was given up may have come after all, and are late then.
    after_all = min(max(lost, 0), late) if any(receipt["in_flight"] for receipt in ends) else 0
    before, short = _released_before(ends), _short(ends)
    wrong = []
    if lost != after_all:
        reasons = ", ".join(sorted({receipt["reason"] for receipt in ends if receipt["in_flight"]}))
        ended = f"; it has ended as {reasons}" if reasons else ""
        wrong.append(f"{_missing(lost - after_all)}: {elements} were sent, {rows} were received{ended}")
    if before:
        wrong.append(f"{_missing(before)}: earlier deployments released more than their receipts have")
    if short:
        wrong.append(f"{_missing(short)}: {elements + before + short} were announced, {elements + before} were sent")
    taken = kept + kept_again
    given_up = any(receipt.get("given_up") for receipt in receipts)
    line = replace(
        blank,
        sent=elements + before + short + late - after_all,
        released=0 if given_up else taken,
        filtered=rows + again - taken,
        late=late - again,
        given_up=taken if given_up else 0,
        missing=lost - after_all + before + short,
        wrong=tuple(wrong),
    )
    return _Release(line, elements + before, late - after_all)


def _way(
    key: Key,
    origins: tuple[str, ...],
    receipts: Sequence[Receipt],
    asides: Sequence[Aside],
    releases: Sequence[_Release],
    absent: Sequence[str],
) -> Entry | None:
    """Return the line of what lies between the origins and the releases; None: it is not known how many rows
    entered."""
    counts: dict[str, dict[str, int]] = {origin: {} for origin in origins}
    lost: dict[str, int] = {}
    for end in _ends(receipts):
        segment = end["segment"]
        lost[segment] = lost.get(segment, 0) + (end.get("upstream_in_flight") or 0)
        for origin in counts.keys() & _upstream(end).keys():
            counts[origin][segment] = counts[origin].get(segment, 0) + _upstream(end)[origin]
    entered = sum(max(by_segment.values(), default=0) for by_segment in counts.values())
    if not entered and any(release.in_time for release in releases):
        return None
    wrong = [
        f"receipts differ in how many were sent on {origin!r}: "
        + ", ".join(f"{rows} in those of {segment!r}" for segment, rows in sorted(by_segment.items()))
        for origin, by_segment in sorted(counts.items())
        if len({*by_segment.values()}) > 1
    ]
    late = sum(release.late for release in releases)
    in_flight = max(lost.values(), default=0)
    after_all = min(in_flight, late)
    missing = in_flight - after_all
    if missing:
        wrong.append(f"{_missing(missing)}: they were in flight on the way to releases when it ended")
    doubled = sum(each.rows for each in asides if each.kind == "doubled")
    sent, passed_on = entered + late - after_all, sum(release.line.sent for release in releases)
    filtered = sent - passed_on - doubled - missing
    if absent:  # nobody can tell what was filtered from what has gone where a receipt is missing
        if filtered:
            wrong.append(f"{_missing(filtered)}: {sent} were sent, and {passed_on} have reached the other releases")
        filtered, missing = 0, missing + filtered
    return Entry(
        key,
        origins,
        ", ".join(origins),
        sent,
        filtered=filtered,
        quarantined=doubled,
        passed_on=passed_on,
        missing=missing,
        wrong=tuple(wrong),
    )


def _ends(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return one receipt of each end, in the order of the ends: the tracker's counts in a copy are no second count."""
    return sorted({(each["query"], each["seq"]): each for each in receipts}.values(), key=lambda each: each["seq"])


def _released_before(ends: Sequence[Receipt]) -> int:
    """Return how many elements earlier deployments have released, by drains and rules, that no receipt here has."""
    unknown = released = 0
    for end in ends:
        if (end["before"] or 0) > released:
            unknown += end["before"] - released
            released = end["before"]
        is_cut = end["by_drain"] or end["reason"] != "COMPLETE"
        released = released + end["elements"] if is_cut else 0
    return unknown


def _short(ends: Sequence[Receipt]) -> int:
    """Return how many rows fewer were sent than their source had announced; negative: more."""
    if not ends or ends[-1]["expected"] is None or ends[-1]["by_drain"]:
        return 0
    last = ends[-1]
    return int(last["expected"] - last["elements"] - (last["before"] or 0))


def _upstream(receipt: Receipt) -> dict[str, int]:
    found: dict[str, int] = json.loads(receipt["upstream"] or "{}")
    return found


def _sum(receipts: Iterable[Receipt], column: str) -> int:
    return sum(receipt[column] or 0 for receipt in receipts)


def _kept(receipts: Iterable[Receipt]) -> int:
    """Return the rows that results are made of; a receipt of an earlier version does not tell them from those
    received."""
    return sum((each["rows"] if each.get("kept") is None else each["kept"]) or 0 for each in receipts)


def _missing(rows: int) -> str:
    return f"{rows} missing" if rows > 0 else f"{-rows} too many"
