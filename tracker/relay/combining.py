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

from tracker.contract.values import NO_END_TIME
from tracker.wire.columns import I8, U4, U8, pack_i8, pack_u4, pack_u8, unpack_i8, unpack_u4, unpack_u8
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


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A report that may be combined with others of its key."""

    key: Key
    units: tuple[str, ...]
    scopes: Sequence[str]
    names: Sequence[str]
    scope_index: U4
    end_times: I8  #: one for each name
    substream_ids: U8
    log_id: str  #: empty without ids
    want_ids: bool
    segments: Sequence[str]
    substream_index: U4
    segment_index: U4
    xor: U8
    sent: U4
    received: U4
    size: int  #: bytes on the wire

    @classmethod
    def read(cls, data: bytes) -> Part | None:
        """Parse a report; return None if it must not be combined, so that the relay passes its bytes on unchanged."""
        try:
            request = wire.ReportRequest.FromString(data)
        except DecodeError:
            return None
        units = tuple(request.units)
        apart = request.keep_apart or request.commit or len(request.promises) > 0
        # An unknown field may be important, so it must not get lost.
        if apart or not units or len(set(units)) < len(units) or len(UnknownFieldSet(request)):
            return None
        names = len(request.names)
        part = cls(
            key=Key(request.job, request.producer, request.run, request.epoch),
            units=units,
            scopes=request.scopes,
            names=request.names,
            scope_index=unpack_u4(request.scope_index),
            end_times=unpack_i8(request.end_times) if request.end_times else np.full(names, NO_END_TIME, np.int64),
            substream_ids=unpack_u8(request.substream_ids),
            log_id=request.log_id if request.substream_ids else "",
            want_ids=request.want_ids,
            segments=request.segments,
            substream_index=unpack_u4(request.substream_index),
            segment_index=unpack_u4(request.segment_index),
            xor=unpack_u8(request.xor),
            sent=unpack_u4(request.sent),
            received=unpack_u4(request.received),
            size=len(data),
        )
        return part if part._is_whole(request.entry_count) else None

    def _is_whole(self, entries: int) -> bool:
        columns = (self.substream_index, self.segment_index, self.xor, self.sent, self.received)
        return (
            all(len(column) == entries for column in columns)
            and len(self.scope_index) == len(self.end_times) == len(self.names)
            and _below(self.scope_index, len(self.scopes))
            and _below(self.substream_index, len(self.names) + len(self.substream_ids))
            and _below(self.segment_index, len(self.segments))
            and (bool(self.log_id) or not len(self.substream_ids))
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
        sent, received = self._sent + int(part.sent.sum()), self._received + int(part.received.sum())
        size = self._bytes + part.size
        if self._bytes and (
            size > _MOST_BYTES
            or max(sent, received) > _MOST_COUNTED
            or (self._log_id and part.log_id and self._log_id != part.log_id)
            or not self._units.isdisjoint(part.units)
        ):
            return False
        self._units.update(part.units)
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
    ids, of_ids = np.unique(np.concatenate([part.substream_ids for part in parts]), return_inverse=True)
    cells, first_id = [], 0
    for part, names in zip(parts, places, strict=True):
        past_id = first_id + len(part.substream_ids)
        substreams = np.concatenate([names, of_ids[first_id:past_id] + len(named)]).astype(np.uint64)
        first_id = past_id
        numbers = np.array([segments.setdefault(segment, len(segments)) for segment in part.segments], np.uint64)
        if len(part.xor):
            cells.append(substreams[part.substream_index] << _SEGMENT_BITS | numbers[part.segment_index])
    cell, xor, sent, received = _added_up(np.concatenate(cells) if cells else np.empty(0, np.uint64), parts)
    end_times = np.array([end_time for _, _, end_time in named], np.int64)
    key = parts[0].key
    request = columns_pb2.ReportRequest(
        job=key.job,
        producer=key.producer,
        run=key.run,
        epoch=key.epoch,
        units=[unit for part in parts for unit in part.units],
        scopes=list(scopes),
        names=[name for _, name, _ in named],
        scope_index=pack_u4([scope for scope, _, _ in named]),
        end_times=pack_i8(end_times) if (end_times != NO_END_TIME).any() else b"",
        substream_ids=pack_u8(ids),
        log_id=next((part.log_id for part in parts if part.log_id), ""),
        want_ids=any(part.want_ids for part in parts),
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
    numbers = [scopes.setdefault(scope, len(scopes)) for scope in part.scopes]
    rows = zip(part.scope_index.tolist(), part.names, part.end_times.tolist(), strict=True)
    return np.fromiter(
        (named.setdefault((numbers[scope], name, end_time), len(named)) for scope, name, end_time in rows),
        np.int64,
        len(part.names),
    )


def _added_up(cells: U8, parts: Sequence[Part]) -> tuple[U8, U8, U8, U8]:
    """Add up the entries of all parts, so that each (substream, segment) appears once."""
    xor, sent, received = (
        np.concatenate([part.xor for part in parts]),
        np.concatenate([part.sent for part in parts]).astype(np.uint64),
        np.concatenate([part.received for part in parts]).astype(np.uint64),
    )
    if not len(cells):
        return cells, xor, sent, received
    order = np.argsort(cells, kind="stable")
    cells = cells[order]
    first = np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]]))
    return (
        cells[first],
        np.bitwise_xor.reduceat(xor[order], first),
        np.add.reduceat(sent[order], first),
        np.add.reduceat(received[order], first),
    )


def shares(parts: Sequence[Part], combined: Combined, answer: bytes) -> list[bytes | None]:
    """Return the answer for each part's caller: the same that the caller would have got for its report alone.

    Args:
        parts: the reports that were combined.
        answer: the tracker's answer to it.

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
    for part, places in zip(parts, combined.places, strict=True):
        share = columns_pb2.ReportResponse(outcome=response.outcome, last_seq=response.last_seq)
        if part.want_ids and len(ids):
            share.substream_ids = pack_u8(ids[places])
            share.log_id = response.log_id
        own.append(share.SerializeToString())
    return own


def _share_of_duplicates(part: Part, duplicates: frozenset[str], last_seq: int) -> bytes | None:
    own = [unit for unit in part.units if unit in duplicates]
    if not own:
        return None
    share = columns_pb2.ReportResponse(outcome=wire.ReportResponse.DUPLICATE, last_seq=last_seq)
    if len(own) < len(part.units):
        share.outcome = wire.ReportResponse.PARTIAL_DUPLICATE
        share.duplicate_units.extend(own)
    return share.SerializeToString()
