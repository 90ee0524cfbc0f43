"""Truths at the end of a round: the released table, the events, the counts, and that nothing is left."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError

from examples.lake.services import catalog_of
from examples.services.s3 import S3
from tests.chaos.plan import CATALOG, PLACE, TOPIC, Shape
from tracker.client import Ended, Event, Late, Reason, Stalled, TrackerClient, Watch

Key = tuple[str, datetime]
Row = Mapping[str, Any]


_CATCHES_UP = 120.0  #: seconds that a subscriber without any news is waited for: it may come back from a cut


class Subscriber:
    """A watcher of the job's events during the round, across all ends of the tracker."""

    def __init__(self, client: TrackerClient, job: str) -> None:
        self.events: list[Event] = []
        self.failure: Exception | None = None  #: what ended it before it was closed
        self._client = client
        self._job = job
        self._closed = threading.Event()
        self._watch: Watch | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while self._job not in self._client.jobs():
                if self._closed.wait(0.2):
                    return
            self._watch = self._client.watch(self._job)
            for event in self._watch:
                self.events.append(event)  # at once: `events` is read meanwhile
        except Exception as failure:  # whatever it is: it is for the judgement to name it
            if not self._closed.is_set():
                self.failure = failure

    def catch_up(self, last_seq: int) -> None:
        """Wait until the subscriber has received the event `last_seq`, has failed, or has received nothing for long."""
        seen, since = -1, time.monotonic()
        while self.failure is None and (not self.events or self.events[-1].seq < last_seq):
            if len(self.events) != seen:
                seen, since = len(self.events), time.monotonic()
            if time.monotonic() - since > _CATCHES_UP:
                return
            time.sleep(0.05)

    def close(self) -> None:
        """End the subscription."""
        self._closed.set()
        if self._watch is not None:
            self._watch.close()


class Kept:
    """Files that a round keeps: in its directory, or in a store, whose objects are files on this disk.

    Args:
        directory: of the round.
        shape: its job.
        store: in which all is; None: in the directory.

    Attributes:
        root: the directory with the checkpoints.
    """

    def __init__(self, directory: Path, shape: Shape, store: S3 | None) -> None:
        self.root = directory if store is None else store.objects.parent / PLACE
        self._directory = directory
        self._shape = shape
        self._store = store

    def rows(self, table: str, files: str = "epoch=*/*.parquet") -> list[dict[str, Any]]:
        """Return what was published in a table of files: what a name beginning with ``_`` hides was not."""
        paths = [path for path in sorted((self.root / table).glob(files)) if path.parent.name[0] not in "_."]
        return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]

    def released(self) -> Counter[tuple[Any, ...]]:
        """Return the released rows: (tenant, window's start, kind, rows, amount)."""
        read = {"delta": self._in_delta, "iceberg": self._in_iceberg}.get(self._shape.table, lambda: self.rows("out"))
        return Counter(
            (row["tenant"], row["window"]["start"].replace(tzinfo=None), row["kind"], row["rows"], row["amount"])
            for row in read()
        )

    def _in_delta(self) -> list[dict[str, Any]]:
        if not (self.root / "out" / "_delta_log").exists():
            return []
        rows: list[dict[str, Any]] = deltalake.DeltaTable(self.root / "out").to_pyarrow_table().to_pylist()
        return rows

    def _in_iceberg(self) -> list[dict[str, Any]]:
        assert self._store is not None
        catalog = catalog_of(self._store, self._directory / CATALOG)
        try:
            rows: list[dict[str, Any]] = catalog.load_table("chaos.out").scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return rows

    def state_is_empty(self) -> bool:
        """Return whether the release keeps nothing."""
        versions = sorted((self.root / "cp2" / "tracker" / "state").glob("version-*.json"))
        return bool(versions) and not json.loads(versions[-1].read_text())["parts"]


def problems(kept: Kept, shape: Shape, fed: Sequence[Row], client: TrackerClient, subscriber: Subscriber) -> list[str]:
    """List the faults of a round that has come to its end; none if the round is exact.

    Args:
        kept: what it has left.
        shape: its job.
        fed: all rows.
        client: to its tracker.
        subscriber: a watcher of the whole round.
    """
    found: list[str] = []
    found.extend(_differences("released", kept.released(), expected(fed)))
    if shape.audit:
        audited = Counter(row["row_id"] for row in kept.rows("audit"))
        found.extend(_differences("audited", audited, Counter(row["row_id"] for row in fed)))
    events = all_events(client, shape.job)
    subscriber.catch_up(len(events))
    found.extend(of_events(events, subscriber.events, subscriber.failure))
    ended = {(e.segment, e.scope, e.name): e.elements for event in events if isinstance(e := event.kind, Ended)}
    children = [row for row in fed if row["kind"] != "z"] if shape.brokers else kept.rows(TOPIC, "*/*/*.parquet")
    found.extend(of_counts(shape, fed, children, ended))
    found.extend(_of_receipts(kept, ended))
    status = client.job(shape.job)
    left = {
        "open substreams": status.open_substreams,
        "elements in flight": status.in_flight,
        "late reports": status.late_reports,
        "staged epochs": sum(len(producer.staged_epochs) for producer in status.producers),
    }
    found.extend(f"{number} {what} are left" for what, number in left.items() if number)
    if not kept.state_is_empty():
        found.append("the release has state left")
    if shape.brokers and (unsure := _epochs_with_labels(kept.root)):
        found.append(f"the receiver keeps labels of {unsure} epochs")
    if any(kept.root.glob("cp*/tracker/late/**/*.parquet")):
        found.append("rows were set aside as late")
    return found


def expected(fed: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """Return the results of a batch over all rows: (tenant, window's start, kind, rows, amount)."""
    totals: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in fed:
        if row["kind"] != "z":
            total = totals[(row["tenant"], _window(row), row["kind"])]
            total[0] += 1
            total[1] += row["amount"]
    return Counter((*key, rows, amount) for key, (rows, amount) in totals.items())


def has_all(kept: Kept, fed: Sequence[Row]) -> bool:
    """Return whether as many rows were released as there have to be."""
    whole = not (kept.root / "audit").exists() or len(kept.rows("audit")) >= len(fed)
    return whole and kept.released().total() >= expected(fed).total()


def _epochs_with_labels(path: Path) -> int:
    """Count the epochs of which the channel's receiver remembers row by row what it has."""
    newest = [max(query.glob("version-*.json")) for query in (path / TOPIC).glob("received/*")]
    return sum(len(json.loads(version.read_text())["incomplete"]) for version in newest)


def all_events(client: TrackerClient, job: str) -> list[Event]:
    """Return the job's log."""
    events: list[Event] = []
    last = client.job(job).last_seq
    after = 0
    while after < last:
        page = client.list_events(job, after, last)
        events.extend(page.events)
        after = page.last_seq
    return events


def of_events(events: Sequence[Event], received: Sequence[Event], failure: Exception | None) -> list[str]:
    """List the faults of the log, or of what a subscriber to all of it received.

    Args:
        events: the log.
        received: by the subscriber.
        failure: what ended the subscriber, if anything did.
    """
    found: list[str] = []
    numbers = [event.seq for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"the log's numbers are not 1 to {len(numbers)}: {numbers}")
    if failure is not None:
        found.append(f"the subscriber failed after {len(received)} events: {failure!r}")
    if [event.seq for event in received] != numbers:
        found.append(f"the log has {len(numbers)} events, a subscriber received {[event.seq for event in received]}")
    elif list(received) != list(events):
        differing = [event.seq for event, other in zip(events, received, strict=True) if event != other]
        found.append(f"a subscriber received other events than the log has: {differing}")
    ends = Counter((e.segment, e.scope, e.name) for event in events if isinstance(e := event.kind, Ended))
    found.extend(f"{key} ended {number} times" for key, number in ends.items() if number > 1)
    found.extend(
        f"event {event.seq}: {event.kind}"
        for event in events
        if isinstance(event.kind, (Late, Stalled))
        or (isinstance(event.kind, Ended) and (event.kind.reason is not Reason.COMPLETE or event.kind.in_flight))
    )
    return found


def of_counts(
    shape: Shape,
    fed: Sequence[Row],
    children: Sequence[Row],
    ended: Mapping[tuple[str, str, str], int],
) -> list[str]:
    """List the faults of the ends' counts: an attempt too many or too few, an end too many or too few.

    Where rows are split at random, the source's count is known by its bounds only, since its rows are read more than
    once: each gives one element or two.

    Args:
        shape: of the round's job.
        fed: all rows.
        children: the rows that the channel holds.
        ended: the elements of each end, by (segment, scope, name).
    """
    windows = {(row["tenant"], _name(_window(row))) for row in fed}
    sent = Counter(("clean", child["tenant"], _name(_window(child))) for child in children)
    rows = Counter((segment, row["tenant"], _name(_window(row))) for row in fed for segment in ("in", "audit"))
    least = rows + sent
    most = Counter({key: number for key, number in fed_on(fed, shape).items() if key[0] != "clean"}) + sent
    segments = ["in", "clean", *(["audit"] if shape.audit else [])]
    found = []
    for key in sorted({(segment, *window) for segment in segments for window in windows} | set(ended)):
        elements = ended.get(key)
        wanted = str(least[key]) if least[key] == most[key] else f"{least[key]} to {most[key]}"
        if key[1:] not in windows:
            found.append(f"{' '.join(key)}: ended with {elements} elements, but no row of it was fed")
        elif elements is None:
            found.append(f"{' '.join(key)}: {wanted} elements, and it has not ended")
        elif key[0] in segments and not least[key] <= elements <= most[key]:
            found.append(f"{' '.join(key)}: {wanted} elements, and the tracker counted {elements}")
    return found


def fed_on(rows: Sequence[Row], shape: Shape) -> Counter[tuple[str, str, str]]:
    """Return how many elements the rows are at most, by (segment, scope, name)."""
    fed: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        place = (row["tenant"], _name(_window(row)))
        passed = 0 if row["kind"] == "z" else 1 + shape.splits
        fed.update({("in", *place): max(1, passed), ("clean", *place): passed, ("audit", *place): 1})
    return fed


def _of_receipts(kept: Kept, ended: Mapping[tuple[str, str, str], int]) -> list[str]:
    """List the ends that have not left one receipt, with the tracker's own count."""
    receipts = kept.rows("receipts", "*/epoch=*/*.parquet")
    left = Counter((row["scope"], row["name"], row["elements"], row["rows"]) for row in receipts)
    ends = ((scope, name, number) for (segment, scope, name), number in ended.items() if segment == "clean")
    return _differences("receipts", left, Counter((scope, name, number, number) for scope, name, number in ends))


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
