"""Check of who owns the log, and whether the server is the master, of which replicas still copy.

A master that was replaced while it was cut off believes in its old log. If records wait for replicas, so does an answer
about the owner: a small write must have come to them. A promoted replica copies nothing of its old master any more.
"""

from __future__ import annotations

from typing import Any, Final

import redis

from ..interface import JournalError
from .connection import connect, is_full
from .keys import Keys
from .top import Top

_ANSWER_S: Final = 1.0  # seconds for which the server is asked
_WAIT_MS: Final = 500  # for which it waits for its replicas
_KEPT_MS: Final = 60_000  # how long the write is kept


class Confirmation:
    """The question, on a connection of its own."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._replicas = keys.address.replicas
        self._client = connect(keys.address, answer_s=_ANSWER_S)

    def top(self) -> Top:
        """Return the end of the log, as a server has it that is the master now.

        Raises:
            JournalError: it is not, or cannot show it.
            redis.RedisError: it does not answer, or refuses.
        """
        with self._client.pipeline(transaction=False) as pipeline:
            if self._replicas:
                pipeline.set(self._keys.confirmed, "", px=_KEPT_MS)
                pipeline.execute_command("WAIT", self._replicas, _WAIT_MS)
            else:
                pipeline.execute_command("ROLE")
            pipeline.hmget(self._keys.top, ["id", "last", "lost", "who", "accepted"])
            pipeline.exists(self._keys.log)
            *evidence, top, has_log = pipeline.execute(raise_on_error=False)
        for answer in (top, has_log):
            if isinstance(answer, Exception):
                raise answer
        if self._replicas:
            self._check_replicas(*evidence)
        else:
            self._check_role(*evidence)
        entry, last, lost, owner, accepted = top
        return Top.read(entry, last, lost, owner, accepted, has_log)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _check_replicas(self, written: Any, waited: Any) -> None:
        # A full server takes no write; its replicas have to be there all the same.
        if isinstance(written, redis.RedisError) and not is_full(written):
            raise written
        if isinstance(waited, Exception):
            raise waited
        if int(waited) < self._replicas:
            raise JournalError(
                f"{self._keys.address} has {waited} replicas that answer, and {self._replicas} are wanted: it may not "
                "be the master any more; bring them back, or the connection to the master"
            )

    def _check_role(self, role: Any) -> None:
        if isinstance(role, redis.exceptions.NoPermissionError):  # an access list from before this was asked
            return
        if isinstance(role, Exception):
            raise role
        name = role[0].decode() if isinstance(role[0], bytes) else str(role[0])
        if name != "master":
            raise JournalError(
                f"{self._keys.address} is a {name} and not the master any more; bring back the connection to the master"
            )
