"""The marks of a journal in Redis: which commands are being carried out or replayed, should they end the process.

A mark is sent without waiting for an answer. The system delivers what a process has sent before it ended, so a mark
costs one system call and survives the process, but not a machine's crash. If the connection breaks, the newest mark is
written again on another one; until then no answer may leave, since an older mark may name its command.

A server that ends, or is replaced by its replica, may end before it has read the newest mark, and show an older one
later. So a mark has the name of the server's run to which it was sent, and names no commands on any other one.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any, Final

import redis

from ..mark import Marked
from .connection import connect
from .keys import Keys

_SEND_S: Final = 0.5  # seconds until a mark is given up: then there is something else to worry about
_AGAIN_S: Final = 0.1  # seconds between two attempts to connect again
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
        self._newest = Marked()
        self._server = ""  # the run of the server that has the marks
        self._closed = threading.Event()
        self._mending: threading.Thread | None = None
        self.found = Marked()

    def read(self) -> None:
        """Read what the last process has noted; a note that cannot be read names nothing."""
        with self._client.pipeline(transaction=False) as asked:  # one server answers both
            asked.info("server")
            asked.hgetall(self._keys.marks)
            server, notes = asked.execute(raise_on_error=False)
        if isinstance(notes, Exception):
            raise notes
        with suppress(ValueError, KeyError, TypeError):
            _, newest = max(((int(term), text) for term, text in notes.items()), default=(0, b"{}"))
            values = dict(json.loads(newest))
            same = values.get("server", "") == _run_of(server) != ""
            self.found = Marked(values["replayed"], values["starts"], tuple(values["carried"]) if same else ())

    def begin(self, term: int) -> None:
        """Note in the name of a term from now on. What was found stays noted until something else is."""
        self._term, self._newest = term, self.found
        self._write()
        older: Any = [name for name in self._client.hkeys(self._keys.marks) if int(name) < term]
        if older:
            self._client.hdel(self._keys.marks, *older)
        self._connect()

    def note(self, marked: Marked) -> bool:
        self._newest = marked
        if self._connection is None:
            return False
        try:
            self._connection.send_command("HSET", self._keys.marks, self._term, self._text())
        except (redis.RedisError, OSError):
            self._drop()
            self._mending = threading.Thread(target=self._mend, name="marks", daemon=True)
            self._mending.start()
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        if self._mending is not None:
            self._mending.join()
        self._drop()
        self._client.close()

    def _write(self) -> None:
        with self._client.pipeline(transaction=False) as asked:
            [server] = asked.info("server").execute(raise_on_error=False)
        self._server = _run_of(server)
        self._client.hset(self._keys.marks, str(self._term), self._text())

    def _connect(self) -> None:
        connection = self._client.connection_pool.get_connection()
        try:
            connection.send_command("CLIENT", "REPLY", "OFF")
        except BaseException:
            self._client.connection_pool.release(connection)
            raise
        self._connection = connection

    def _mend(self) -> None:
        """Write the newest mark on a new connection."""
        while not self._closed.wait(_AGAIN_S):
            with suppress(redis.RedisError, OSError):
                self._write()
                self._connect()
                return

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(redis.RedisError, OSError):
                connection.disconnect()
            self._client.connection_pool.release(connection)

    def _text(self) -> str:
        newest = self._newest
        values = {"replayed": newest.replayed, "starts": newest.starts, "carried": [*newest.carried[:_MOST]]}
        return json.dumps({**values, "server": self._server}, separators=(",", ":"))


def _run_of(server: Any) -> str:
    """Return the run of a server, given what it shows of itself; empty: it shows nothing to this user."""
    if isinstance(server, redis.exceptions.NoPermissionError):  # an access list from before this was asked
        return ""
    if isinstance(server, Exception):
        raise server
    return str(server.get("run_id", ""))
