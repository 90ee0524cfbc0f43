"""Events of a job's log.

A server writes one for every watcher, so messages are filled field by field: that takes half as long as making one from
the parts of another.
"""

from __future__ import annotations

from tracker.contract.events import (
    Advanced,
    Body,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    Excess,
    FrontIdle,
    Late,
    Stalled,
)
from tracker.contract.values import Reason
from tracker.wire.gen import tracker_pb2 as wire

from .fields import NS, count, optional, read_time
from .jobs import read_drain_mode, write_drain_mode


def write_event(event: Event) -> wire.Event:
    """Return an event."""
    message = _head(event)
    match event.kind:
        case Ended() as body:
            _fill_ended(message.ended, body)
        case Late(segment, scope, name, producer, sent, received):
            late = wire.Late(segment=segment, scope=scope, name=name, producer=producer, sent=sent, received=received)
            message.late.CopyFrom(late)
        case Stalled() as body:
            _fill_stalled(message.stalled, body)
        case Excess(segment, scope, name, expected, sent):
            excess = wire.Excess(segment=segment, scope=scope, name=name, expected=count(expected), sent=sent)
            message.excess.CopyFrom(excess)
        case FrontIdle(front, idle):
            message.front_idle.CopyFrom(wire.FrontIdle(front=front, idle=idle))
        case DrainRequested(drain_id, mode):
            message.drain_requested.CopyFrom(wire.DrainEvent(drain_id=drain_id, mode=write_drain_mode(mode)))
        case Drained(drain_id, mode):
            message.drained.CopyFrom(wire.DrainEvent(drain_id=drain_id, mode=write_drain_mode(mode)))
        case DrainTimedOut(drain_id):
            message.drain_timed_out.CopyFrom(wire.DrainEvent(drain_id=drain_id))
        case DrainCancelled(drain_id):
            message.drain_cancelled.CopyFrom(wire.DrainEvent(drain_id=drain_id))
        case Advanced(segment, time):
            message.advanced.CopyFrom(wire.Advanced(segment=segment, time=time))
    return message


def write_bookmark(event: Event) -> wire.Event:
    """Return a mark for a watcher whose filters let nothing through up to an event."""
    message = _head(event)
    message.bookmark.SetInParent()
    return message


def _head(event: Event) -> wire.Event:
    message = wire.Event(seq=event.seq, deployment=event.deployment)
    message.at.seconds = event.at_ns // NS
    message.at.nanos = event.at_ns % NS
    return message


def write_ended(body: Ended) -> wire.Ended:
    """Return an end by itself."""
    message = wire.Ended()
    _fill_ended(message, body)
    return message


def _fill_ended(message: wire.Ended, body: Ended) -> None:
    message.segment = body.segment
    message.scope = body.scope
    message.name = body.name
    if body.end_time is not None:
        message.end_time = body.end_time
    message.elements = body.elements
    message.reason = wire.Reason.ValueType(body.reason.number)
    message.in_flight = body.in_flight
    message.by_drain = body.by_drain
    if body.expected is not None:
        message.expected = count(body.expected)


def _fill_stalled(message: wire.Stalled, body: Stalled) -> None:
    message.scope = body.scope
    message.name = body.name
    message.segments.extend(body.segments)
    message.in_flight = body.in_flight
    message.expected = count(body.expected)
    message.sent = body.sent


def read_event(message: wire.Event) -> Event | None:
    """Return the event; None for a bookmark, and for a kind that this client is too old to know."""
    body = _read_body(message)
    return None if body is None else Event(message.seq, read_time(message.at), message.deployment, body)


def read_ended(message: wire.Ended) -> Ended:
    """Return an end by itself."""
    return Ended(
        segment=message.segment,
        scope=message.scope,
        name=message.name,
        end_time=optional(message, "end_time"),
        elements=message.elements,
        reason=Reason.of(message.reason),
        in_flight=message.in_flight,
        by_drain=message.by_drain,
        expected=optional(message, "expected"),
    )


def _read_body(message: wire.Event) -> Body | None:
    match message.WhichOneof("kind"):
        case "ended":
            return read_ended(message.ended)
        case "advanced":
            return Advanced(message.advanced.segment, message.advanced.time)
        case "late":
            late = message.late
            return Late(late.segment, late.scope, late.name, late.producer, late.sent, late.received)
        case "stalled":
            stalled = message.stalled
            return Stalled(
                stalled.scope,
                stalled.name,
                tuple(stalled.segments),
                stalled.in_flight,
                stalled.expected,
                stalled.sent,
            )
        case "excess":
            excess = message.excess
            return Excess(excess.segment, excess.scope, excess.name, excess.expected, excess.sent)
        case "front_idle":
            return FrontIdle(message.front_idle.front, message.front_idle.idle)
        case "drain_requested":
            return DrainRequested(message.drain_requested.drain_id, read_drain_mode(message.drain_requested.mode))
        case "drained":
            return Drained(message.drained.drain_id, read_drain_mode(message.drained.mode))
        case "drain_timed_out":
            return DrainTimedOut(message.drain_timed_out.drain_id)
        case "drain_cancelled":
            return DrainCancelled(message.drain_cancelled.drain_id)
        case _:
            return None
