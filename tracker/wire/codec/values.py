"""The contract's values as messages, and back: each field of a dataclass is the message's field of that name.

So a field is declared twice, in the contract and in the proto, and nowhere else; one that is missing in the proto fails
with the first value that is written. A field ``…_ns`` holds a time or a length of time, which the message has without
that ending. Only values of another shape than their message are written and read by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from tracker.contract import events
from tracker.contract.events import Body, Ended, Event
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import AS_IT_IS, DURATIONS, MILLION, JobSpec, ModeWord, Spec
from tracker.contract.status import DrainStatus
from tracker.contract.values import DrainMode, DrainState, Mode, Numbered, Ordering, Reason
from tracker.wire.gen import tracker_pb2 as wire

_E = TypeVar("_E", bound=Numbered)
_M = TypeVar("_M", bound=Message)

NS: Final = 1_000_000_000
_LARGEST = 2**64 - 1


def optional(message: Message, field: str) -> Any:
    """Return a field's value; None: it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def enumeration(kind: type[_E], value: int, field: str) -> _E:
    """Return a wire enumeration's value, its default for unspecified.

    Raises:
        Refused: ``MALFORMED``: the enumeration has no such value.
    """
    try:
        return kind.of(value or 1)
    except ValueError:
        raise Refused(Refusal.MALFORMED, f"{field}={value} is not a known value; use one of {_named(kind)}") from None


def _named(kind: type[Numbered]) -> str:
    return ", ".join(f"{member.number} ({member.name})" for member in kind)


def count(number: int) -> int:
    """Return a sum of numbers, each of which the wire can carry: no larger than it can carry."""
    return min(number, _LARGEST)


def parse(kind: type[_M], data: bytes) -> _M:
    """Return a request.

    Raises:
        Refused: ``MALFORMED``: the bytes are not a valid request.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(
            Refusal.MALFORMED,
            f"the bytes are not a valid {kind.DESCRIPTOR.full_name} ({error}); check that the client was built from "
            "this proto and that nothing on the way cuts messages",
        ) from error


def read_time(message: Timestamp | Duration) -> int:
    """Return a time, or a length of time that a server gives, in nanoseconds."""
    return message.seconds * NS + message.nanos


def read_duration(message: Message, field: str) -> int | None:
    """Return the length of time in a field of a request, if it is set.

    Raises:
        Refused: ``MALFORMED``: it is negative, or no normal duration.
    """
    if not message.HasField(field):
        return None
    value: Duration = getattr(message, field)
    if value.seconds < 0 or not 0 <= value.nanos < NS:
        raise Refused(
            Refusal.MALFORMED, f"{field} is {value.seconds} s and {value.nanos} ns; a duration must not be negative"
        )
    return read_time(value)


def write_length(length: timedelta | None) -> Duration | None:
    """Return a length of time of a caller; None: there is none."""
    if length is None:
        return None
    message = Duration()
    message.FromTimedelta(length)
    return message


_T = TypeVar("_T")

_TIMES: Final = (Timestamp.DESCRIPTOR, Duration.DESCRIPTOR)


def write(value: Any, kind: type[_M]) -> _M:
    """Return a value as a message of a kind; of None an empty one."""
    if value is None:
        return kind()
    own: Any = type(value)
    message: Any = kind
    parts = {name: getattr(value, attribute) for name, attribute in _names(own)}
    for name, convert in _writers(own, message):
        if parts[name] is not None:
            parts[name] = convert(parts[name])
    try:
        return kind(**parts)
    except ValueError:  # a sum of numbers, each of which the wire can carry
        return kind(**{name: count(part) if type(part) is int else part for name, part in parts.items()})


def read(message: Message, kind: type[_T]) -> _T:
    """Return a server's message as a value of a kind."""
    own: Callable[[Message, type[_T]], _T] = _OWN.get(kind, _read)
    return own(message, kind)


def read_asked(message: Message, kind: Any) -> Any:
    """Return a caller's message as a value of a kind.

    Raises:
        Refused: ``MALFORMED``: an enumeration has no such value, or a length of time is negative.
    """
    return kind(*[part(message) for part in _readers(kind, message.DESCRIPTOR, True)])


def _read(message: Message, kind: Any) -> Any:
    return kind(*[part(message) for part in _readers(kind, message.DESCRIPTOR, False)])


# ---------------------------------------------------------------- field by field


def _wired(kind: Any, message: Any) -> Iterator[tuple[FieldDescriptor, Any]]:
    """Yield for each of a dataclass's fields the message's field of that name, and the value's type."""
    hints = get_type_hints(kind)
    for name, attribute in _names(kind):
        yield message.fields_by_name[name], hints[attribute]


@cache
def _names(kind: Any) -> list[tuple[str, str]]:
    return [(each.name.removesuffix("_ns"), each.name) for each in fields(kind)]


@cache
def _writers(kind: Any, message: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the parts of a message that are not the value's own, with what makes them of these."""
    writers = ((field.name, _writer(field, hint)) for field, hint in _wired(kind, message.DESCRIPTOR))
    return [(name, convert) for name, convert in writers if convert is not None]


def _writer(field: FieldDescriptor, hint: Any) -> Callable[[Any], Any] | None:
    if field.enum_type is not None:
        return attrgetter("number")
    if field.message_type is None or get_origin(hint) is Mapping:
        return None
    kind = GetMessageClass(field.message_type)
    one = partial(_write_ns if kind.DESCRIPTOR in _TIMES else _write_part, kind)
    return (lambda values: [one(value) for value in values]) if get_origin(hint) is tuple else one


def _write_ns(kind: Any, ns: int) -> Message:
    message: Message = kind(seconds=ns // NS, nanos=ns % NS)
    return message


def _write_part(kind: type[Message], value: Any) -> Message:
    return write_job_spec(value) if kind is wire.JobSpec else write(value, kind)


@cache
def _readers(kind: Any, message: Any, asked: bool) -> list[Callable[[Any], Any]]:
    return [_reader(field, hint, asked) for field, hint in _wired(kind, message)]


def _reader(field: FieldDescriptor, hint: Any, asked: bool) -> Callable[[Any], Any]:
    """Return what finds a value in a message.

    Args:
        hint: the value's type; a union with None where the field may not be set.
    """
    name, parts = field.name, get_args(hint)
    if get_origin(hint) is Mapping:
        return lambda message: dict(getattr(message, name))
    if get_origin(hint) is tuple:
        if field.message_type is None:
            return lambda message: tuple(getattr(message, name))
        return lambda message: tuple([read(each, parts[0]) for each in getattr(message, name)])
    kind = parts[0] if parts else hint
    if field.enum_type is not None and asked:
        return lambda message: enumeration(kind, getattr(message, name), name)
    if field.enum_type is not None:
        return lambda message: _read_word(kind, getattr(message, name))
    if field.message_type is not None and asked:
        return lambda message: read_duration(message, name)
    convert: Callable[[Any], Any] | None = None
    if field.message_type is not None:
        convert = read_time if kind is int else lambda part: read(part, kind)
    if not parts:
        return attrgetter(name) if convert is None else lambda message: convert(getattr(message, name))
    if convert is not None:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    if field.has_presence:
        return lambda message: optional(message, name)
    return lambda message: getattr(message, name) or None


def _read_word(kind: type[Numbered], number: int) -> Numbered:
    """Return a word; a server that gives none knows only the first, and of modes a client knows only its own."""
    if kind is Mode and number not in Mode.by_number():
        return Mode.STAGED
    return kind.of(number or 1) if kind in (Mode, DrainMode) else kind.of(number)


def _read_drain(message: wire.DrainStatus, _: object) -> DrainStatus:
    drain: DrainStatus = _read(message, DrainStatus)
    return replace(drain, mode=None) if drain.state is DrainState.NOT_DRAINING else drain


# ---------------------------------------------------------------- specifications


def read_spec(spec: wire.JobSpec) -> Spec:
    """Return a specification for the core.

    Raises:
        Refused: ``MALFORMED``: its ordering or a length of time is none.
    """
    return _spec(spec, enumeration(Ordering, spec.ordering, "ordering"))


def _spec(message: wire.JobSpec, ordering: Ordering) -> Spec:
    same: dict[str, Any] = {name: getattr(message, name) for name in AS_IT_IS}
    durations: dict[str, Any] = {name: read_duration(message, name) for name in DURATIONS}
    return Spec(
        segments=tuple((segment.name, tuple(segment.feeds)) for segment in message.segments),
        fronts=tuple(message.fronts),
        ordering=ordering,
        front_segments=tuple((each.front, tuple(each.segments)) for each in message.front_segments),
        state_segments=tuple(segment.name for segment in message.segments if segment.state),
        threshold_ppm=message.threshold_ppm,
        **same,
        **durations,
    )


def write_job_spec(spec: JobSpec) -> wire.JobSpec:
    """Return a specification.

    Raises:
        ValueError: an ordering that does not exist, or a segment of state that is none of the job's.
    """
    for name in names_of(spec.state_segments):
        if name not in spec.segments:
            raise ValueError(f"state_segments names {name!r}, which is not one of the job's segments")
    fed = spec.fronts.items() if isinstance(spec.fronts, Mapping) else ()
    same: dict[str, Any] = {name: getattr(spec, name) for name in AS_IT_IS}
    durations: dict[str, Any] = {name: write_length(getattr(spec, name)) for name in DURATIONS}
    return wire.JobSpec(
        segments=[
            wire.Segment(name=name, feeds=names_of(feeds), state=name in spec.state_segments)
            for name, feeds in spec.segments.items()
        ],
        fronts=names_of(list(spec.fronts) if isinstance(spec.fronts, Mapping) else spec.fronts),
        front_segments=[
            wire.FrontSegments(front=front, segments=names_of(segments)) for front, segments in fed if segments
        ],
        ordering=wire.Ordering.ValueType(_number(Ordering, spec.ordering, "ordering")),
        threshold_ppm=round((spec.threshold or 0) * MILLION),
        **same,
        **durations,
    )


def names_of(column: Sequence[str]) -> Sequence[str]:
    """Return a column of names.

    Raises:
        TypeError: a single string, which would pass for a sequence of names of one letter each.
    """
    if isinstance(column, str):
        raise TypeError(f"expected a sequence of names, got the string {column!r}; put the name into a list")
    return column


def _read_job_spec(message: wire.JobSpec, _: object) -> JobSpec:
    return JobSpec.of(_spec(message, Ordering.by_number().get(message.ordering, Ordering.NONE)))


#: Values of another shape than their message.
_OWN: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {JobSpec: _read_job_spec, DrainStatus: _read_drain}


def write_mode(mode: ModeWord) -> wire.Mode.ValueType:
    """Return a mode of a caller.

    Raises:
        ValueError: a mode that does not exist.
    """
    return wire.Mode.ValueType(_number(Mode, mode, "mode"))


def _number(kind: type[Numbered], word: str, field: str) -> int:
    for member in kind:
        if member == word:
            return member.number
    raise ValueError(f"{field}={word!r} is not a known value; use one of {', '.join(repr(str(each)) for each in kind)}")


# A server writes an event for every watcher, so messages of events are filled field by field: that takes half as long
# as making one from the parts of another.

#: By the message's field, the kinds of which there are so few that they are written field by field of their class.
_FEW: dict[str, tuple[type[Body], type[Message]]] = {
    "late": (events.Late, wire.Late),
    "stalled": (events.Stalled, wire.Stalled),
    "excess": (events.Excess, wire.Excess),
    "front_idle": (events.FrontIdle, wire.FrontIdle),
    "drain_requested": (events.DrainRequested, wire.DrainEvent),
    "drained": (events.Drained, wire.DrainEvent),
    "drain_timed_out": (events.DrainTimedOut, wire.DrainEvent),
    "drain_cancelled": (events.DrainCancelled, wire.DrainEvent),
    "advanced": (events.Advanced, wire.Advanced),
}
_FIELDS = {kind: (field, message) for field, (kind, message) in _FEW.items()}


def write_events(several: Sequence[Event]) -> wire.Event:
    """Return events, at least one, as one message."""
    message = write_event(several[0])
    for event in several[1:]:
        _fill(message.more.add(), event)
    return message


def write_event(event: Event) -> wire.Event:
    """Return an event."""
    message = wire.Event()
    _fill(message, event)
    return message


def _fill(message: wire.Event, event: Event) -> None:
    _fill_head(message, event)
    if isinstance(event.kind, Ended):
        _fill_ended(message.ended, event.kind)
    else:
        field, kind = _FIELDS[type(event.kind)]
        getattr(message, field).CopyFrom(write(event.kind, kind))


def write_bookmark(event: Event) -> wire.Event:
    """Return a mark for a watcher whose filters let nothing through up to an event."""
    message = wire.Event()
    _fill_head(message, event)
    message.bookmark.SetInParent()
    return message


def _fill_head(message: wire.Event, event: Event) -> None:
    message.seq = event.seq
    message.deployment = event.deployment
    message.at.seconds = event.at_ns // NS
    message.at.nanos = event.at_ns % NS


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
    field = message.WhichOneof("kind")
    if field == "ended":
        return read_ended(message.ended)
    return read(getattr(message, field), _FEW[field][0]) if field in _FEW else None
