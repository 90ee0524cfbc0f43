"""Rows of the source ``tracker``: events, and substreams as they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import types as T  # noqa: N812

from tracker.client import Ended, Event, Stalled, SubstreamStatus

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
