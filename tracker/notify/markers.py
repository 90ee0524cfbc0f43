"""Markers: a small file or object for each event, where those look who wait for data, such as `_SUCCESS`."""

from __future__ import annotations

import os
from pathlib import Path

from .webhooks import DeliveryError


def write_marker(address: str, content: bytes) -> None:
    """Writes a marker, and replaces one that is there.

    Args:
        address: an absolute path, or an object's address, such as ``s3://bucket/path``.
        content: its content.

    Raises:
        DeliveryError: it cannot be written.
    """
    if "://" in address:
        _write_object(address, content)
        return
    file = Path(address)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}.part")  # who looks for the marker never sees half of it
        part.write_bytes(content)
        part.replace(file)
    except (OSError, ValueError) as error:
        raise DeliveryError(f"{address} cannot be written: {error}") from error


def _write_object(address: str, content: bytes) -> None:
    try:
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ModuleNotFoundError as missing:
        raise DeliveryError(
            f"{address} needs {missing.name}: pip install 'substream-tracker[object-store]'"
        ) from missing
    base, _, name = address.rpartition("/")
    try:
        obstore.put(from_url(base), name, content)
    except (BaseError, ValueError, OSError) as error:
        raise DeliveryError(f"{address} cannot be written: {str(error).partition(chr(10))[0]}") from error
