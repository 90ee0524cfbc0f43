"""The lease of a journal in Redis: who may claim the log. It keeps others from claiming it by mistake.

The lease decides who begins a term, and the term decides who can write: a tracker that slept through the end of its
lease writes nothing after another one's claim. So clocks need not agree, and the lease's length decides only how soon
another tracker takes over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis

from .. import replicated
from ..replicated import BEATS, describe, is_dead, new_holder
from . import scripts
from .address import connect
from .scripts import Keys
from .top import Top

_NEW_S = 1.0  # at most, for which a newcomer leaves the lease to those who have followed the log: they look often


class Lease(replicated.Lease):
    """The lease."""

    failures = redis.RedisError
    another = "another journal or ?prefix=…"

    def __init__(self, keys: Keys) -> None:
        super().__init__(str(keys.address), new_holder(), keys.address.lease, lambda: time.monotonic())
        self._keys = keys
        self._client = connect(keys.address, answer_s=max(1.0, keys.address.lease / BEATS))
        self._ms = int(keys.address.lease * 1000)
        self._came = self._clock()
        self._announced = 0.0  # the monotonic time at which this process was noted as the standby
        self._look: tuple[Callable[[], int], Callable[[int, Top], None], int] | None = None

    def try_to_acquire(self, waits: bool = False) -> bool:
        dead = self._other if is_dead(self._other) else ""
        announce = waits and self._clock() - self._announced > self._seconds / BEATS
        # A log that came back older is met by who knows more first, who writes down what is lost.
        held = self._try(dead, announce, self._clock() - self._came < min(_NEW_S, self._seconds))
        self._other = held or ""
        if announce:
            self._announced = self._clock()
        if held is not None:
            return False
        self._begin(self._seconds / BEATS)
        return True

    def look_at(self, acknowledged: Callable[[], int], look: Callable[[int, Top], None], term: int) -> None:
        """Look at the end of the log with each beat from now on.

        Args:
            acknowledged: returns the newest record that this tracker has acknowledged.
            look: called, in a thread, with what `acknowledged` returned before a beat, and the end of the log at it.
                Raises `JournalGoneError` if that is no longer this tracker's.
        """
        self._look = acknowledged, look, term

    def beat(self) -> None:
        if self._look is None:
            self._try("")
            return
        acknowledged, look, term = self._look
        known = acknowledged()
        keys = [self._keys.lease, self._keys.top, self._keys.log]
        top = self._client.eval(scripts.RENEW, len(keys), *keys, self.holder, self._ms, term)
        look(known, Top.read(*top))

    def standby(self) -> str:
        client = connect(self._keys.address)  # the lease's own may be in use by the thread that keeps it
        try:
            holder: Any = client.get(self._keys.standby)
        finally:
            client.close()
        return describe(holder.decode()) if holder else ""

    def hand_over(self) -> None:
        self._let_go(to_standby=True)

    def close(self) -> None:
        self._let_go(to_standby=False)

    def _let_go(self, to_standby: bool) -> None:
        self._closed.set()
        if self._beating is not None:
            self._beating.join()
        keys = [self._keys.lease, self._keys.standby, self._keys.top]
        with suppress(redis.RedisError):
            self._client.eval(scripts.LET_GO, len(keys), *keys, self.holder, self._ms, int(to_standby))
        self._client.close()

    def _try(self, dead: str, announce: bool = False, new: bool = False) -> str | None:
        """Try to get the lease; return its holder if that is another one, or "" if one who follows may want it."""
        keys = [self._keys.lease, self._keys.standby, self._keys.top, self._keys.log]
        arguments = [self.holder, self._ms, dead, int(announce), int(new)]
        held = self._client.eval(scripts.ACQUIRE, len(keys), *keys, *arguments)
        return None if held is None else held.decode()
