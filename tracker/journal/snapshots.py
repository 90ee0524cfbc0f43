"""Snapshots of a state, each in a file of its own beside the journal.

A file is written under another name, synced and renamed, so a snapshot exists completely or not at all. A checksum
reveals later damage. The two newest snapshots are kept: if the newest is damaged, the one before it and the records
after that give the same state. Encoding proceeds in small steps, since a long step would delay every other thread.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from tracker.store import in_pieces
from tracker.store.directory import sync

_MAGIC = b"trksnap1"
_HEAD = struct.Struct("<8sQQI")  # magic, number, length, checksum of number and content
_ARRAY = 1  # msgpack's extension type for a numpy array
_EXT = struct.Struct(">BIb")  # the head of msgpack's ext 32: marker, length, type
_BIN = struct.Struct(">BI")  # the head of msgpack's bin 32: marker, length
_LARGE = 1 << 16  # bytes: a larger array is not copied
_STEP = 4096  # elements of a list that are encoded at once
KEEP = 2  #: snapshots
_PIECE = 8 << 20  # bytes


class SnapshotDamagedError(Exception):
    """The file's content is not what was written."""


class Snapshots:
    """The snapshots beside a journal: ``PATH-snapshot-NUMBER``.

    Args:
        path: of the journal's file, in whose directory they are.
    """

    def __init__(self, path: str) -> None:
        self._base = Path(f"{path}-snapshot-")

    def numbers(self) -> list[int]:
        """Return the numbers of the records after which a snapshot was taken, newest first."""
        form = re.compile(re.escape(self._base.name) + r"(\d+)")
        found = (form.fullmatch(entry.name) for entry in self._base.parent.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def file(self, number: int) -> Path:
        return self._base.with_name(f"{self._base.name}{number}")

    def read(self, number: int) -> Any:
        """Read the state after record `number`.

        Raises:
            SnapshotDamagedError: the file is damaged.
        """
        data = self.file(number).read_bytes()
        if len(data) < _HEAD.size:
            raise SnapshotDamagedError("it is too short")
        magic, written, length, checksum = _HEAD.unpack_from(data)
        content = memoryview(data)[_HEAD.size :]
        if magic != _MAGIC or written != number or length != len(content):
            raise SnapshotDamagedError("its head is wrong, or it was cut")
        if _checksum(number, [content]) != checksum:
            raise SnapshotDamagedError("its checksum is wrong")
        return decode(content)

    def write(self, number: int, state: Any) -> int:
        """Keep the state after record `number`, and return its size in bytes. Remove older snapshots except one."""
        pieces = list(encode(state))
        size = sum(map(len, pieces))
        temporary = self._base.with_name(f"{self._base.name}new")
        try:
            temporary.unlink(missing_ok=True)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(_HEAD.pack(_MAGIC, number, size, _checksum(number, pieces)))
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.file(number))
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync(self._base.parent)
        for old in self.numbers()[KEEP:]:
            self.file(old).unlink()
        return size + _HEAD.size

    def oldest_needed(self) -> int:
        """Return the record after which the log is still needed, for the older snapshot; 0: the whole log is needed."""
        numbers = self.numbers()
        return numbers[-1] if len(numbers) >= KEEP else 0


def _checksum(number: int, pieces: list[Any]) -> int:
    checksum = zlib.crc32(number.to_bytes(8, "little"))
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum


def encode(state: Any) -> Iterator[bytes | memoryview]:
    """Encode a state as pieces of bytes. Large arrays are not copied; tuples come back as lists.

    >>> decode(b"".join(encode({"labels": np.arange(2, dtype=np.uint64)})))
    {'labels': array([0, 1], dtype=uint64)}
    """
    yield from _encode(msgpack.Packer(default=_encode_array), state)


def _encode(packer: msgpack.Packer, value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, dict):
        yield packer.pack_map_header(len(value))
        for key, item in value.items():
            yield packer.pack(key)
            yield from _encode(packer, item)
    elif isinstance(value, list | tuple) and len(value) > _STEP:
        yield packer.pack_array_header(len(value))
        for start in range(0, len(value), _STEP):
            step = value[start : start + _STEP]
            yield packer.pack(step)[len(packer.pack_array_header(len(step))) :]
    elif isinstance(value, np.ndarray) and value.nbytes > _LARGE and not value.dtype.hasobject:
        # The same bytes as from `_encode_array`, without copying the content.
        form = b"\x93" + packer.pack(value.dtype.str) + packer.pack(value.shape) + _BIN.pack(0xC6, value.nbytes)
        yield _EXT.pack(0xC9, len(form) + value.nbytes, _ARRAY) + form
        yield np.ascontiguousarray(value).data.cast("B")
    else:
        yield packer.pack(value)


def _encode_array(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        raise TypeError(f"a state holds a {type(value).__name__}")
    return msgpack.ExtType(_ARRAY, msgpack.packb((value.dtype.str, value.shape, value.tobytes())))


def write_pieces(state: Any, put: Callable[[int, bytes], object]) -> dict[str, int]:
    """Write a state in pieces, and return their description, from which `read_pieces` reads it.

    Args:
        state: of plain values, which `encode` can write.
        put: writes a piece, given its place from 0.
    """
    size = checksum = pieces = 0
    for pieces, piece in enumerate(in_pieces(encode(state), _PIECE), 1):
        put(pieces - 1, piece)
        size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    return {"pieces": pieces, "bytes": size, "checksum": checksum}


def described(text: bytes | None) -> tuple[int, int]:
    """Return the number of a state's pieces and their checksum, given the description of `write_pieces` as JSON.

    Raises:
        SnapshotDamagedError: the text is no such description.
    """
    try:
        description = json.loads(text or b"")
        return int(description["pieces"]), int(description["checksum"])
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotDamagedError("its description is not one") from error


def read_pieces(text: bytes | None, get: Callable[[int], bytes | None]) -> Any:
    """Return the state that `write_pieces` has written.

    Args:
        text: its description as JSON.
        get: reads the piece at a place; None: it is missing.

    Raises:
        SnapshotDamagedError: it is not what was written.
    """
    pieces, checksum = described(text)
    data = bytearray()
    for place in range(pieces):
        if (piece := get(place)) is None:
            raise SnapshotDamagedError(f"piece {place} of {pieces} is missing")
        data += piece
    if zlib.crc32(data) != checksum:
        raise SnapshotDamagedError("its checksum is wrong")
    return decode(bytes(data))


def decode(data: Any) -> Any:
    """Decode a state that `encode` has encoded; its arrays are writeable."""
    return msgpack.unpackb(data, ext_hook=_decode_array, strict_map_key=False)


def _decode_array(code: int, data: bytes) -> Any:
    if code != _ARRAY:
        raise SnapshotDamagedError(f"it holds an unknown type {code}")
    dtype, shape, content = msgpack.unpackb(data)
    return np.frombuffer(content, dtype).reshape(shape).copy()
