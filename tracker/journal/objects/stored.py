"""The objects of a real store, through the package `obstore`."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from ..interface import JournalError
from ..snapshots import sync_directory
from .address import ObjectsAddress
from .store import NoAnswerError, RefusedError

_CONNECT_S: Final = 3.0  # seconds until a store counts as unreachable
_SOON_S: Final = 1.0  # seconds for a question that is worth little later
_RETRIES: Final = 8  # of requests that may be repeated without a thought
_FRESH_S: Final = 300.0  # seconds until a credentials file is read again
_AT_ONCE: Final = 1000  # names in a list's page, or that are removed with one request
_REFUSALS: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    NotImplementedError,
    FileNotFoundError,  # of a write: there is no such bucket
)
#: How a lack of room shows: of a directory, before the file gets its name; of a store, in the code of its answer.
_FULL: Final = ("(os error 28)", "(os error 122)", "<Code>QuotaExceeded<", "<Code>XMinioStorageFull<")

_TOOK: Final = re.compile(r" in [0-9.]+(ns|µs|ms|s)\b")  # how long a request took
_LONGEST: Final = 400  # characters of an error

T = TypeVar("T")


class StoredObjects:
    """The objects of a bucket, or files of a directory, which are synced before a write returns.

    Args:
        address: with the store and the prefix.

    Raises:
        JournalError: the store's settings cannot be used.
    """

    def __init__(self, address: ObjectsAddress) -> None:
        self._root = Path(address.prefix) if address.scheme == "file" else None
        self._folders: set[Path] = set()  # that are durable
        try:
            self._once = _store(address, retries=0)  # only the caller knows whether a write may be repeated
            self._again = _store(address, retries=_RETRIES)
            self._soon = _store(replace(address, timeout=min(address.timeout, _SOON_S)), retries=0)
        except (exceptions.BaseError, ValueError, OSError) as error:
            raise JournalError(f"{address} cannot be used: {_text(error)}") from error

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._write(name, data, "create")
        except exceptions.AlreadyExistsError:
            return False  # who wants to know what is there reads it, which makes it durable
        return True

    def put(self, name: str, data: bytes) -> None:
        self._write(name, data, "overwrite")

    def get(self, name: str) -> bytes | None:
        return self._get(self._again, name)

    def get_soon(self, name: str) -> bytes | None:
        return self._get(self._soon, name)

    def _get(self, store: Any, name: str) -> bytes | None:
        def read() -> bytes:
            content: bytes = obstore.get(store, name).bytes().to_bytes()
            if self._root is not None:
                _sync(self._root / name)  # its writer may have ended before it did, and what was read counts
            return content

        return _asked(lambda: _existing(read))

    def exists(self, name: str) -> bool:
        return _asked(lambda: _existing(lambda: obstore.head(self._again, name))) is not None

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        # A directory's entries come in no order. Not all stores begin behind `after`, and some begin at it.
        return sorted(
            _asked(
                lambda: [
                    found["path"]
                    for page in obstore.list(self._again, folder, offset=after or None, chunk_size=_AT_ONCE)
                    for found in page
                    if found["path"] > after
                ]
            )
        )

    def delete(self, names: Iterable[str]) -> None:
        listed = list(names)
        for start in range(0, len(listed), _AT_ONCE):
            some = listed[start : start + _AT_ONCE]
            if self._delete(some):
                continue
            for name in some:  # some stores stop at the first object that is not there
                self._delete([name])

    def _delete(self, names: list[str]) -> bool:
        """Remove objects, and return whether all were there."""
        try:
            _asked(lambda: obstore.delete(self._again, names), (FileNotFoundError,))
        except FileNotFoundError:
            return False
        return True

    def _write(self, name: str, data: bytes, mode: Any) -> None:
        def write() -> None:
            if self._root is not None:
                self._make_folder(self._root, (self._root / name).parent)
            obstore.put(self._once, name, data, mode=mode, use_multipart=False)
            if self._root is not None:
                _sync(self._root / name)

        _asked(write, (exceptions.AlreadyExistsError,))

    def _make_folder(self, root: Path, folder: Path) -> None:
        """Make a folder's entry durable, and those of the folders above it."""
        while folder != root and folder not in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
            sync_directory(folder.parent)
            self._folders.add(folder)
            folder = folder.parent


def _existing(request: Callable[[], T]) -> T | None:
    try:
        return request()
    except FileNotFoundError:
        return None


def _asked(request: Callable[[], T], passed_on: tuple[type[Exception], ...] = ()) -> T:
    """Return what a request returns; its failures become the room's own."""
    try:
        return request()
    except passed_on:
        raise
    except (exceptions.BaseError, NotImplementedError, OSError) as error:
        text = _text(error)
        full = any(sign in text for sign in _FULL)
        if full or isinstance(error, _REFUSALS):
            raise RefusedError(text, full) from error
        raise NoAnswerError(text) from error


def _text(error: Exception) -> str:
    """Return an error's first line, which is the same each time: the others show the library's own values."""
    return _TOOK.sub("", str(error).strip().partition("\n")[0])[:_LONGEST]


def _sync(file: Path) -> None:
    """Make a file durable, and its name. That costs next to nothing if it is already."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(file.parent)


def _store(address: ObjectsAddress, retries: int) -> Any:
    if address.scheme == "file":
        root = Path(address.prefix)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(root.parent)
        return LocalStore(root)
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, address.timeout)),
        "timeout": timedelta(seconds=address.timeout),
    }
    if not address.is_encrypted:
        client["allow_http"] = True
    if address.ca:
        client["root_certificate"] = address.read_ca()
    options: dict[str, Any] = {
        "prefix": address.prefix or None,
        "client_options": client,
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=2 * address.timeout)},
    }
    if address.scheme == "gs":
        config = {"base_url": address.endpoint, "service_account": address.credentials_file}
        return GCSStore(address.bucket, config=_given(config), **options)
    if address.scheme == "az":
        config = {"account_name": address.account, "endpoint": address.endpoint}
        return AzureStore(address.bucket, config=_given(config), **options)
    if address.credentials_file:
        options["credential_provider"] = _SharedCredentials(Path(address.credentials_file).expanduser())
    config = {"region": address.region, "endpoint": address.endpoint}
    return S3Store(address.bucket, config=_given(config), **options)


def _given(config: dict[str, str]) -> Any:
    return {name: value for name, value in config.items() if value}


class _SharedCredentials:
    """Reads a file in the form of AWS's shared credentials: the profile of ``$AWS_PROFILE``, or ``default``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self()  # a file that cannot be used is refused at the start

    def __call__(self) -> Any:
        profile = os.environ.get("AWS_PROFILE", "default")
        parser = configparser.ConfigParser(interpolation=None)
        try:
            with self._file.open() as file:
                parser.read_file(file)
            found = parser[profile]
            return {
                "access_key_id": found["aws_access_key_id"],
                "secret_access_key": found["aws_secret_access_key"],
                "token": found.get("aws_session_token"),
                "expires_at": datetime.now(UTC) + timedelta(seconds=_FRESH_S),
            }
        except OSError as error:
            raise ValueError(f"the credentials file {self._file} cannot be read: {error.strerror}") from error
        except (configparser.Error, KeyError) as error:
            # The message of a parser has the line, which may be the secret.
            raise ValueError(
                f"the credentials file {self._file} needs a section [{profile}] with aws_access_key_id and "
                "aws_secret_access_key"
            ) from (error if isinstance(error, KeyError) else None)
