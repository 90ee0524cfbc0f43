"""The source ``tracker``: its rows, and the streams of a job's events. See `spark_client.datasource.events`.

An offset is JSON, in Spark's checkpoint. In one log it is a number and the log's id. In several it has one of each for
every log, and where the merge of the logs stands (`tracker.sharded.merged_events`): progress is the minimum over them,
and a drain is announced once, when every log has announced it. The rows between two offsets depend on these two alone:
a batch that is replayed has the same rows again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T  # noqa: N812

from spark_client.datasource.options import ReaderOptions, explained
from spark_client.spark_internals.checkpoints import last_commit, query_id
from spark_client.spark_internals.readers import LastingReader
from spark_client.storage.folder import Folder
from spark_client.trackers import JobClient, Place
from spark_client.trackers.eventlogs import EventLogs, Subscriptions, newest
from tracker.client import Advanced, Drained, Ended, Event, JobStatus, Position, Stalled, SubstreamStatus, TrackerClient
from tracker.client.watch import pages
from tracker.sharded.merged_events import Merge, beginning

EVENT_SCHEMA: Final = T.StructType(
    [
        T.StructField("seq", T.LongType(), False),  # 1, 2, 3, … within the job's log
        T.StructField("at", T.TimestampType(), False),  # when the tracker took the command that caused it
        T.StructField("deployment", T.StringType(), False),
        T.StructField("kind", T.StringType(), False),  # Ended, Late, Advanced, Stalled, FrontIdle, DrainRequested, …
        T.StructField("segment", T.StringType()),
        T.StructField("scope", T.StringType()),
        T.StructField("name", T.StringType()),
        T.StructField("end_time", T.LongType()),  # Ended: as reported; this package reports microseconds
        T.StructField("elements", T.LongType()),  # Ended: sent on this segment in all
        T.StructField("reason", T.StringType()),  # Ended: a tracker's Reason
        T.StructField("in_flight", T.LongType()),  # Ended, Stalled
        T.StructField("producer", T.StringType()),  # Late: who reported it
        T.StructField("sent", T.LongType()),  # Late
        T.StructField("received", T.LongType()),  # Late
        T.StructField("segments", T.ArrayType(T.StringType())),  # Stalled: those that do not balance
        T.StructField("front", T.StringType()),  # FrontIdle
        T.StructField("idle", T.BooleanType()),  # FrontIdle
        T.StructField("drain_id", T.StringType()),  # Drain…
        T.StructField("time", T.LongType()),  # Advanced: everything up to it has ended on the segment
        T.StructField("by_drain", T.BooleanType()),  # Ended: only a drain closed it, and more may follow later
        T.StructField("expected", T.LongType()),  # Ended, Excess, Stalled: elements that its sources had promised
    ]
)

SUBSTREAM_SCHEMA: Final = T.StructType(
    [
        T.StructField("scope", T.StringType(), False),
        T.StructField("name", T.StringType(), False),
        T.StructField("end_time", T.LongType()),
        T.StructField("closed", T.BooleanType(), False),
        T.StructField("waiting_for", T.ArrayType(T.StringType()), False),  # the fronts that have not closed it
        T.StructField("late_reports", T.LongType(), False),
        T.StructField("created", T.TimestampType(), False),
        T.StructField("changed", T.TimestampType(), False),
        T.StructField("segment", T.StringType(), False),  # one row for each segment it was seen on
        T.StructField("ended", T.BooleanType(), False),
        T.StructField("sent", T.LongType(), False),
        T.StructField("received", T.LongType(), False),
        T.StructField("expected", T.LongType()),  # elements that its sources have promised; null: no number was given
        T.StructField("by_drain", T.BooleanType(), False),  # ended, only a drain closed it, and more may follow later
    ]
)

_BODY: Final = [field.name for field in EVENT_SCHEMA.fields[4:]]

Offset: TypeAlias = dict[str, Any]

_MERGE = "merge"  #: in an offset: where the merge stands
_OF_PLACE = ("seqs", "log_ids")  #: fields of `Position` that the offset has itself


def event_row(event: Event) -> tuple[Any, ...]:
    """Return an event as a row of `EVENT_SCHEMA`."""
    kind = event.kind
    values = [getattr(kind, name, None) for name in _BODY]
    if isinstance(kind, Ended):
        values[_BODY.index("reason")] = str(kind.reason)
    if isinstance(kind, Stalled):
        values[_BODY.index("segments")] = list(kind.segments)
    return (event.seq, event.at, event.deployment, type(kind).__name__, *values)


def substream_rows(status: SubstreamStatus, segments: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield a substream as rows of `SUBSTREAM_SCHEMA`, one for each segment; of these only, if any are given."""
    for account in status.segments:
        if not segments or account.segment in segments:
            yield (
                status.scope,
                status.name,
                status.end_time,
                status.closed,
                list(status.waiting_for),
                status.late_reports,
                status.created,
                status.changed,
                account.segment,
                account.ended,
                account.sent,
                account.received,
                account.expected,
                account.by_drain,
            )


def offset_of(place: Place) -> Offset:
    """Return the offset of a place, with nothing before it that waits for another log."""
    return {"seq": place.numbers, "log_id": place.ids}


def place_of(offset: Offset) -> Place:
    """Return the place of an offset."""
    return Place.of(offset["seq"], offset["log_id"])


def oldest(statuses: Sequence[JobStatus]) -> Place:
    """Return the place before the oldest events that are kept."""
    return Place(
        tuple(each.first_seq - 1 if each.first_seq else each.last_seq for each in statuses),
        tuple(each.log_id for each in statuses),
    )


def kept_from(start: Offset, ordered: bool) -> Place:
    """Return the place up to which nobody needs events again to read on after an offset."""
    place = place_of(start)
    if len(place.seqs) == 1:
        return place
    merge = Merge(ordered, _position(start))
    return Place(tuple(map(merge.after, range(len(place.seqs)))), place.log_ids)


def read_between(
    logs: Sequence[tuple[TrackerClient, str]],
    start: Offset,
    end: Place,
    segments: Sequence[str],
    scopes: Sequence[str],
    ordered: bool,
) -> tuple[list[Event], Offset]:
    """Read the events of several logs between an offset and a place, and merge them.

    Args:
        logs: of the job: for each, who has it and under which name.
        start: the events after it.
        end: the events up to it.
        segments, scopes: which events are read, as by `TrackerClient.list_events`; empty: all.
        ordered: whether ends wait for the other logs, as in jobs with ordering ``"global"``.

    Returns:
        The events, and the offset to read on from.
    """
    position = _position(start)
    merge = Merge(ordered, position)
    seqs = []
    for shard, (client, name) in enumerate(logs):
        up_to = last = end.seqs[shard]
        for event in _range(client, name, merge.after(shard), up_to, segments, scopes, position.log_ids[shard]):
            merge.take(shard, event)
            last = event.seq
        seqs.append((last, up_to))
    events = list(iter(merge.give, None))
    after = merge.position(end.log_ids)
    # An event that the merge has not taken, as it is of a deployment to come, is read again; all others are behind.
    numbers = [up_to if seq >= last else seq for seq, (last, up_to) in zip(after.seqs, seqs, strict=True)]
    return events, {**offset_of(Place(tuple(numbers), end.log_ids)), _MERGE: _merge_state(after)}


def _range(
    client: TrackerClient,
    job: str,
    after: int,
    up_to: int,
    segments: Sequence[str],
    scopes: Sequence[str],
    log_id: str,
) -> Iterator[Event]:
    read = partial(client.list_events, job, segments=segments, scopes=scopes, log_id=log_id, own_position=True)
    for page in pages(read, after, up_to):
        yield from page.events


def _position(offset: Offset) -> Position:
    place = place_of(offset)
    state = offset.get(_MERGE) or _merge_state(beginning(len(place.seqs)))
    return Position(seqs=place.seqs, log_ids=place.log_ids, **state)


def _merge_state(position: Position) -> dict[str, Any]:
    return {name: value for name, value in asdict(position).items() if name not in _OF_PLACE}


_LOOK_EVERY = 0.02  #: seconds between two looks at what the tracker has learnt of
_SELDOM = 0.5  #: seconds that this grows to

_MOVE_EVERY: Final = 60.0  #: seconds after which a place moves over events that are not wanted, with an empty batch;
_OF_RETENTION: Final = 0.2  #: or this part of the job's retention, if that is less

_Rows = tuple[Iterator[tuple[Any, ...]], Offset]


def await_commits(client: JobClient, job: str, checkpoint: Folder, seconds: float) -> None:
    """Wait until the tracker has learnt of all that Spark has committed of a query.

    Args:
        job: that it is of.
        seconds: after which it is not waited for any more: its driver follows it, and may have died.
    """
    last = last_commit(checkpoint)
    query = query_id(checkpoint)
    if last is None or query is None:
        return
    until, pause = time.monotonic() + seconds, _LOOK_EVERY
    while time.monotonic() < until:
        staged = [
            epoch
            for producer in client.job(job).producers
            if producer.producer == query
            for epoch in producer.staged_epochs
        ]
        if not any(epoch <= last for epoch in staged):
            return
        time.sleep(pause)
        pause = min(2 * pause, _SELDOM)


@dataclass(frozen=True)
class _Page:
    """Events of all logs, log by log, and the place after them."""

    events: list[Event]
    place: Place


class EventStream(LastingReader):
    """Offsets are ``{"seq": the last event taken, "log_id": of which log}``; of several logs: see `merging`."""

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        self._client: JobClient | None = None
        self._looked_at: Place | None = None  # events up to here are known not to be wanted, after the last one taken
        self._moved = time.monotonic()
        self._subscriptions: Subscriptions | None = None
        self._target: Place | None = None  # with availableNow: the last events that are taken

    @property
    def client(self) -> JobClient:
        if self._client is None:
            self._client = self._options.client()
        return self._client

    @property
    def _logs(self) -> EventLogs:
        return EventLogs(self.client, self._options.job)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave what happens from now on for the next run."""
        with explained(self._options.job):
            self._target = self._logs.newest()

    @cached_property
    def _move_every(self) -> float:
        with explained(self._options.job):
            retention = self.client.job(self._options.job).spec.retention
        return _MOVE_EVERY if retention is None else min(_MOVE_EVERY, retention.total_seconds() * _OF_RETENTION)

    def initialOffset(self) -> Offset:  # noqa: N802
        starting = self._options.starting_seq
        with explained(self._options.job):
            statuses = self._logs.statuses()
        if starting.isdigit():
            return {"seq": int(starting), "log_id": statuses[0].log_id}
        return offset_of(oldest(statuses) if starting == "earliest" else newest(statuses))

    def read(self, start: Offset) -> _Rows:
        page = self._news(start)
        if page is None:
            return iter([]), start
        if len(page.place.seqs) == 1:
            return self._answer(self._rows(page.events), offset_of(page.place), start)
        if not any(map(self._is_relevant, page.events)) and not self._should_move(page.place, start):
            return iter([]), start
        events, end = self._between(start, page.place)
        self._moved = time.monotonic()
        return iter(self._rows(events)), end

    def _news(self, start: Offset) -> _Page | None:
        """Return what one batch takes, at most; None: the run takes no more."""
        return self._page(start, self._options.limit)

    def _rows(self, events: list[Event]) -> list[tuple[Any, ...]]:
        return [event_row(event) for event in events if self._options.wants(event)]

    def _answer(self, rows: list[tuple[Any, ...]], end: Offset, start: Offset) -> _Rows:
        """Return the wanted rows up to the end of a page; with none, the place moves on only now and then."""
        # Unwanted events expire as well: a place that stood still for long would be taken for one that missed them.
        if not rows and not self._should_move(place_of(end), start):
            return iter([]), start
        self._moved = time.monotonic()
        return iter(rows), end

    def _place(self, start: Offset) -> Place:
        """Return the place, from `start` on, up to which events were looked at."""
        place, looked_at = place_of(start), self._looked_at
        if looked_at is None:
            return place
        return Place(tuple(map(max, looked_at.seqs, place.seqs)), place.log_ids)

    def _page(self, start: Offset, limit: int) -> _Page | None:
        """Return the next events after `start` that nothing is known of; None: the run takes no more.

        Args:
            limit: at most so many of each log.
        """
        options = self._options
        place = self._place(start)
        target = self._target
        with explained(options.job, options.subscription):
            logs = self._logs.all
            place.check(len(logs))
            if options.subscription and self._subscriptions is None:
                self._subscriptions = self._logs.subscribe(
                    options.subscription,
                    kept_from(start, options.ordered),
                    options.segments,
                    options.max_away,
                    scopes=options.scopes,
                    anew=False,
                )
            if target is not None and not target.is_beyond(place):
                return None
            found: list[Event] = []
            seqs = list(place.seqs)
            for log, (client, name) in enumerate(logs):
                up_to = 0 if target is None else target.seqs[log]
                if target is not None and place.seqs[log] >= up_to:
                    continue
                page = client.list_events(
                    name,
                    place.seqs[log],
                    up_to,
                    limit=limit,
                    segments=options.segments,
                    scopes=options.scopes,
                    log_id=place.log_ids[log],
                    own_position=True,
                )
                found += page.events
                seqs[log] = page.last_seq
        self._looked_at = Place(tuple(seqs), place.log_ids)
        return _Page(found, self._looked_at)

    def _is_relevant(self, event: Event) -> bool:
        """Return whether an event of several logs may make a row, of itself or of another event that waits for it."""
        return self._options.wants(event) or isinstance(
            event.kind, Advanced | Drained if self._options.ordered else Drained
        )

    def _should_move(self, place: Place, start: Offset) -> bool:
        return place.is_beyond(place_of(start)) and time.monotonic() - self._moved > self._move_every

    def _between(self, start: Offset, end: Place) -> tuple[list[Event], Offset]:
        options = self._options
        with explained(options.job):
            return read_between(self._logs.all, start, end, options.segments, options.scopes, options.ordered)

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        options = self._options
        with explained(options.job):
            logs = self._logs.all
            place_of(start).check(len(logs))
            if options.sharded:
                events, _ = self._between(start, place_of(end))
                return iter(self._rows(events))
            ((client, _),) = logs
            return iter([event_row(e) for e in options.range(client, start["seq"], end["seq"], start["log_id"])])

    def commit(self, end: Offset) -> None:
        """Let go of what a batch has read that Spark has committed."""
        if self._subscriptions is not None:
            with explained(self._options.job, self._options.subscription):
                self._subscriptions.ack(kept_from(end, self._options.ordered))


class OwnEnds(EventStream):
    """Events for a query whose commits bring them about: a batch has all that the batches before it have caused.

    So what is in one batch with an end has come after it.
    """

    _caused: int | None = None  # the last of the query's batches that the tracker has learnt of

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the ends that the run's own batches bring about, too."""

    def read(self, start: Offset) -> _Rows:
        options, checkpoint = self._options, Folder(self._options.awaits)
        last = last_commit(checkpoint)
        if last != self._caused:
            with explained(options.job):
                await_commits(self.client, options.job, checkpoint, options.retry_for)
            self._caused = last
        return super().read(start)

    def _news(self, start: Offset) -> _Page | None:
        """Return all that there is now, however many pages that are: the rows of the next batch need all of it."""
        looked_at = self._place(start)
        found = page = super()._news(start)
        if found is None or page is None or not page.place.is_beyond(looked_at):
            return found
        with explained(self._options.job):
            newest = self._logs.newest()
        while page is not None and page.place.is_beyond(looked_at) and newest.is_beyond(page.place):
            looked_at, page = page.place, super()._news(start)
            if page is not None:
                found = _Page([*found.events, *page.events], page.place)
        return found
