"""``spark.readStream.format("tracker")`` and ``spark.read.format("tracker")``: what the tracker says, as rows.

As a stream: a job's events. Offsets are the log's id and the event's number in it, so Spark's own checkpoint makes them
exactly-once: a batch that is replayed reads the same range again. As a batch: the events of a range, or the substreams
as they stand now.

This module runs in Spark's Python workers too. It only reads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader

from spark_client.datasource.commits import await_commits
from spark_client.datasource.credentials import OPTIONS, credentials_of, refuse_secrets
from spark_client.datasource.rows import EVENT_SCHEMA, SUBSTREAM_SCHEMA, WOKEN, event_row, substream_rows
from spark_client.errors import TrackingError, UsageError
from spark_client.spark_internals.readers import LastingReader
from tracker.client import (
    Advanced,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    EventPage,
    Excess,
    FrontIdle,
    Late,
    Stalled,
    Subscription,
    TrackerClient,
    TrackerError,
)

FORMAT: Final = "tracker"
WAKE_UP: Final = "wakes"  #: an option of this package's own: its rows only make batches happen, and none is missing

_FEW: Final = 10  #: events that are looked at first for a wake-up; ten times as many next, if none is wanted
_MOVE_EVERY: Final = 60.0  #: seconds after which a place moves over events that are not wanted, with an empty batch;
_OF_RETENTION: Final = 0.2  #: or this part of the job's retention, if that is less

_KINDS: Final = {
    "Ended": Ended,
    "Late": Late,
    "Advanced": Advanced,
    "Stalled": Stalled,
    "Excess": Excess,
    "FrontIdle": FrontIdle,
    "DrainRequested": DrainRequested,
    "Drained": Drained,
    "DrainTimedOut": DrainTimedOut,
    "DrainCancelled": DrainCancelled,
}


class TrackerDataSource(DataSource):
    """The format ``tracker``. `Tracking` registers it; alone: ``spark.dataSource.register(TrackerDataSource)``.

    Options:
        job: whose events. Required.
        server: the tracker's address; default ``127.0.0.1:7654``.
        segments, scopes: only of these, comma-separated; default: all. They filter Ended, Late, Excess and Advanced.
        kinds: only these, comma-separated, such as ``Ended,Late``; default: all.
        starting_seq: where a new stream begins: ``earliest`` (kept), ``latest``, or the seq of the last event not
            wanted; default ``earliest``. A stream with a checkpoint goes on where it was.
        subscription: stream only: the name of a durable subscription of this stream's own: the tracker keeps its events
            until Spark has committed the batch that had them, whatever the job's retention.
        max_away: with a subscription, days for which at most; default: as the tracker likes.
        max_events_per_trigger: at most so many in a micro-batch; default 10000.
        retry_for: seconds for which a tracker that cannot be reached is waited for; default 60.
        tls_ca, tls_cert, tls_key, token_file: the files of `tracker.client.Credentials`; default: the environment's.
        what: batch only: ``events`` (default) or ``substreams``.
        after_seq, up_to_seq: batch only: the range of events; default: all that are kept.
        include_ended: batch only, substreams: ``true`` for those that have ended too.

    >>> events = spark.readStream.format("tracker").option("job", "flights").load()           # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> T.StructType:
        return SUBSTREAM_SCHEMA if _Wanted(self.options).substreams else EVENT_SCHEMA

    def reader(self, schema: T.StructType) -> DataSourceReader:  # noqa: ARG002
        return _BatchReader(_Wanted(self.options))

    def simpleStreamReader(self, schema: T.StructType) -> SimpleDataSourceStreamReader:  # noqa: ARG002, N802
        wanted = _Wanted(self.options)
        return _WakeUps(wanted) if wanted.wake_up else _EventStream(wanted)


def register(spark: SparkSession) -> None:
    """Makes ``format("tracker")`` known to a session."""
    spark.dataSource.register(TrackerDataSource)


class _Wanted:
    """The options of a reader, checked."""

    _KNOWN: Final = frozenset(
        [
            "job",
            "server",
            "segments",
            "scopes",
            "kinds",
            "starting_seq",
            "subscription",
            "max_away",
            "max_events_per_trigger",
            "retry_for",
            "what",
            "after_seq",
            "up_to_seq",
            "include_ended",
            "path",
            WAKE_UP,
            *OPTIONS.values(),
        ]
    )

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_secrets(options)
        unknown = sorted(key for key in options if key.lower() not in self._KNOWN)
        if unknown:
            known = ", ".join(sorted(self._KNOWN - {"path", WAKE_UP}))
            raise UsageError(f'format("tracker") knows no option {unknown[0]!r}; it knows {known}')
        self.job = options.get("job", "")
        if not self.job:
            raise UsageError('format("tracker") needs .option("job", …): whose events?')
        self.server = options.get("server", "127.0.0.1:7654")
        self.segments = _words(options.get("segments", ""))
        self.scopes = _words(options.get("scopes", ""))
        kinds = _words(options.get("kinds", ""))
        if wrong := [kind for kind in kinds if kind not in _KINDS]:
            raise UsageError(f'format("tracker"): kind {wrong[0]!r} is not one of {", ".join(_KINDS)}')
        self.kinds = tuple(_KINDS[kind] for kind in kinds or _KINDS)
        self.starting_seq = options.get("starting_seq", "earliest")
        if self.starting_seq not in ("earliest", "latest") and not self.starting_seq.isdigit():
            raise UsageError(f"starting_seq={self.starting_seq!r}: give earliest, latest or a number")
        self.subscription = options.get("subscription", "")
        self.max_away = timedelta(days=float(options["max_away"])) if "max_away" in options else None
        self.limit = int(options.get("max_events_per_trigger", "10000"))
        self.retry_for = float(options.get("retry_for", "60"))
        self.credentials = credentials_of(options)
        self.substreams = options.get("what", "events") == "substreams"
        self.after_seq = int(options.get("after_seq", "0"))
        self.up_to_seq = int(options.get("up_to_seq", "0"))
        self.wake_up = options.get(WAKE_UP, "")
        self.include_ended = options.get("include_ended", "false").lower() == "true"

    def client(self) -> TrackerClient:
        return TrackerClient(self.server, retry_for=self.retry_for, credentials=self.credentials)

    def range(self, client: TrackerClient, after: int, up_to: int, log_id: str) -> Iterator[Event]:
        """The wanted events of a range; `up_to` 0 is the newest."""
        while not up_to or after < up_to:
            page = client.list_events(
                self.job, after, up_to, 0, segments=self.segments, scopes=self.scopes, log_id=log_id
            )
            yield from (event for event in page.events if isinstance(event.kind, self.kinds))
            if page.last_seq <= after:
                return
            after, log_id = page.last_seq, page.log_id


class _EventStream(LastingReader):
    """Offsets are ``{"seq": the last event taken, "log_id": of which log}``."""

    def __init__(self, wanted: _Wanted) -> None:
        self._wanted = wanted
        self._client: TrackerClient | None = None
        self._looked_at = 0  # events up to here are known not to be wanted, after the last one taken
        self._moved = time.monotonic()
        self._subscription: Subscription | None = None
        self._target: int | None = None  # with availableNow: the last event that is taken

    @property
    def client(self) -> TrackerClient:
        if self._client is None:
            self._client = self._wanted.client()
        return self._client

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What happens from now on is for the next run."""
        with _explained(self._wanted.job):
            self._target = self.client.job(self._wanted.job).last_seq

    @cached_property
    def _move_every(self) -> float:
        with _explained(self._wanted.job):
            retention = self.client.job(self._wanted.job).spec.retention
        return _MOVE_EVERY if retention is None else min(_MOVE_EVERY, retention.total_seconds() * _OF_RETENTION)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        wanted = self._wanted
        with _explained(wanted.job):
            status = self.client.job(wanted.job)
        if wanted.starting_seq.isdigit():
            return {"seq": int(wanted.starting_seq), "log_id": status.log_id}
        return {
            "seq": status.first_seq - 1 if wanted.starting_seq == "earliest" and status.first_seq else status.last_seq,
            "log_id": status.log_id,
        }

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        page = self._page(start, self._wanted.limit)
        rows = [] if page is None else [event_row(event) for event in page.events if self._is_wanted(event)]
        return self._answer(rows, page, start)

    def _answer(
        self, rows: list[tuple[Any, ...]], page: EventPage | None, start: dict[str, Any]
    ) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        """The wanted rows up to the end of a page; with none, the place moves on only now and then."""
        # What is not wanted expires as well: a place that stood still for long would be taken for one that missed it.
        if page is None or (not rows and not self._should_move(page, start)):
            return iter([]), start
        self._moved = time.monotonic()
        return iter(rows), {"seq": page.last_seq, "log_id": page.log_id}

    def _place(self, start: dict[str, Any]) -> int:
        """The last event, from `start` on, that was looked at."""
        return max(self._looked_at, int(start["seq"]))

    def _page(self, start: dict[str, Any], limit: int) -> EventPage | None:
        """The next events after `start` that nothing is known of; None: the run takes no more."""
        wanted = self._wanted
        looked_at = self._place(start)
        with _explained(wanted.job, wanted.subscription):
            if wanted.subscription and self._subscription is None:
                self._subscription = self.client.subscribe(
                    wanted.job,
                    wanted.subscription,
                    wanted.segments,
                    wanted.scopes,
                    after_seq=start["seq"],
                    max_age=wanted.max_away,
                    log_id=start["log_id"],
                )
            if self._target is not None and looked_at >= self._target:
                return None
            page = self.client.list_events(
                wanted.job,
                looked_at,
                self._target or 0,
                limit=limit,
                segments=wanted.segments,
                scopes=wanted.scopes,
                log_id=start["log_id"],
                own_position=True,
            )
        self._looked_at = page.last_seq
        return page

    def _is_wanted(self, event: Event) -> bool:
        return isinstance(event.kind, self._wanted.kinds)

    def _should_move(self, page: EventPage, start: dict[str, Any]) -> bool:
        return page.last_seq > start["seq"] and time.monotonic() - self._moved > self._move_every

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        with _explained(self._wanted.job):
            return iter(
                [event_row(e) for e in self._wanted.range(self.client, start["seq"], end["seq"], start["log_id"])]
            )

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has committed the batch that ends there."""
        if self._subscription is not None:
            with _explained(self._wanted.job, self._wanted.subscription):
                self._subscription.ack(end["seq"])


class _WakeUps(_EventStream):
    """One row for whatever has happened: it only makes a batch happen, and the batch reads the events by itself.

    A few events show that there is news, and the others do not travel twice. It refuses nothing: events that have
    expired, or another log, are news like any other.
    """

    _awaits_commits = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with _explained(self._wanted.job):
            status = self.client.job(self._wanted.job)
        return {"seq": status.last_seq, "log_id": status.log_id}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The run takes the ends that its own batches bring about, too."""
        self._awaits_commits = True

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        wanted = self._wanted
        if self._awaits_commits and wanted.wake_up:
            with _explained(wanted.job):
                await_commits(self.client, wanted.job, Path(wanted.wake_up), wanted.retry_for)
        try:
            looked_at, limit = self._place(start), _FEW
            page = self._page(start, limit)
            while page is not None and page.last_seq > looked_at:
                if any(map(self._is_wanted, page.events)):
                    return iter([WOKEN]), self.initialOffset()
                looked_at, limit = page.last_seq, min(10 * limit, wanted.limit)
                page = self._page(start, limit)
        except TrackingError as error:
            if getattr(error.__cause__, "reason", "") not in ("EVENTS_EXPIRED", "LOG_CHANGED"):
                raise
            self._looked_at = 0
            return iter([WOKEN]), self.initialOffset()
        return self._answer([], page, start)

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002, N802
        return iter([WOKEN])


class _BatchReader(DataSourceReader):
    def __init__(self, wanted: _Wanted) -> None:
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        wanted = self._wanted
        with _explained(wanted.job), wanted.client() as client:
            if wanted.substreams:
                for status in client.substreams(wanted.job, wanted.scopes, wanted.include_ended):
                    yield from substream_rows(status, wanted.segments)
            else:
                yield from map(event_row, wanted.range(client, wanted.after_seq, wanted.up_to_seq, ""))


class _explained:  # noqa: N801 - reads as a statement
    """Adds what to do to the refusals that a reader meets."""

    _ADVICE: Final = {
        "UNKNOWN_JOB": "start a tracked query first, or define the job; check the option 'job' and the server",
        "LOG_CHANGED": "the job was deleted, or its journal was lost or restored from a backup, so this checkpoint's "
        "place in it means nothing: start the query with a new checkpoint",
        "EVENTS_EXPIRED": "the query was stopped for longer than the job's retention: start it with a new checkpoint "
        "and take what has ended meanwhile from spark.read.format('tracker').option('what', 'substreams'), or give "
        "starting_seq. A stream with the option subscription= may be stopped for longer",
        "SUBSCRIPTION_EXPIRED": "the query was stopped for longer than its subscription's max_away: "
        "`tracker unsubscribe {job} {subscription!r}`, and start it with a new checkpoint",
    }

    def __init__(self, job: str, subscription: str = "") -> None:
        self._job = job
        self._subscription = subscription

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, TrackerError) and error.reason in self._ADVICE:
            what_to_do = self._ADVICE[error.reason].format(job=self._job, subscription=self._subscription)
            raise TrackingError(f"{error} (job {self._job!r}: {what_to_do})") from error


def _words(text: str) -> tuple[str, ...]:
    """Names in an option: between commas; or a JSON list, for names that have commas or blanks."""
    if text.startswith("["):
        with suppress(ValueError):
            return tuple(map(str, json.loads(text)))
    return tuple(word.strip() for word in text.split(",") if word.strip())
