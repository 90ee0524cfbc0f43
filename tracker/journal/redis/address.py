"""The address of a Redis or Valkey server that keeps a journal, and what is asked of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from tracker.store.address import read_options

#: The variable with the password.
PASSWORD_VARIABLE: Final = "TRACKER_JOURNAL_PASSWORD"
_PORT, _SENTINEL_PORT = 6379, 26379
_SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_FORMS: Final = "redis://HOST:PORT/DB or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB, with rediss for TLS"


@dataclass(frozen=True)
class RedisAddress:
    """Address of a journal, and how durable a record has to be before it is acknowledged.

    Args:
        servers: hosts and ports: of the server, or of the sentinels that know the server.
        service: the name by which sentinels know the server; empty: there are none.
        db: the number of the database.
        tls: whether the connection is encrypted.
        durability: ``fsync``: a record is on the server's disk; ``memory``: it is in the server's memory.
        replicas: how many replicas must have it, too: on their disks or in their memory, likewise.
        lease: seconds after which another tracker may take over from one that has stopped.
        user: of the server's access list; empty: its default user.
        password_file: the file of the password; empty: it is in ``$TRACKER_JOURNAL_PASSWORD``, if anywhere.
        ca: the file of the authorities of the server's certificate; empty: the system's.
        cert: the file of this client's certificate.
        key: the file of its key.
        marks: a directory of this machine, where the process notes which commands it carries out; empty: see
            `tracker.journal.mark.Marks`.

    Raises:
        ValueError: a value is out of its range.

    >>> address = RedisAddress.parse("redis+sentinel://a,b:26380/main?prefix=billing&replicas=1")
    >>> address.servers, address.service, address.prefix, address.replicas
    ((('a', 26379), ('b', 26380)), 'main', 'billing', 1)
    """

    servers: tuple[tuple[str, int], ...]
    service: str = ""
    db: int = 0
    tls: bool = False
    prefix: str = "tracker"
    durability: str = "fsync"
    replicas: int = 0
    lease: float = 1.5
    user: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    marks: str = ""

    def __post_init__(self) -> None:
        if self.durability not in ("fsync", "memory"):
            raise ValueError(f"durability={self.durability!r} is not known; use fsync or memory")
        if not 0 <= self.replicas <= 100:
            raise ValueError(f"replicas={self.replicas} is out of range; use 0 to 100")
        if not 0.5 <= self.lease <= 3600:
            raise ValueError(f"lease={self.lease} is out of range; use 0.5 to 3600 seconds")
        if not self.prefix or set(self.prefix) & set("{}") or not self.prefix.isprintable():
            raise ValueError(f"prefix={self.prefix!r} cannot begin the names of keys; use letters, digits, '-', ':'")

    @classmethod
    def parse(cls, text: str) -> RedisAddress:
        """Read an address.

        Args:
            text: such as ``redis://localhost:6379/0?replicas=1``: fields are options of the same name, with ``-``
                for ``_``.

        Raises:
            ValueError: it has another form; the message has what to write.
        """
        url = urlsplit(text)
        if url.scheme not in _SCHEMES or not url.netloc:
            raise ValueError(f"{text!r} is not the address of a journal in Redis; use {_FORMS}")
        if "@" in url.netloc:
            raise ValueError(
                "a password in an address is visible in the list of processes; "
                f"put it into ${PASSWORD_VARIABLE} or into a file (?user=NAME&password-file=FILE)"
            )
        sentinels = url.scheme.endswith("+sentinel")
        service, db = _path(url, sentinels)
        servers = tuple(_server(each, _SENTINEL_PORT if sentinels else _PORT) for each in url.netloc.split(","))
        if len(servers) > 1 and not sentinels:
            raise ValueError(f"several servers {url.netloc!r} need sentinels; use {_FORMS}")
        options = read_options(url, "a journal in Redis", fields(cls)[4:])
        return cls(servers, service, db, url.scheme.startswith("rediss"), **options)

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.servers)
        scheme = ("rediss" if self.tls else "redis") + ("+sentinel" if self.service else "")
        path = f"{self.service}/{self.db}" if self.service else str(self.db)
        return f"{scheme}://{hosts}/{path} (keys {self.prefix}:…)"

    def password(self) -> str | None:
        """Return the password, read from its file or its variable; None: there is none.

        Raises:
            ValueError: the file cannot be read.
        """
        if not self.password_file:
            return os.environ.get(PASSWORD_VARIABLE)
        try:
            return Path(self.password_file).expanduser().read_text().strip()
        except OSError as error:
            raise ValueError(f"the password file {self.password_file} cannot be read: {error.strerror}") from error


def _path(url: SplitResult, sentinels: bool) -> tuple[str, int]:
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    service = parts.pop(0) if sentinels else ""
    db = parts.pop(0) if parts and parts[0] else "0"
    if any(parts) or not db.isdecimal() or (sentinels and not service):
        raise ValueError(f"the path {url.path!r} is wrong; use {_FORMS}")
    return service, int(db)


def _server(text: str, usual: int) -> tuple[str, int]:
    split = urlsplit(f"//{text}")
    try:
        host, port = split.hostname, split.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not HOST:PORT ({error})") from error
    if not host:
        raise ValueError(f"{text!r} has no host; use HOST:PORT")
    return host, port or usual
