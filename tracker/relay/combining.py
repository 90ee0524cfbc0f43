"""Pure functions that combine several reports of one epoch into one and split the answer, without any waiting.

Why the tracker's state is the same: reports are combined only while none of them is answered, so no caller can tell in
which order they would have been applied. They belong to one (job, producer, run, epoch), hold only entries, and have no
unit in common. Entries of an epoch commute and add up. Promises and commits do not, so a report with one of these is
sent alone; so is a report that its sender wants kept apart. A report that does not follow the contract is sent alone,
too: the tracker has to refuse it.

There is one thing that the tracker cannot do with a combined report: accept a part of it. So `shares` passes an answer
that names some units as duplicates to the callers that reported these units, and the other reports are sent again. For
the same reason, reports of which an engine may drop single units are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from tracker.client.report import Rows, combined
from tracker.contract.commands import Report
from tracker.contract.values import NO_END_TIME
from tracker.wire import codec
from tracker.wire.columns import I8, U4, pack_i8, pack_u4, pack_u8, unpack_u8
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

_MOST_COUNTED = 2**32 - 1  # the largest count of one entry
_MOST_BYTES = 2 << 20  # of the reports in a combined one: more would save next to nothing, and delay others
_SEGMENT_BITS = np.uint64(32)


class Key(NamedTuple):
    """Values that reports must share to be combined."""

    job: str
    producer: str
    run: str
    epoch: int


class Part(NamedTuple):
    """A report that may be combined with others of its key."""

    key: Key
    report: Report
    end_times: I8  #: one for each name
    size: int  #: bytes on the wire

    @classmethod
    def read(cls, data: bytes) -> Part | None:
        """Parse a report; return None if it must not be combined, so that the relay passes its bytes on unchanged."""
        try:
            request = wire.ReportRequest.FromString(data)
        except DecodeError:
            return None
        units = request.units
        apart = request.keep_apart or request.commit or len(request.promises) > 0
        # An unknown field may be important, so it must not get lost.
        if apart or not units or len(set(units)) < len(units) or len(UnknownFieldSet(request)):
            return None
        report = codec.read_report(request)
        key = Key(report.job, report.producer, report.run, report.epoch)
        end_times = report.end_times if len(report.end_times) else np.full(len(report.names), NO_END_TIME, np.int64)
        return cls(key, report, end_times, len(data)) if _is_whole(report, end_times) else None

    @property
    def log_id(self) -> str:
        """The log that its ids are of; empty without ids."""
        return self.report.log_id if len(self.report.substream_ids) else ""


def _is_whole(report: Report, end_times: I8) -> bool:
    columns = (report.substream_index, report.segment_index, report.xor, report.sent, report.received)
    return (
        all(len(column) == report.entry_count for column in columns)
        and len(report.scope_index) == len(end_times) == len(report.names)
        and _below(report.scope_index, len(report.scopes))
        and _below(report.substream_index, len(report.names) + len(report.substream_ids))
        and _below(report.segment_index, len(report.segments))
        and (bool(report.log_id) or not len(report.substream_ids))
    )


def _below(indexes: U4, size: int) -> bool:
    return not len(indexes) or int(indexes.max()) < size


class Capacity:
    """Room for more reports in one combined report of a key."""

    def __init__(self) -> None:
        self._units: set[str] = set()
        self._log_id = ""
        self._sent = self._received = self._bytes = 0

    def take(self, part: Part) -> bool:
        """Add a report; return False if it needs another combined report.

        Two reports of the same unit cannot be in one message, nor can ids of two logs. No count may overflow, and the
        number of bytes is bounded.
        """
        sent, received = self._sent + int(part.report.sent.sum()), self._received + int(part.report.received.sum())
        size = self._bytes + part.size
        if self._bytes and (
            size > _MOST_BYTES
            or max(sent, received) > _MOST_COUNTED
            or (self._log_id and part.log_id and self._log_id != part.log_id)
            or not self._units.isdisjoint(part.report.units)
        ):
            return False
        self._units.update(part.report.units)
        self._log_id = self._log_id or part.log_id
        self._sent, self._received, self._bytes = sent, received, size
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """One report with the entries of several."""

    request: bytes
    places: Sequence[NDArray[np.int64]]  #: for each part, the positions of its names among the request's


def combine(parts: Sequence[Part]) -> Combined:
    """Combine reports into one.

    Args:
        parts: reports of one key that fit into one `Capacity`.
    """
    scopes: dict[str, int] = {}
    segments: dict[str, int] = {}
    named: dict[tuple[int, str, int], int] = {}
    places = [_enter_names(part, scopes, named) for part in parts]
    ids, of_ids = np.unique(np.concatenate([part.report.substream_ids for part in parts]), return_inverse=True)
    entries: list[Rows] = []
    first_id = 0
    for part, names in zip(parts, places, strict=True):
        report = part.report
        past_id = first_id + len(report.substream_ids)
        substreams = np.concatenate([names, of_ids[first_id:past_id] + len(named)]).astype(np.uint64)
        first_id = past_id
        numbers = np.array([segments.setdefault(segment, len(segments)) for segment in report.segments], np.uint64)
        if len(report.xor):
            cells = substreams[report.substream_index] << _SEGMENT_BITS | numbers[report.segment_index]
            entries.append((cells, report.xor, report.sent.astype(np.int64), report.received.astype(np.int64)))
    cell, xor, sent, received = combined(entries)
    end_times = np.array([end_time for _, _, end_time in named], np.int64)
    key = parts[0].key
    request = columns_pb2.ReportRequest(
        job=key.job,
        producer=key.producer,
        run=key.run,
        epoch=key.epoch,
        units=[unit for part in parts for unit in part.report.units],
        scopes=list(scopes),
        names=[name for _, name, _ in named],
        scope_index=pack_u4([scope for scope, _, _ in named]),
        end_times=pack_i8(end_times) if (end_times != NO_END_TIME).any() else b"",
        substream_ids=pack_u8(ids),
        log_id=next((part.log_id for part in parts if part.log_id), ""),
        want_ids=any(part.report.want_ids for part in parts),
        segments=list(segments),
        substream_index=pack_u4(cell >> _SEGMENT_BITS),
        segment_index=pack_u4(cell & np.uint64(2**32 - 1)),
        xor=pack_u8(xor),
        sent=pack_u4(sent),
        received=pack_u4(received),
        entry_count=len(cell),
    )
    return Combined(request.SerializeToString(), places)


def _enter_names(part: Part, scopes: dict[str, int], named: dict[tuple[int, str, int], int]) -> NDArray[np.int64]:
    """Enter a part's names into the tables and return their positions there.

    A name with two end times gets two positions, so that the tracker notices the conflict.
    """
    numbers = [scopes.setdefault(scope, len(scopes)) for scope in part.report.scopes]
    rows = zip(part.report.scope_index.tolist(), part.report.names, part.end_times.tolist(), strict=True)
    return np.fromiter(
        (named.setdefault((numbers[scope], name, end_time), len(named)) for scope, name, end_time in rows),
        np.int64,
        len(part.end_times),
    )


def shares(parts: Sequence[Part], together: Combined, answer: bytes) -> list[bytes | None]:
    """Return the answer for each part's caller: the same that the caller would have got for its report alone.

    Returns:
        An answer for each part, or None for a part that has to be sent again: after PARTIAL_DUPLICATE the tracker has
        applied nothing, and this part is not a duplicate.
    """
    response = wire.ReportResponse.FromString(answer)
    if response.outcome == wire.ReportResponse.PARTIAL_DUPLICATE:
        duplicates = frozenset(response.duplicate_units)
        return [_share_of_duplicates(part, duplicates, response.last_seq) for part in parts]
    ids = unpack_u8(response.substream_ids)
    own: list[bytes | None] = []
    for part, places in zip(parts, together.places, strict=True):
        share = columns_pb2.ReportResponse(outcome=response.outcome, last_seq=response.last_seq)
        if part.report.want_ids and len(ids):
            share.substream_ids = pack_u8(ids[places])
            share.log_id = response.log_id
        own.append(share.SerializeToString())
    return own


def _share_of_duplicates(part: Part, duplicates: frozenset[str], last_seq: int) -> bytes | None:
    own = [unit for unit in part.report.units if unit in duplicates]
    if not own:
        return None
    share = columns_pb2.ReportResponse(outcome=wire.ReportResponse.DUPLICATE, last_seq=last_seq)
    if len(own) < len(part.report.units):
        share.outcome = wire.ReportResponse.PARTIAL_DUPLICATE
        share.duplicate_units.extend(own)
    return share.SerializeToString()
