"""Trackers that wait for a journal in an object store, so that its leader can hand it to one of them.

A store has no clock that all trackers share, so the age of an object tells nothing. A standby writes its sign again and
again, and a leader that looks for a standby waits until a sign changes: who wrote it was alive a moment ago.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Final

from tracker.store import ConditionalStore

_FOLDER: Final = "standbys"
_SIGNS: Final = 2  # of a standby, in the time of a lease
_LOOKS: Final = 10  # at all signs, in the time of a lease
_LONGER_S: Final = 5.0  # seconds beyond a lease for a standby whose machine or store is slow


class Sign:
    """The sign of one standby.

    Args:
        seconds: the length of a lease.
        clock: a monotonic one, in seconds.
    """

    def __init__(
        self, objects: ConditionalStore, holder: str, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objects = objects
        self._holder = holder
        self._every = seconds / _SIGNS
        self._clock = clock
        self._name = f"{_FOLDER}/{secrets.token_hex(8)}"
        self._shown: float | None = None
        self._count = 0

    def show(self) -> None:
        """Write the sign, if it is due.

        Raises:
            NoAnswerError, RefusedError: the store cannot be used.
        """
        now = self._clock()
        if self._shown is None or now - self._shown >= self._every:
            self._count += 1
            self._shown = now
            self._objects.put(self._name, json.dumps({"holder": self._holder, "count": self._count}).encode())

    def remove(self) -> None:
        """Remove the sign, if it was written.

        Raises:
            NoAnswerError, RefusedError: the store cannot be used.
        """
        if self._shown is not None:
            self._objects.delete([self._name])
            self._shown = None


def find(objects: ConditionalStore, seconds: float, clock: Callable[[], float] = time.monotonic) -> str:
    """Wait until a standby shows that it is alive, and return its holder; empty: none does.

    If there are signs and none of them changes, that takes the time of a lease and a little more. Their trackers have
    died then, and the signs are removed.

    Args:
        seconds: the length of a lease.
        clock: a monotonic one, in seconds.

    Raises:
        NoAnswerError, RefusedError: the store cannot be used.
    """
    first: dict[str, bytes] = {}
    until = clock() + seconds + _LONGER_S
    while names := objects.names(_FOLDER):
        for name in names:
            sign = objects.get(name)
            if sign is not None and first.setdefault(name, sign) != sign:
                return str(json.loads(sign)["holder"])
        if clock() > until:
            objects.delete(first)
            break
        time.sleep(seconds / _LOOKS)
    return ""
