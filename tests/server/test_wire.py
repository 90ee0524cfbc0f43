"""The two declarations of a report agree, and whatever a legal protobuf writer sends is read the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tracker.contract.commands import Report
from tracker.wire.codec import Method, pack_i8, pack_u4, pack_u8, read_command
from tracker.wire.gen import columns_pb2, tracker_pb2

PACKED = {FieldDescriptor.TYPE_FIXED32: pack_u4, FieldDescriptor.TYPE_FIXED64: pack_u8}
PACKED |= {FieldDescriptor.TYPE_SFIXED64: pack_i8}


@pytest.mark.parametrize(
    ("contract", "columns"),
    [
        (tracker_pb2.ReportRequest.DESCRIPTOR, columns_pb2.ReportRequest.DESCRIPTOR),
        (tracker_pb2.ReportResponse.DESCRIPTOR, columns_pb2.ReportResponse.DESCRIPTOR),
    ],
)
def test_the_columnar_declaration_is_the_contracts_field_by_field(contract: Descriptor, columns: Descriptor) -> None:
    def form(field: FieldDescriptor) -> tuple[object, ...]:
        kind = field.message_type or field.enum_type
        return (field.name, field.number, field.type, field.is_repeated, kind and kind.full_name)

    expected = {
        (field.name, field.number, FieldDescriptor.TYPE_BYTES, False, None)
        if field.is_repeated and field.type in PACKED
        else form(field)
        for field in contract.fields
    }
    assert {form(field) for field in columns.fields} == expected


def reports() -> tuple[tracker_pb2.ReportRequest, columns_pb2.ReportRequest]:
    random = np.random.default_rng(5)
    both: dict[str, Any] = {"job": "j", "producer": "p", "run": "r", "epoch": 7, "units": ["u"], "names": ["a"] * 60}
    both |= {"scopes": ["s"], "segments": ["g"], "entry_count": 70, "log_id": "log", "want_ids": True, "commit": True}
    columns: dict[str, Any] = {
        "scope_index": np.zeros(60, np.uint32),
        "end_times": random.integers(-(2**63), 2**63, 60, endpoint=False),
        "substream_ids": random.integers(0, 2**63, 10, dtype=np.uint64),
        "substream_index": np.arange(70, dtype=np.uint32),
        "segment_index": np.zeros(70, np.uint32),
        "xor": random.integers(0, 2**64 - 1, 70, dtype=np.uint64),
        "sent": random.integers(0, 2**32, 70, dtype=np.uint32),
        "received": np.ones(70, np.uint32),
    }
    pack: dict[Any, Any] = {np.dtype(np.uint32): pack_u4, np.dtype(np.uint64): pack_u8, np.dtype(np.int64): pack_i8}
    return (
        tracker_pb2.ReportRequest(**both, **{name: column.tolist() for name, column in columns.items()}),
        columns_pb2.ReportRequest(**both, **{name: pack[column.dtype](column) for name, column in columns.items()}),
    )


def test_both_declarations_write_the_same_bytes() -> None:
    contract, columns = reports()
    assert contract.SerializeToString(deterministic=True) == columns.SerializeToString(deterministic=True)


def unpacked(column: bytes, number: int, width: int) -> bytes:
    """Return a repeated field as a writer leaves it that does not pack."""
    key = number << 3 | (5 if width == 4 else 1)
    key_bytes = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return b"".join(key_bytes + column[at : at + width] for at in range(0, len(column), width))


@pytest.mark.parametrize("how", ["unpacked", "split", "split with an empty end"])
def test_columns_that_are_not_packed_or_come_in_pieces_are_read_whole(how: str) -> None:
    """Each legal for a protobuf writer."""
    contract, columns = reports()
    expected = read_command(Method.REPORT, contract.SerializeToString())
    data = b""
    for field in columns.DESCRIPTOR.fields:
        if field.type != FieldDescriptor.TYPE_BYTES:
            continue
        column = getattr(columns, field.name)
        width = 4 if tracker_pb2.ReportRequest.DESCRIPTOR.fields_by_name[field.name].type == 7 else 8
        if how == "unpacked":
            data += unpacked(column, field.number, width)
        else:
            half = len(column) // width // 2 * width
            pieces = [column[:half], column[half:]] if how == "split" else [column, b""]
            for piece in pieces:
                data += columns_pb2.ReportRequest(**{field.name: piece}).SerializeToString()
                if not piece:
                    data += bytes([field.number << 3 | 2, 0]) if field.number < 16 else b""
        columns.ClearField(field.name)  # type: ignore[arg-type]
    read = read_command(Method.REPORT, data + columns.SerializeToString())
    assert isinstance(read, Report)
    assert isinstance(expected, Report)
    for name in Report.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(read, name), getattr(expected, name), err_msg=name)
