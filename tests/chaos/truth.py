"""What has to be true at the end of a round: the released table, the events, the counts, and that nothing is left."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tests.chaos.plan import TOPIC, Shape
from tracker.client import Ended, Event, Late, Reason, Stalled, TrackerClient, Watch

Key = tuple[str, datetime]
Row = Mapping[str, Any]


class Heard:
    """What a subscriber heard during the round, across all ends of the tracker."""

    def __init__(self, client: TrackerClient, job: str) -> None:
        self.events: list[Event] = []
        self._client = client
        self._job = job
        self._over = threading.Event()
        self._watch: Watch | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while self._job not in self._client.jobs():
            if self._over.wait(0.2):
                return
        self._watch = self._client.watch(self._job)
        for event in self._watch:
            self.events.append(event)  # at once: `events` is read meanwhile

    def close(self) -> None:
        """Nothing more will be heard."""
        self._over.set()
        if self._watch is not None:
            self._watch.close()


def problems(
    path: Path, shape: Shape, fed: Sequence[Row], client: TrackerClient, heard: Heard, restarts: int
) -> list[str]:
    """What is wrong with a round that has come to its end; nothing if it is exact.

    Args:
        path: its directory.
        shape: its job.
        fed: all rows.
        client: to its tracker.
        heard: what was announced meanwhile.
        restarts: how often a driver was started again.
    """
    found: list[str] = []
    found.extend(_differences("released", _released(path), expected(fed)))
    if shape.audit:
        audited = Counter(row["row_id"] for row in _rows(path / "audit"))
        found.extend(_differences("audited", audited, Counter(row["row_id"] for row in fed)))
    events = all_events(client, shape.job)
    found.extend(_of_events(events, heard))
    ended = {(e.segment, e.scope, e.name): e.elements for event in events if isinstance(e := event.kind, Ended)}
    found.extend(_of_counts(path, shape, fed, ended, restarts))
    found.extend(_of_receipts(path, ended))
    status = client.job(shape.job)
    left = {
        "open substreams": status.open_substreams,
        "elements in flight": status.in_flight,
        "late reports": status.late_reports,
        "staged epochs": sum(len(producer.staged_epochs) for producer in status.producers),
    }
    found.extend(f"{number} {what} are left" for what, number in left.items() if number)
    if not state_is_empty(path):
        found.append("the release has state left")
    if shape.brokers and (unsure := _epochs_with_labels(path)):
        found.append(f"the receiver keeps labels of {unsure} epochs")
    if any(path.glob("cp*/tracker/late/**/*.parquet")):
        found.append("rows were set aside as late")
    return found


def expected(fed: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """What a batch computation makes of all rows: (tenant, window's start, kind, rows, amount)."""
    totals: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in fed:
        if row["kind"] != "z":
            total = totals[(row["tenant"], _window(row), row["kind"])]
            total[0] += 1
            total[1] += row["amount"]
    return Counter((*key, rows, amount) for key, (rows, amount) in totals.items())


def has_all(path: Path, fed: Sequence[Row]) -> bool:
    """Whether as many rows were released as there have to be."""
    audited = path / "audit"
    whole = not audited.exists() or len(_rows(audited)) >= len(fed)
    return whole and _released(path).total() >= expected(fed).total()


def state_is_empty(path: Path) -> bool:
    """Whether the release keeps nothing."""
    versions = sorted((path / "cp2" / "tracker" / "state").glob("version-*.json"))
    return bool(versions) and not json.loads(versions[-1].read_text())["parts"]


def _epochs_with_labels(path: Path) -> int:
    """Of how many epochs the channel's receiver remembers row by row what it has."""
    newest = [max(query.glob("version-*.json")) for query in (path / TOPIC).glob("received/*")]
    return sum(len(json.loads(version.read_text())["incomplete"]) for version in newest)


def all_events(client: TrackerClient, job: str) -> list[Event]:
    """The job's log."""
    events: list[Event] = []
    last = client.job(job).last_seq
    after = 0
    while after < last:
        page = client.list_events(job, after, last)
        events.extend(page.events)
        after = page.last_seq
    return events


def _of_events(events: Sequence[Event], heard: Heard) -> list[str]:
    found: list[str] = []
    numbers = [event.seq for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"the log's numbers are not 1 to {len(numbers)}: {numbers}")
    listened = [event.seq for event in heard.events]
    if listened != numbers[: len(listened)]:
        found.append(f"a subscriber heard {listened}")
    ends = Counter((e.segment, e.scope, e.name) for event in events if isinstance(e := event.kind, Ended))
    found.extend(f"{key} ended {number} times" for key, number in ends.items() if number > 1)
    found.extend(
        f"event {event.seq}: {event.kind}"
        for event in events
        if isinstance(event.kind, (Late, Stalled))
        or (isinstance(event.kind, Ended) and (event.kind.reason is not Reason.COMPLETE or event.kind.in_flight))
    )
    return found


def _of_counts(
    path: Path, shape: Shape, fed: Sequence[Row], ended: Mapping[tuple[str, str, str], int], restarts: int
) -> list[str]:
    """Whether the tracker has counted what there was: neither an attempt too many nor one too few."""
    sent: Counter[tuple[str, str, str]] = Counter()
    children = [row for row in fed if row["kind"] != "z"] if shape.brokers else _rows(path / "clean", "*/*/*.parquet")
    for child in children:
        sent[("clean", child["tenant"], _name(_window(child)))] += 1
    passed: Counter[tuple[str, str, str]] = Counter()
    for row in fed:
        name = _name(_window(row))
        if row["kind"] == "z" or not shape.splits:
            passed[("in", row["tenant"], name)] += 1
        if shape.audit:
            passed[("audit", row["tenant"], name)] += 1
    if shape.splits:
        if restarts:  # what another driver replays may have been split otherwise than what was published
            passed = Counter({key: number for key, number in passed.items() if key[0] != "in"})
        else:
            for (_, scope, name), number in sent.items():
                passed[("in", scope, name)] += number
    wanted = sent + passed
    counted = {key: number for key, number in ended.items() if key in wanted}
    return [
        f"{' '.join(key)}: {number} elements, and the tracker says {counted.get(key, 'that it has not ended')}"
        for key, number in sorted(wanted.items())
        if counted.get(key) != number
    ]


def _of_receipts(path: Path, ended: Mapping[tuple[str, str, str], int]) -> list[str]:
    """Whether each end has left one receipt, which says what the tracker says."""
    receipts = _rows(path / "receipts", "*/epoch=*/*.parquet")
    left = Counter((row["scope"], row["name"], row["elements"], row["rows"]) for row in receipts)
    ends = ((scope, name, number) for (segment, scope, name), number in ended.items() if segment == "clean")
    return _differences("receipts", left, Counter((scope, name, number, number) for scope, name, number in ends))


def _released(path: Path) -> Counter[tuple[Any, ...]]:
    return Counter(
        (row["tenant"], row["window"]["start"].replace(tzinfo=None), row["kind"], row["rows"], row["amount"])
        for row in _rows(path / "out")
    )


def _rows(table: Path, files: str = "epoch=*/*.parquet") -> list[dict[str, Any]]:
    """What was published in a table of files: what a name beginning with ``_`` hides was not."""
    paths = [path for path in sorted(table.glob(files)) if path.parent.name[0] not in "_."]
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def _window(row: Row) -> datetime:
    ts = row["ts"]
    at = datetime.fromisoformat(ts) if isinstance(ts, str) else ts.replace(tzinfo=None)
    return at.replace(minute=0, second=0, microsecond=0)


def _name(start: datetime) -> str:
    return f"{start.isoformat()}Z/{(start + timedelta(hours=1)).isoformat()}Z"


def _differences(what: str, found: Counter[Any], wanted: Counter[Any]) -> list[str]:
    missing, more = wanted - found, found - wanted
    said = []
    if missing:
        said.append(f"{what}: {missing.total()} rows are missing, such as {next(iter(missing))}")
    if more:
        said.append(f"{what}: {more.total()} rows too many, such as {next(iter(more))}")
    return said
