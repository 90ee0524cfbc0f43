"""The address of a journal in an object store, and what is asked of the store."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, fields
from os import getuid
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

#: What an address can begin with: Amazon S3 and stores with its interface, Google's, Azure's, a directory.
SCHEMES: Final = ("s3", "gs", "az", "file")
_FORMS: Final = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY"
_FOR: Final = {"region": ("s3",), "account": ("az",), "credentials_file": ("s3", "gs"), "endpoint": ("s3", "gs", "az")}


@dataclass(frozen=True)
class ObjectsAddress:
    """Where a journal is kept.

    Who the tracker is comes from the environment, as the store's own tools take it, or from `credentials_file`.

    Args:
        scheme: the kind of store, of `SCHEMES`.
        bucket: its bucket or container; empty: the objects are files.
        prefix: of the names of all objects; of files, their directory.
        lease: seconds without a sign of life after which another tracker may take over.
        timeout: seconds after which a request counts as lost.
        region: of a bucket in S3; empty: from the environment.
        endpoint: the URL of a store that is not the scheme's own; empty: from the environment, or the scheme's own.
        ca: the file of the authorities of the store's certificate; empty: the system's.
        account: of a container in Azure; empty: from the environment.
        credentials_file: for S3 a file in the form of AWS's shared credentials, for Google's store a service account's.
        marks: a directory of this machine, where the process notes which commands it carries out.

    Raises:
        ValueError: a value is out of its range, or of another kind of store.

    >>> address = ObjectsAddress.parse("s3://state/trackers/billing?region=eu-central-1&lease=5")
    >>> address.bucket, address.prefix, address.region, address.lease
    ('state', 'trackers/billing', 'eu-central-1', 5.0)
    """

    scheme: str
    bucket: str
    prefix: str
    lease: float = 10.0
    timeout: float = 10.0
    region: str = ""
    endpoint: str = ""
    ca: str = ""
    account: str = ""
    credentials_file: str = ""
    marks: str = ""

    def __post_init__(self) -> None:
        if not 0.5 <= self.lease <= 3600:
            raise ValueError(f"lease={self.lease} is out of range; use 0.5 to 3600 seconds")
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
        if not self.marks:
            object.__setattr__(self, "marks", f"{tempfile.gettempdir()}/substream-tracker-{getuid()}")

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection to the store is."""
        return self.scheme != "file" and not self.endpoint.startswith("http:")

    @classmethod
    def parse(cls, text: str) -> ObjectsAddress:
        """Read an address.

        Args:
            text: such as ``s3://BUCKET/PREFIX?lease=5``: fields are options of the same name, with ``-`` for ``_``.

        Raises:
            ValueError: it has another form; the message has what to write.
        """
        url = urlsplit(text)
        if url.scheme not in SCHEMES or url.fragment:
            raise ValueError(f"{text!r} is not the address of a journal in an object store; use {_FORMS}")
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
        return cls(url.scheme, url.netloc, path, **_options(url))  # type: ignore[arg-type]

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


def _options(url: SplitResult) -> dict[str, object]:
    allowed = {each.name.replace("_", "-"): each for each in fields(ObjectsAddress)[3:]}
    options: dict[str, object] = {}
    for name, value in parse_qsl(url.query, keep_blank_values=True):
        if name not in allowed:
            raise ValueError(
                f"{name!r} is not an option of a journal in an object store; there are {', '.join(allowed)}"
            )
        field = allowed[name]
        try:
            kind: Any = type(field.default)
            options[field.name] = kind(value)
        except ValueError as error:
            raise ValueError(f"{name}={value!r} is not a number") from error
    return options
