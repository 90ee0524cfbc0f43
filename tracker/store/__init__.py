"""Files by name in a directory or an object store, which journals, backups, markers and snapshots are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .interface import ConditionalStore, FileStore, NoAnswerError, RefusedError, StoreError, in_pieces

__all__ = ["ConditionalStore", "FileStore", "NoAnswerError", "RefusedError", "StoreError", "in_pieces", "open_store"]


def open_store(text: str, mode: int = 0o666, settings: Mapping[str, str] | None = None) -> FileStore:
    """Return the store that a user names. Settings of an object store that are not given come from the environment.

    Args:
        text: a path, or a URL: ``file:///DIRECTORY`` or one that obstore knows, such as ``s3://BUCKET/PREFIX``.
        mode: permissions of new files in a directory.
        settings: of an object store, as obstore calls them: ``endpoint``, ``access_key_id``, …

    Raises:
        RefusedError: the URL is none, or the package `obstore` is missing.
    """
    # Each is loaded when used: obstore takes a while, and its threads do not survive a fork.
    url = urlsplit(text)
    if "://" not in text or url.scheme == "file":
        from .directory import DirectoryStore

        path = unquote(url.path) if url.scheme == "file" else text
        return DirectoryStore(Path(path or "/"), mode)
    try:
        from .objects import ObjectStore
    except ModuleNotFoundError as missing:
        raise missing_package(missing) from missing
    return ObjectStore.at(text, settings)


def missing_package(missing: ModuleNotFoundError) -> RefusedError:
    """Return the error that an object store cannot be used without a package."""
    if missing.name != "obstore":
        raise missing
    return RefusedError("it needs the package obstore: pip install 'substream-tracker[object-store]'")
