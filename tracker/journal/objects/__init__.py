"""The journal in an object store; it needs the package `obstore`."""

from __future__ import annotations

from ..interface import JournalError
from .address import SCHEMES, ObjectsAddress
from .journal import ObjectsJournal
from .store import FAILURES, unusable
from .trial import try_conditions

__all__ = ["SCHEMES", "ObjectsAddress", "open_objects_journal"]


def open_objects_journal(where: str, follow: bool = False) -> ObjectsJournal:
    """Open a journal in an object store.

    Args:
        where: such as ``s3://BUCKET/PREFIX``; see `ObjectsAddress`.
        follow: only read at first, and own the journal once `ObjectsJournal.try_to_own` has succeeded.

    Raises:
        ValueError: `where` has another form.
        JournalLockedError: another tracker uses it, and `follow` is False.
        JournalError: the store cannot be reached, or does not create an object only where there is none; or the package
            `obstore` is missing.
    """
    address = ObjectsAddress.parse(where)
    try:
        from .stored import StoredObjects
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise JournalError(
            f"a journal in {address} needs the package obstore; install it with: pip install "
            "'substream-tracker[object-store]'"
        ) from error
    objects = StoredObjects(address)
    try:
        try_conditions(objects, str(address))
    except FAILURES as error:
        raise unusable(str(address), error) from error
    return ObjectsJournal(objects, str(address), address.lease, address.marks, follow)
