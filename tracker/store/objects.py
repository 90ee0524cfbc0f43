"""Stores of objects, through the package `obstore`: Amazon's S3 and what has its interface, Google's, Azure's."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store, from_url

from .address import StoreAddress
from .interface import NoAnswerError, RefusedError

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
    FileNotFoundError,  # there is no such bucket
)
#: How a lack of room shows in the code of an answer.
_FULL: Final = ("<Code>QuotaExceeded<", "<Code>XMinioStorageFull<")
_TOOK: Final = re.compile(r" in [0-9.]+(ns|µs|ms|s)\b")  # how long a request took
_ENDPOINTS: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_UNENCRYPTED: Final = re.compile("http:", re.IGNORECASE)
_PATIENT: Final[Any] = {"max_retries": _RETRIES, "retry_timeout": timedelta(minutes=1)}
_HASTY: Final = timedelta(seconds=5)
_IMPATIENT: Final[Any] = {"max_retries": 1, "retry_timeout": _HASTY}
_LONGEST: Final = 400  # characters of an error

T = TypeVar("T")


class ObjectStore:
    """The objects of a bucket below a prefix.

    Args:
        once: sends each request once: only the caller knows whether `create` may be repeated.
        again: repeats requests that have failed.
        soon: gives up within about a second.
    """

    def __init__(self, once: Any, again: Any, soon: Any) -> None:
        self._once = once
        self._again = again
        self._soon = soon

    @classmethod
    def of(cls, address: StoreAddress) -> ObjectStore:
        """Return the store at an address.

        Raises:
            RefusedError: its settings cannot be used.
        """
        hasty = replace(address, timeout=min(address.timeout, _SOON_S))
        try:
            return cls(_open(address, 0), _open(address, _RETRIES), _open(hasty, 0))
        except (exceptions.BaseError, ValueError, OSError) as error:
            raise RefusedError(_text(error)) from error

    @classmethod
    def at(cls, url: str, settings: Mapping[str, str] | None = None) -> ObjectStore:
        """Return the store of a URL.

        Args:
            settings: as obstore calls them, such as ``access_key_id``; the environment has the others.

        Raises:
            RefusedError: obstore does not know such a URL.
        """
        endpoints = [(settings or {}).get("endpoint", ""), *(os.environ.get(name, "") for name in _ENDPOINTS)]
        plain: Any = {"allow_http": True} if any(map(_UNENCRYPTED.match, endpoints)) else {}
        try:
            config: Any = _given(settings or {})
            opened = from_url(url, config=config, client_options=plain, retry_config=_PATIENT)
            plain |= {"timeout": _HASTY}
            hasty = from_url(url, config=config, client_options=plain, retry_config=_IMPATIENT)
            return cls(opened, opened, hasty)
        except (exceptions.BaseError, ValueError) as error:
            raise RefusedError(_text(error)) from error

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._write(name, data, "create")
        except exceptions.AlreadyExistsError:
            return False
        return True

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        self._write(name, data, "overwrite")

    def _write(self, name: str, data: bytes | Iterable[bytes], mode: Any) -> None:
        parts = not isinstance(data, bytes)
        _asked(
            lambda: obstore.put(self._once, name, data, mode=mode, use_multipart=parts),
            (exceptions.AlreadyExistsError,),
        )

    def get(self, name: str, first: int | None = None, soon: bool = False) -> bytes | None:
        store = self._soon if soon else self._again
        options: Any = None if first is None else {"range": (0, first)}

        def read() -> bytes:
            content: bytes = obstore.get(store, name, options=options).bytes().to_bytes()
            return content

        try:
            return _asked(read, (FileNotFoundError,))
        except FileNotFoundError:
            return None

    def pieces(self, name: str) -> Iterator[bytes]:
        pieces = iter(_asked(lambda: obstore.get(self._again, name), (FileNotFoundError,)).stream())
        while (piece := _asked(lambda: next(pieces, None))) is not None:
            yield bytes(piece)

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        # Not all stores begin behind `after`, and some begin at it.
        return sorted(
            _listed(
                lambda: [
                    found["path"]
                    for page in obstore.list(self._again, folder or None, offset=after or None, chunk_size=_AT_ONCE)
                    for found in page
                    if found["path"] > after
                ]
            )
        )

    def entries(self, folder: str = "") -> Sequence[str]:
        found = _listed(lambda: obstore.list_with_delimiter(self._again, folder or None))
        paths = [each["path"] for each in found["objects"]] + [f"{each}/" for each in found["common_prefixes"]]
        return sorted(path[len(folder) + 1 :] if folder else path for path in paths)

    def remove(self, folder: str) -> None:
        self.delete(self.names(folder))

    def copy(self, name: str, to: str) -> None:
        """Copy a file within the store, in place of any that there is.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        _asked(lambda: obstore.copy(self._again, name, to), (FileNotFoundError,))

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


def _asked(request: Callable[[], T], passed_on: tuple[type[Exception], ...] = ()) -> T:
    """Return what a request returns; its failures become those of `tracker.store`."""
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


def _listed(request: Callable[[], T]) -> T:
    """Return what a list has. obstore repeats a request that fails, but no list whose answer breaks off."""
    for _ in range(_RETRIES):
        try:
            return _asked(request)
        except NoAnswerError as error:
            if "response body" not in str(error):
                raise
    return _asked(request)


def _text(error: Exception) -> str:
    """Return an error's first line, which is the same each time: the others show the library's own values."""
    return _TOOK.sub("", str(error).strip().partition("\n")[0])[:_LONGEST]


def _open(address: StoreAddress, retries: int) -> Any:
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
        return GCSStore(address.bucket, config=_given({**address.lent, **_given(config)}), **options)
    if address.scheme == "az":
        config = {"account_name": address.account, "endpoint": address.endpoint}
        return AzureStore(address.bucket, config=_given({**address.lent, **_given(config)}), **options)
    if address.credentials_file:
        options["credential_provider"] = _SharedCredentials(Path(address.credentials_file).expanduser())
    config = {"region": address.region, "endpoint": address.endpoint}
    return S3Store(address.bucket, config=_given({**address.lent, **_given(config)}), **options)


def _given(config: Mapping[str, str]) -> Any:
    return {name: value for name, value in config.items() if value}


class _SharedCredentials:
    """Reader of a file in the form of AWS's shared credentials: the profile of ``$AWS_PROFILE``, or ``default``."""

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
                "expires_at": datetime.now(timezone.utc) + timedelta(seconds=_FRESH_S),
            }
        except OSError as error:
            raise ValueError(f"the credentials file {self._file} cannot be read: {error.strerror}") from error
        except (configparser.Error, KeyError) as error:
            # The message of a parser has the line, which may be the secret.
            raise ValueError(
                f"the credentials file {self._file} needs a section [{profile}] with aws_access_key_id and "
                "aws_secret_access_key"
            ) from (error if isinstance(error, KeyError) else None)
