"""The marks of a journal in Redis: which commands are being carried out or replayed, should they end the process.

A mark is sent without waiting for an answer. The system delivers what a process has sent before it ended, so a mark
costs one system call and survives the process, but not a machine's crash.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

import redis

from ..mark import Marked
from .connection import connect
from .keys import Keys

_SEND_S: Final = 0.5  # seconds until a mark is given up: then there is something else to worry about
_MOST: Final = 30  # the most commands under way that are noted


class Marks:
    """The marks.

    Args:
        keys: the journal's.

    Attributes:
        found: what the last process has noted.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._client = connect(keys.address, answer_s=_SEND_S)
        self._connection: Any = None
        self._term = 0
        self.found = Marked()

    def read(self) -> None:
        """Read what the last process has noted."""
        notes = self._client.hgetall(self._keys.marks)
        if notes:
            _, newest = max((int(term), text) for term, text in notes.items())
            values = json.loads(newest)
            self.found = Marked(values["replayed"], values["starts"], tuple(values["carried"]))

    def begin(self, term: int) -> None:
        """Note in the name of a term from now on. What was found stays noted until something else is."""
        self._term = term
        self._client.hset(self._keys.marks, str(term), _text(self.found))
        older: Any = [name for name in self._client.hkeys(self._keys.marks) if int(name) < term]
        if older:
            self._client.hdel(self._keys.marks, *older)
        self._connection = self._client.connection_pool.get_connection()
        self._connection.send_command("CLIENT", "REPLY", "OFF")

    def note(self, marked: Marked) -> None:
        """Note what is about to be done."""
        if self._connection is None:
            return
        try:
            self._connection.send_command("HSET", self._keys.marks, self._term, _text(marked))
        except (redis.RedisError, OSError):
            self._drop()  # the records themselves are durable without marks

    def close(self) -> None:
        """Close the connection."""
        self._drop()
        self._client.close()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(redis.RedisError, OSError):
                connection.disconnect()


def _text(marked: Marked) -> str:
    return json.dumps(
        {"replayed": marked.replayed, "starts": marked.starts, "carried": [*marked.carried[:_MOST]]},
        separators=(",", ":"),
    )
