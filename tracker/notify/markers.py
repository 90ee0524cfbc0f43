"""Markers: a small file or object for each event, where those look who wait for data, such as `_SUCCESS`."""

from __future__ import annotations

from tracker.store import StoreError, open_store

from .webhooks import DeliveryError


def write_marker(place: str, name: str, content: bytes) -> None:
    """Write a marker, and replace one that is there. It outlives the machine, since the event is acknowledged next.

    Args:
        place: an absolute path, or an address, such as ``s3://bucket/path``.
        name: the marker's, below the place; it is taken as it is, also in an object's key.
        content: its content.

    Raises:
        DeliveryError: it cannot be written.
    """
    try:
        open_store(place if "://" not in place else f"{place}/").put(name, content)
    except (StoreError, ValueError) as error:
        raise DeliveryError(f"{place}/{name} cannot be written: {error}") from error
