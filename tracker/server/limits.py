"""The limits on what callers may ask for, the counts of what requests hold, and the refusals of those that exceed one.

Limits prevent one caller's mistake from taking the server down for all. They belong to the server, not to the state:
they are checked before a command is accepted, so changing a limit at a restart never changes the state that a journal
gives.

A message of a few megabytes can become gigabytes of objects: two bytes are enough for an empty string. So the server
first walks over the fields of a request, unparsed, and counts the repeated ones. It refuses the request as soon as a
count exceeds its limit. The messages' own descriptors determine which fields are counted, so new fields of the contract
are counted without further work. `_LIMITS` gives the limit of each. The walk checks only sizes: if the bytes are not a
valid message, the parser refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import islice

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tracker.contract.commands import Command, Commit, DefineJob, Report, Subscribe
from tracker.contract.refusal import Refusal, Refused
from tracker.wire.gen.tracker_pb2 import ReportRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits, each with its default.

    >>> Limits().max_jobs
    10000
    """

    max_message_bytes: int = 16 << 20  #: of one request
    max_question_bytes: int = 1 << 20  #: of one request that does not report, commit or define a job
    max_spec_bytes: int = 8 << 20  #: of one request that defines a job
    max_calls: int = 5_000  #: under way at once, beside watches, waits and streams of reports
    max_report_streams: int = 1_000  #: under way at once
    max_report_entries: int = 1_000_000  #: of one report
    max_report_substreams: int = 1_000_000  #: substreams that one report names, by name or id
    max_report_units: int = 100_000  #: of one report, and of a manifest
    max_promises: int = 100_000  #: of one report or commit
    max_jobs: int = 10_000
    max_segments: int = 1_000  #: of one job
    max_feeds: int = 50_000  #: of all segments of one job together
    max_fronts: int = 10_000  #: of one job
    max_front_segments: int = 200_000  #: of one job: its fronts that feed only some segments, times its segments
    max_producers: int = 10_000  #: of one job
    max_open_substreams: int = 20_000_000  #: of one job
    max_subscriptions: int = 100  #: of one job, expired ones too
    max_subscribed_names: int = 100_000  #: segments and scopes that all subscriptions of one job ask for
    max_subscription_events: int = 10_000_000  #: the most that a subscription's max_events may be
    max_filter_names: int = 10_000  #: segments and scopes that one reader or subscription asks for
    max_cells: int = 40_000_000  #: of one job: its open and staged substreams times its segments
    max_staged_substreams: int = 5_000_000  #: of one job: named by reports, but not known
    max_staged_units: int = 5_000_000  #: of one job: units of staged epochs, and the epochs
    max_staged_entries: int = 50_000_000  #: of one job: entries and promises of staged epochs
    max_expected: int = 10_000_000  #: of one job: numbers of elements that fronts expect
    max_scope_frontiers: int = 1_000_000  #: of one job: scopes with frontiers of their own times fronts
    max_tombstones: int = 500_000_000  #: of one job: names of ended and forgotten substreams, 16 bytes each
    max_events: int = 50_000_000  #: of one job: events that are kept
    max_pending_drains: int = 10_000  #: drains of deployments that are not defined yet
    max_watchers: int = 10_000  #: watches and waits under way
    max_connection_streams: int = 20_000  #: calls and streams under way of one connection; the next ones wait
    max_watched_names: int = 1_000_000  #: in the filters of all watches together
    max_field_bytes: int = 64 << 10  #: of one field that is not a list: names have at most 512
    max_repeated: int = 10_000  #: of any other list in a request
    max_pending_bytes: int = 256 << 20  #: of requests that are being received, parsed, journaled or carried out
    max_metric_jobs: int = 50  #: jobs with series of their own in the metrics; the others are summed, not refused
    max_metric_names: int = 20  #: segments and fronts of one job likewise
    max_page: int = 10_000  #: events or substreams in one answer; more are not refused, but follow on the next page

    def by_name(self) -> dict[str, int]:
        """Return all limits by their names."""
        return asdict(self)

    def check(self, name: str, wanted: int, remedy: str) -> None:
        """Refuse a request that exceeds a limit.

        Raises:
            Refused: ``LIMIT``: `wanted` is above the limit.

        >>> Limits(max_jobs=2).check("max_jobs", 3, "delete one first")
        Traceback (most recent call last):
        tracker.contract.refusal.Refused: LIMIT: limit max_jobs=2 exceeded: the request needs 3; delete one first
        """
        limit = getattr(self, name)
        if wanted > limit:
            message = f"limit {name}={limit} exceeded: the request needs {wanted}; {remedy}"
            raise Refused(Refusal.LIMIT, message)


def parse_limits(settings: list[str]) -> Limits:
    """Read limits from settings; the others keep their defaults.

    Args:
        settings: of the form ``NAME=NUMBER``.

    Raises:
        ValueError: a setting does not name a limit, or its number is not above 0.

    >>> parse_limits(["max_jobs=5"]).max_jobs
    5
    """
    known = [each.name for each in fields(Limits)]
    values = {}
    for setting in settings:
        name, _, number = setting.partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is not a limit; use one of {', '.join(known)}")
        if not number.isdecimal() or int(number) == 0:
            raise ValueError(f"{setting!r} is not a valid limit; write NAME=NUMBER with a number above 0")
        values[name] = int(number)
    return Limits(**values)


# ---------------------------------------------------------------- counts of what a request holds

_PIECE = 1 << 18  # bytes that are parsed at once: this takes a few milliseconds, whatever they hold
_OTHER = "max_repeated"
_LONGEST = 4096  # bytes: a field that is not longer cannot exceed its limit

#: Message, fields, the limit of each, and what the caller can do about it. Other repeated fields have `max_repeated`.
_RULES = (
    ("ReportRequest", "units", "max_report_units", "split the report"),
    ("ReportRequest", "scopes names scope_index end_times substream_ids", "max_report_substreams", "split the report"),
    ("ReportRequest", "segments", "max_segments", "name each segment once"),
    (
        "ReportRequest",
        "substream_index segment_index xor sent received",
        "max_report_entries",
        "split the report into several units",
    ),
    ("ReportRequest", "promises", "max_promises", "promise a frontier instead of closing by name, or split the report"),
    ("CommitRequest", "promises", "max_promises", "promise a frontier, or split the commit"),
    ("Units", "names", "max_report_units", "use smaller epochs"),
    ("JobSpec", "segments", "max_segments", "combine segments"),
    ("Segment", "feeds", "max_feeds", "combine segments"),
    ("JobSpec", "fronts front_segments", "max_fronts", "combine fronts"),
    ("FrontSegments", "segments", "max_feeds", "leave the segments out if the front feeds most of them"),
    ("WatchRequest", "segments scopes", "max_filter_names", "leave the filter out, or use several watches"),
    ("ListEventsRequest", "segments scopes", "max_filter_names", "leave the filter out, or make several calls"),
    (
        "SubscribeRequest",
        "segments scopes",
        "max_filter_names",
        "name fewer segments and scopes, or leave the filter out",
    ),
    ("AwaitThroughRequest", "names", "max_filter_names", "ask for fewer substreams in one call"),
    ("ListSubstreamsRequest", "scopes", "max_filter_names", "leave the filter out, or make several calls"),
)
_LIMITS = {(message, name): (limit, remedy) for message, names, limit, remedy in _RULES for name in names.split()}
#: Fields that are counted together.
_TOGETHER = {("ReportRequest", "substream_ids"): ("ReportRequest", "names")}

# The first byte of a promise's key in a report. Its field number is above 15, so a second byte follows, and every
# encoding of the key begins with this one, even an encoding that is longer than necessary.
_PROMISE = ReportRequest.DESCRIPTOR.fields_by_name["promises"].number
_PROMISE_KEY = bytes([_PROMISE << 3 & 127 | 2 | 128])
_WALKED = 32  # fields: walking over more would cost more than looking at their bytes

_WIDTH = {
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_DOUBLE: 8,
}
_UNPACKABLE = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)


@dataclass(slots=True)
class _Counted:
    """A repeated field, and the limit for it."""

    key: tuple[str, str]
    limit: str
    remedy: str
    width: int  #: bytes of one value in a packed column; 0: the field is never packed


@dataclass(slots=True)
class Shape:
    """The fields that are counted in a message."""

    repeated: dict[int, _Counted] = field(default_factory=dict)
    nested: dict[int, Shape] = field(default_factory=dict)


@cache
def shape_of(message: Descriptor) -> Shape:
    """Return the fields that are counted in messages of a kind.

    >>> from tracker.wire.gen import tracker_pb2 as wire
    >>> sorted(shape_of(wire.CommitRequest.DESCRIPTOR).nested)
    [5]
    """
    shape = Shape()
    for each in message.fields:
        if each.is_repeated:
            key = (message.name, each.name)
            limit, remedy = _LIMITS.get(key, (_OTHER, "send a smaller request"))
            width = 0 if each.type in _UNPACKABLE else _WIDTH.get(each.type, 1)
            shape.repeated[each.number] = _Counted(_TOGETHER.get(key, key), limit, remedy, width)
        if each.type == FieldDescriptor.TYPE_MESSAGE:
            assert each.message_type is not None
            inner = shape_of(each.message_type)
            if inner.repeated or inner.nested:
                shape.nested[each.number] = inner
    return shape


def check_counts(data: bytes, shape: Shape, limits: Limits) -> None:
    """Refuse a request that holds more than the limits allow.

    >>> from tracker.wire.gen import tracker_pb2 as wire
    >>> small = Limits(max_segments=1)
    >>> spec = wire.JobSpec(segments=[wire.Segment(name="a"), wire.Segment(name="b")])
    >>> request = wire.DefineJobRequest(spec=spec)
    >>> check_counts(request.SerializeToString(), shape_of(request.DESCRIPTOR), small)
    Traceback (most recent call last):
    tracker.contract.refusal.Refused: LIMIT: limit max_segments=1 exceeded: the request needs 2; combine segments
    """
    counts: dict[tuple[str, str], int] = {}
    others = 0
    left = [(0, len(data), shape)]
    while left:
        at, end, inside = left.pop()
        for number, kind, start, stop in _fields(data, at, end):
            counted = inside.repeated.get(number)
            is_column = counted is not None and counted.width > 0
            if stop - start > _LONGEST and number not in inside.nested and not is_column:
                limits.check("max_field_bytes", stop - start, "a name has at most 512 bytes")
            if counted is not None:
                more = (stop - start) // counted.width if counted.width and kind == 2 else 1
                count = counts[counted.key] = counts.get(counted.key, 0) + more
                if count > getattr(limits, counted.limit):
                    limits.check(counted.limit, count, counted.remedy)
            else:
                others += 1
                if others > limits.max_repeated:
                    limits.check(
                        "max_repeated", others, "give each field once; check that the client was built from this proto"
                    )
            if kind == 2 and number in inside.nested:
                left.append((start, stop, inside.nested[number]))


def most_promises(data: bytes) -> int:
    """Return an upper bound for the number of promises in a report.

    A report in columns has few fields: a walk over the first ones counts exactly. In what follows them there cannot be
    more promises than bytes with which a promise's key begins.

    >>> from tracker.wire.gen import tracker_pb2 as wire
    >>> promises = [wire.Promise(finish="source")] * 3
    >>> most_promises(wire.ReportRequest(xor=bytes(range(256)), promises=promises).SerializeToString())
    3
    """
    count = end = 0
    for number, _, _, stop in islice(_fields(data, 0, len(data)), _WALKED):
        count += number == _PROMISE
        end = stop
    return count + data.count(_PROMISE_KEY, end)


def least_limit(limits: Limits) -> int:
    """Return a size in bytes up to which no request can exceed any limit: each counted item takes at least a byte."""
    known = limits.by_name()
    return min(known[limit] for limit, _ in _LIMITS.values())


def check_command(command: Command, limits: Limits) -> None:
    """Do what `check_counts` does, for a request that was small enough to be parsed first."""
    match command:
        case Report():
            entries = max(len(command.xor), len(command.sent), len(command.received), len(command.substream_index))
            substreams = max(len(command.names) + len(command.substream_ids), len(command.scopes))
            _check(limits, "ReportRequest", "xor", entries)
            _check(limits, "ReportRequest", "names", substreams)
            _check(limits, "ReportRequest", "units", len(command.units))
            _check(limits, "ReportRequest", "segments", len(command.segments))
            _check(limits, "ReportRequest", "promises", len(command.promises))
        case Commit():
            _check(limits, "Units", "names", len(command.units or ()))
            _check(limits, "CommitRequest", "promises", len(command.promises))
        case DefineJob(spec):
            _check(limits, "JobSpec", "segments", len(spec.segments))
            _check(limits, "Segment", "feeds", sum(len(feeds) for _, feeds in spec.segments))
            _check(limits, "JobSpec", "fronts", len(spec.fronts))
        case Subscribe():
            _check(limits, "SubscribeRequest", "segments", len(command.segments))
            _check(limits, "SubscribeRequest", "scopes", len(command.scopes))


def _check(limits: Limits, message: str, field: str, count: int) -> None:
    limit, remedy = _LIMITS[message, field]
    if count > getattr(limits, limit):
        limits.check(limit, count, remedy)


def pieces(data: bytes, shape: Shape) -> Iterator[bytes]:
    """Cut a message into small messages, which give the whole when merged in this order.

    The first has the fields that are not repeated, the others have the repeated fields in order. A single large field
    stays in one piece; the parser reads a packed column very fast.
    """
    rest = []
    runs = []
    begin = last = 0  # where the current run of repeated fields begins and ends
    end = 0  # where the last field ends
    for number, _, start, stop in _fields(data, 0, len(data), heads=True):
        end = stop
        if number not in shape.repeated:
            rest.append(data[start:stop])
            if last > begin:
                runs.append((begin, last))
            begin = last = stop
            continue
        if stop - begin > _PIECE and last > begin:
            runs.append((begin, last))
            begin = start
        last = stop
    if last > begin:
        runs.append((begin, last))
    rest.append(data[end:])  # bytes that are not a field: the parser refuses them
    yield b"".join(rest)
    for begin, last in runs:
        yield data[begin:last]


def _fields(data: bytes, at: int, end: int, heads: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, start and stop of each field's content, up to the first bytes that are not a field.

    Args:
        heads: give the start of the whole field, including its key and length, instead of the content's.
    """
    try:
        while at < end:
            first = at
            key = data[at]
            at += 1
            if key > 127:
                key, at = _varint(data, first)
            kind = key & 7
            start = at
            if kind == 2:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = _varint(data, start)
                start = at
                at += size
            elif kind == 0:
                while data[at] > 127:
                    at += 1
                at += 1
            elif kind == 5:
                at += 4
            elif kind == 1:
                at += 8
            elif kind not in (3, 4):  # the begin and end of a group; the fields in between are walked like others
                return
            if at > end:
                return
            yield key >> 3, kind, first if heads else start, at
    except IndexError:
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError
