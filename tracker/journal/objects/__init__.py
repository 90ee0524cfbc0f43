"""The journal in an object store; buckets need the package `obstore`."""

from __future__ import annotations

from tracker.store import StoreError
from tracker.store.address import SCHEMES

from .journal import ObjectsAddress, ObjectsJournal, try_conditions, unusable

__all__ = ["SCHEMES", "ObjectsAddress", "ObjectsJournal", "open_objects_journal"]


def open_objects_journal(where: str, follow: bool = False, restoring: bool = False) -> ObjectsJournal:
    """Open a journal in an object store.

    Args:
        where: such as ``s3://BUCKET/PREFIX``; see `ObjectsAddress`.
        follow: only read at first, and own the journal once `ObjectsJournal.try_to_own` has succeeded.
        restoring: whether a backup is being put into it.

    Raises:
        ValueError: `where` has another form.
        JournalLockedError: another tracker uses it, and `follow` is False.
        JournalError: the store cannot be reached, or does not create an object only where there is none; or the package
            `obstore` is missing.
    """
    address = ObjectsAddress.parse(where)
    objects = address.open()
    try:
        try_conditions(objects, str(address))
    except StoreError as error:
        raise unusable(str(address), error) from error
    return ObjectsJournal(objects, str(address), address.lease, address.marks, follow, restoring=restoring)
