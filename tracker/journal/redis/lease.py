"""The lease of a journal in Redis: who may claim the log. It keeps others from claiming it by mistake.

The lease decides who begins a term, and the term decides who can write: a tracker that slept through the end of its
lease writes nothing after another one's claim. So clocks need not agree, and the lease's length decides only how soon
another tracker takes over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import redis

from ..interface import JournalLockedError
from ..replicated import describe, is_dead, new_holder
from . import scripts
from .connection import connect
from .keys import Keys
from .top import Top

_RENEWALS: Final = 3  # in the time of a lease
_LOOK_S: Final = 0.1  # between two attempts to get a lease that another tracker has


class Lease:
    """The lease.

    Attributes:
        holder: identifies this process, as JSON that people can read.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._client = connect(keys.address, answer_s=max(1.0, keys.address.lease / _RENEWALS))
        self._ms = int(keys.address.lease * 1000)
        self.holder = new_holder()
        self._closed = threading.Event()
        self._other = ""  # the holder that was seen last
        self._announced = 0.0  # the monotonic time at which this process was noted as the standby
        self._renewing: threading.Thread | None = None
        self._watch: tuple[Callable[[], int], Callable[[int, Top], None], int] | None = None

    def acquire(self) -> None:
        """Get the lease: at once if nobody has it, or once it has run out because nobody renewed it; then renew it.

        Raises:
            JournalLockedError: another tracker renews it.
            redis.RedisError: the server cannot be used.
        """
        until = time.monotonic() + self._ms / 1000
        while not self.try_to_acquire():
            if time.monotonic() > until:
                raise JournalLockedError(
                    f"the journal {self._keys.address} is in use by another tracker ({describe(self._other)}); stop "
                    "it, or name another journal or ?prefix=…"
                )
            self._closed.wait(_LOOK_S)

    def try_to_acquire(self, waits: bool = False) -> bool:
        """Try to get the lease, and return whether that succeeded; then renew it.

        Args:
            waits: note that this process is a standby, which follows the log.

        Raises:
            redis.RedisError: the server cannot be used.
        """
        dead = self._other if is_dead(self._other) else ""
        announce = waits and time.monotonic() - self._announced > self._ms / 1000 / _RENEWALS
        self._other = self._try(dead, announce)
        if announce:
            self._announced = time.monotonic()
        if self._other:
            return False
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()
        return True

    def watch(self, acknowledged: Callable[[], int], look: Callable[[int, Top], None], term: int) -> None:
        """Look at the end of the log with each renewal from now on.

        Args:
            acknowledged: returns the newest record that this tracker has acknowledged.
            look: called, in a thread, with what `acknowledged` returned before a renewal, and the end of the log at it.
        """
        self._watch = acknowledged, look, term

    def standby(self) -> str:
        """Return which process follows the log, for people; empty: none does.

        Raises:
            redis.RedisError: the server cannot be used.
        """
        client = connect(self._keys.address)  # the lease's own may be in use by the thread that renews it
        try:
            holder: Any = client.get(self._keys.standby)
        finally:
            client.close()
        return describe(holder.decode()) if holder else ""

    def hand_over(self) -> None:
        """Give the lease to the standby, and close the connection. A server that cannot be used lets it run out."""
        self._stop_renewing()
        with suppress(redis.RedisError):
            self._client.eval(scripts.HAND_OVER, 2, self._keys.lease, self._keys.standby, self.holder, self._ms)
        self.close()

    def close(self) -> None:
        """Give the lease back, if it is this tracker's, and close the connection."""
        self._stop_renewing()
        with suppress(redis.RedisError):
            self._client.eval(scripts.LET_GO, 2, self._keys.lease, self._keys.standby, self.holder)
        self._client.close()

    def _stop_renewing(self) -> None:
        self._closed.set()
        if self._renewing is not None:
            self._renewing.join()

    def _try(self, dead: str, announce: bool = False) -> str:
        """Try to get the lease; return its holder, if that is another one."""
        keys = [self._keys.lease, self._keys.standby]
        held = self._client.eval(scripts.ACQUIRE, len(keys), *keys, self.holder, self._ms, dead, int(announce))
        return held.decode() if held else ""

    def _renew(self) -> None:
        while not self._closed.wait(self._ms / 1000 / _RENEWALS):
            # A server that cannot be reached is none of the lease's business: writes wait for it, too.
            with suppress(redis.RedisError):
                if self._watch is None:
                    self._try("")
                    continue
                acknowledged, look, term = self._watch
                known = acknowledged()
                keys = [self._keys.lease, self._keys.top, self._keys.log]
                top = self._client.eval(scripts.RENEW, len(keys), *keys, self.holder, self._ms, term)
                look(known, Top.read(*top))
