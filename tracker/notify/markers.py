"""Markers: a small file or object for each event, where those look who wait for data, such as `_SUCCESS`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from .webhooks import DeliveryError


def write_marker(place: str, name: str, content: bytes) -> None:
    """Write a marker, and replace one that is there.

    Args:
        place: an absolute path, or an address, such as ``s3://bucket/path``.
        name: the marker's, below the place; it is taken as it is, also in an object's key.
        content: its content.

    Raises:
        DeliveryError: it cannot be written.
    """
    if "://" in place:
        _write_object(place, name, content)
        return
    file = Path(place or "/") / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Who looks for the marker never sees half of it.
        part = file.with_name(f".{os.getpid()}-{threading.get_ident()}.part")
        with part.open("wb") as writing:
            writing.write(content)
            writing.flush()
            os.fsync(writing.fileno())
        part.replace(file)
        _sync(file.parent)  # the event is acknowledged next: the marker must outlive the machine
    except (OSError, ValueError) as error:
        raise DeliveryError(f"{file} cannot be written: {error}") from error


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _write_object(place: str, name: str, content: bytes) -> None:
    try:
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ModuleNotFoundError as missing:
        raise DeliveryError(f"{place} needs {missing.name}: pip install 'substream-tracker[object-store]'") from missing
    try:
        obstore.put(from_url(f"{place}/"), name, content)  # an address is decoded, a key is not
    except (BaseError, ValueError, OSError) as error:
        raise DeliveryError(f"{place}/{name} cannot be written: {str(error).partition(chr(10))[0]}") from error
