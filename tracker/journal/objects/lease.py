"""Owner of a journal in an object store, and whether that tracker lives.

A store has no clock that all trackers share, and some cannot change an object under a condition. So a leader writes a
beat of its own from time to time, and who waits watches for changes: of the beat, or of the log's end. After a lease's
length without any, by the clock of the one who waits, the leader may be replaced. Being wrong about that harms nobody:
the claim, not the lease, decides who can write.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tracker.store import ConditionalStore, NoAnswerError, StoreError

from .. import replicated
from ..replicated import describe, is_dead
from .log import Entry, Found, Log
from .snapshots import ObjectsSnapshots

_LAST_BEAT_S: Final = 2.0  # seconds for a beat that is under way at the end
_LOOKS: Final = 10  # of one who waits, or looks for one who does, in the time of a lease
_FOLDER: Final = "standbys"
_SIGNS: Final = 2  # of a standby, in the time of a lease
_LONGER_S: Final = 5.0  # seconds beyond a lease for a standby whose machine or store is slow


@dataclass(frozen=True, slots=True)
class _Signs:
    """Signs that a leader lives."""

    end: int
    beat: bytes | None


class Lease(replicated.Lease):
    """The lease."""

    failures = StoreError
    passing = (NoAnswerError,)  # a store that is slow, or restarts

    def __init__(
        self,
        objects: ConditionalStore,
        log: Log,
        snapshots: ObjectsSnapshots,
        where: str,
        holder: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._log = log
        self._snapshots = snapshots
        super().__init__(where, holder, seconds, clock)
        self._end = -1  # the newest position that was seen; -1: none was looked for
        self._newest: Found = None  # what is there
        self._covered = 0  # the position of the newest snapshot, as the end was looked for
        self._claim = 0  # the position of the newest claim
        self._signs: _Signs | None = None
        self._since = 0.0  # when the signs were seen first
        self._looked = -seconds  # when they were looked for last
        self._beats = 0  # how many were written
        self._beaten = 0  # the log's last record then
        self._sign = Sign(objects, holder, seconds, clock)
        self._found = ""  # a standby
        self._next = ""  # who gets the journal; empty: whoever is first
        self.claim = 0  #: the position of this tracker's claim; 0: it has none

    # ---------------------------------------------------------------- getting it

    def try_to_acquire(self, waits: bool = False) -> bool:
        """Try to claim the log, and return whether that succeeded. It looks only as often as is useful."""
        dead = is_dead(self._other)
        if not dead and self._clock() - self._looked < self._seconds / _LOOKS:
            return False
        self._silence = None
        try:
            acquired = self._try(dead)
            if waits and not acquired:
                self._sign.show()
            return acquired
        except StoreError as error:
            self._silence = error
            self._signs = None  # a leader cannot reach this store either, and has the time of a lease to come back
            raise
        finally:
            self._looked = self._clock()

    def _try(self, dead: bool) -> bool:
        newest = self._find_end()
        claim = max(self._end, self._covered) + 1  # what a snapshot has may be lost, and a claim there would be void
        is_own = newest is not None and newest.is_claim and self._log.is_own(newest) and self._end > self._covered
        if is_own:
            claim = self._end  # its answer was lost
        elif not self._is_free(dead):
            return False
        if not (is_own or self._log.claim(claim)) or not self._is_valid(claim):
            self._end = -1
            return False
        self.claim = claim
        with suppress(StoreError):
            self._sign.remove()
        self._begin()
        return True

    def _is_valid(self, claim: int) -> bool:
        """Return whether this tracker's claim is at the end of the log: its position could be long past."""
        return not self._log.is_past(claim) and self._snapshots.newest_position() < claim

    def _find_end(self) -> Entry | None:
        """Go on to the log's end, and find out who has claimed it; return the newest entry, if it could be read."""
        if self._end < 0:
            self._covered = self._snapshots.newest_position()
            end = self._log.newest_position()
            self._newest = self._log.read(end) if end else None
            self._end = end  # only now: without an answer all is looked for again
        for position, found in self._log.following(self._end):
            self._end, self._newest = position, found
        newest = self._newest
        if not isinstance(newest, Entry):
            return None
        if newest.term != self._claim:
            claim = newest if newest.is_claim else self._log.read(newest.term)
            self._claim = newest.term
            self._other = claim.holder if isinstance(claim, Entry) else ""
        return newest

    def _is_free(self, dead: bool) -> bool:
        if not self._end or (dead and is_dead(self._other)):
            return True
        signs = _Signs(self._end, self._objects.get(_beat_name(self._claim)))
        if signs.beat and _is_released(signs.beat, self.holder):
            return True
        if signs != self._signs:
            self._signs, self._since = signs, self._clock()
            return is_dead(self._other)
        return self._clock() - self._since >= self._seconds

    # ---------------------------------------------------------------- keeping it

    def beat(self) -> None:
        """Show a sign of life, unless the log's end has moved and is one, and look whether the log is still there."""
        if self._log.last == self._beaten or not self._beats:
            self._beats += 1
            self._write_beat(self._beats, released=False)
        self._beaten = self._log.last
        if self._gone is not None:
            self._log.look()

    def _write_beat(self, count: int, released: bool) -> None:
        beat = {"holder": self.holder, "count": count, "released": released, "next": self._next}
        self._objects.put(_beat_name(self.claim), json.dumps(beat).encode())

    def clear(self) -> None:
        """Remove the beats of earlier terms."""
        own = _beat_name(self.claim)
        self._objects.delete(name for name in self._objects.names("beats") if name < own)

    def standby(self) -> str:
        self._found = find_standby(self._objects, self._seconds, self._clock)
        return describe(self._found)

    def hand_over(self) -> None:
        """Give the journal back as `close` does, to the standby found last: others wait for the time of a lease."""
        self._next = self._found
        self.close()

    def close(self) -> None:
        """Give the journal back, if it is this tracker's. A store that does not answer is not waited for."""
        self._closed.set()
        with suppress(StoreError):
            self._sign.remove()
        if self._beating is not None:
            self._beating.join(_LAST_BEAT_S)
            if not self._beating.is_alive():
                with suppress(StoreError):
                    self._write_beat(0, released=True)


def _is_released(beat: bytes, to: str) -> bool:
    """Return whether the leader has given the journal back, to everyone or to this tracker."""
    try:
        found = json.loads(beat)
        return bool(found["released"]) and found.get("next") in (None, "", to)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _beat_name(claim: int) -> str:
    return f"beats/{claim:020}"


class Sign:
    """The sign of one standby, written again and again.

    A store has no clock that all trackers share, so the age of an object means nothing. A leader that looks for a
    standby waits until a sign changes: who wrote it was alive a moment ago.

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


def find_standby(objects: ConditionalStore, seconds: float, clock: Callable[[], float] = time.monotonic) -> str:
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
