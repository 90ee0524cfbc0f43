"""The address of an object store, with its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

#: Schemes of addresses: Amazon S3 and stores with its interface, Google's, Azure's, a directory.
SCHEMES: Final = ("s3", "gs", "az", "file")
_FORMS: Final = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY"
_LENT: dict[tuple[str, str], Mapping[str, str]] = {}
_FOR: Final = {"region": ("s3",), "account": ("az",), "credentials_file": ("s3", "gs"), "endpoint": ("s3", "gs", "az")}


@dataclass(frozen=True)
class StoreAddress:
    """A bucket, or a directory, and how it is reached.

    Credentials come from the environment, as the store's own tools take them, or from `credentials_file`.

    Args:
        scheme: the kind of store, of `SCHEMES`.
        bucket: its bucket or container; empty: the objects are files.
        prefix: of the names of all objects; of files, their directory.
        timeout: seconds after which a request counts as lost.
        region: of a bucket in S3; empty: from the environment.
        endpoint: the URL of a store that is not the scheme's own; empty: from the environment, or the scheme's own.
        ca: the file of the authorities of the store's certificate; empty: the system's.
        account: of a container in Azure; empty: from the environment.
        credentials_file: for S3 a file in the form of AWS's shared credentials, for Google's store a service account's.

    Raises:
        ValueError: a value is out of its range, or of another kind of store.
    """

    scheme: str
    bucket: str
    prefix: str
    timeout: float = 10.0
    region: str = ""
    endpoint: str = ""
    ca: str = ""
    account: str = ""
    credentials_file: str = ""

    def __post_init__(self) -> None:
        if not 0.5 <= self.timeout <= 600:
            raise ValueError(f"timeout={self.timeout} is out of range; use 0.5 to 600 seconds")
        for name, schemes in _FOR.items():
            if getattr(self, name) and self.scheme not in schemes:
                option = name.replace("_", "-")
                raise ValueError(f"{option} is not an option of {self.scheme}://, only of {', '.join(schemes)}")
        if self.endpoint and urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise ValueError(f"endpoint={self.endpoint!r} is not a URL; use https://HOST:PORT")
        if self.ca and not self.is_encrypted:
            raise ValueError("ca is of use only where the connection is encrypted")

    @property
    def lent(self) -> Mapping[str, str]:
        """The keys that this process was lent for the bucket: see `lend`."""
        return _LENT.get((self.scheme, self.bucket), {})

    @property
    def is_encrypted(self) -> bool:
        """Return whether the connection to the store is."""
        return self.scheme != "file" and not self.endpoint.startswith("http:")

    @classmethod
    def parse(cls, text: str, what: str, others: Sequence[Field[Any]] = ()) -> tuple[StoreAddress, dict[str, Any]]:
        """Read an address, and return with it the options that are not the store's.

        Args:
            text: such as ``s3://BUCKET/PREFIX?timeout=5``: fields are options of the same name, with ``-`` for ``_``.
            what: is there, for messages: "a journal".
            others: fields of other options, with their defaults.

        Raises:
            ValueError: it has another form; the message has what to write.

        >>> address, options = StoreAddress.parse("s3://state/billing?region=eu-central-1", "a journal")
        >>> address.bucket, address.prefix, address.region
        ('state', 'billing', 'eu-central-1')
        """
        url = urlsplit(text)
        if url.scheme not in SCHEMES or url.fragment:
            raise ValueError(f"{text!r} is not the address of {what} in an object store; use {_FORMS}")
        if "@" in url.netloc:
            raise ValueError(
                "credentials in an address are visible in the list of processes; put them into the environment, as "
                "the store's own tools take them, or into a file (?credentials-file=FILE)"
            )
        path = unquote(url.path).strip("/")
        if url.scheme == "file":
            if url.netloc or not path or not url.path.startswith("/"):
                raise ValueError(f"{text!r} has no directory; use file:///DIRECTORY")
            path = f"/{path}"
        elif not url.netloc:
            raise ValueError(f"{text!r} has no bucket; use {_FORMS}")
        if any(part in ("", ".", "..") for part in path.lstrip("/").split("/") if path) or not path.isprintable():
            raise ValueError(f"the path {path!r} cannot begin the names of objects; use names joined by single '/'")
        options = read_options(url, f"{what} in an object store", [*others, *fields(cls)[3:]])
        rest = {each.name: options.pop(each.name) for each in others if each.name in options}
        return cls(url.scheme, url.netloc, path, **options), rest

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.prefix}"
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/") + at

    def read_ca(self) -> str:
        """Return the certificates of `ca`.

        Raises:
            ValueError: the file cannot be read.
        """
        try:
            return Path(self.ca).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the authorities' file {self.ca} cannot be read: {error}") from error


def lend(scheme: str, bucket: str, keys: Mapping[str, str]) -> None:
    """Have this process open a bucket with keys that its environment lacks.

    Args:
        keys: as obstore calls them, such as ``access_key_id``.
    """
    _LENT[scheme, bucket] = dict(keys)


def read_options(url: SplitResult, what: str, known: Sequence[Field[Any]]) -> dict[str, Any]:
    """Return the options in a URL by the names of fields.

    Args:
        what: is at the URL, for messages.
        known: the fields, with their defaults; an option has ``-`` for ``_``.

    Raises:
        ValueError: an option is none of these, or not a number where the default is one.
    """
    allowed = {each.name.replace("_", "-"): each for each in known}
    options: dict[str, Any] = {}
    for name, value in parse_qsl(url.query, keep_blank_values=True):
        if name not in allowed:
            raise ValueError(f"{name!r} is not an option of {what}; there are {', '.join(allowed)}")
        field = allowed[name]
        kind: Any = type(field.default)
        try:
            options[field.name] = kind(value)
        except ValueError as error:
            raise ValueError(f"{name}={value!r} is not a number") from error
    return options
