"""Connections to the server of a journal: one for each thread that uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from ..interface import JournalError
from .address import RedisAddress

_CONNECT_S: Final = 2.0  # seconds until a server counts as unreachable
_ANSWER_S: Final = 10.0  # seconds until a call counts as lost: a write of many megabytes takes a while

#: Errors after which it is unknown whether a call had an effect.
LOST: Final = (redis.ConnectionError, redis.TimeoutError)
#: What a server answers while it cannot write now, but may soon: it loads, or has become a replica.
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
