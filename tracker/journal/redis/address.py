"""The address of a Redis or Valkey server that keeps a journal, what is asked of it, and connections to it.

Each thread that uses the server has a connection of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from tracker.journal.interface import JournalError
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


_CONNECT_S: Final = 2.0  # seconds until a server counts as unreachable
_ANSWER_S: Final = 10.0  # seconds until a call counts as lost: a write of many megabytes takes a while

#: Errors after which it is unknown whether a call had an effect.
LOST: Final = (redis.ConnectionError, redis.TimeoutError)
#: Answers of a server that cannot write now, but may soon: it loads, or has become a replica.
_SOON: Final = (redis.ReadOnlyError, redis.BusyLoadingError)
_SOON_TEXTS: Final = ("MASTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN", "UNBLOCKED")
_FULL_TEXTS: Final = ("OOM ", "MISCONF")


def connect(address: RedisAddress, answer_s: float = _ANSWER_S, connected: Callable[[], None] = lambda: None) -> Any:
    """Return a client with one connection, which is made when it is first used, and again after it broke.

    It repeats nothing by itself: only its caller knows what may be repeated. But a connection that was closed while
    nobody used it is replaced in silence by the next call, and may lead to another server.

    Args:
        address: of the server, or of its sentinels.
        answer_s: seconds until a call without an answer fails.
        connected: called whenever a connection was made, before the call that needed it is sent.

    Returns:
        A `redis.Redis`. It is not declared as one, because the package's types differ from version to version.

    Raises:
        JournalError: the password's file cannot be read.
    """
    try:
        password = address.password()
    except ValueError as error:
        raise JournalError(str(error)) from error

    def introduce(connection: Any) -> None:
        connection.on_connect()
        connected()

    options: dict[str, Any] = {
        "db": address.db,
        "username": address.user or None,
        "password": password,
        "socket_timeout": answer_s,
        "socket_connect_timeout": _CONNECT_S,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": 1,
        "redis_connect_func": introduce,
    }
    encryption: dict[str, Any] = {}
    if address.tls:
        encryption = {
            "ssl": True,
            "ssl_ca_certs": address.ca or None,
            "ssl_certfile": address.cert or None,
            "ssl_keyfile": address.key or None,
        }
    if address.service:
        sentinels: Any = Sentinel(  # type: ignore[no-untyped-call]
            list(address.servers),
            sentinel_kwargs={"socket_timeout": _CONNECT_S, "socket_connect_timeout": _CONNECT_S, **encryption},
            **options,
            **encryption,
        )
        return sentinels.master_for(address.service)
    [(host, port)] = address.servers
    return redis.Redis(host=host, port=port, **options, **encryption)


def is_soon(error: redis.RedisError) -> bool:
    """Tell whether a server that answered so may be able to write soon. It has written nothing."""
    return isinstance(error, _SOON) or str(error).startswith(_SOON_TEXTS)


def is_full(error: redis.RedisError) -> bool:
    """Tell whether a server that answered so has no room. It has written nothing."""
    return isinstance(error, redis.OutOfMemoryError) or str(error).startswith(_FULL_TEXTS)
