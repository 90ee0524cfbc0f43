"""Quotas of a client: rates as token buckets, and numbers. Pure arithmetic: the time is an argument.

A bucket holds what a rate gives in two seconds, so short bursts pass. What is taken may exceed what the bucket holds:
then it is in debt, and gives nothing until the debt is paid. So a large report passes as a whole, and the rate holds on
average.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tracker.contract.refusal import Refusal, Refused

_BURST_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of a client; None: no bound but the server's limits.

    >>> Quotas(calls_per_second=100).watchers is None
    True
    """

    calls_per_second: float | None = None
    entries_per_second: float | None = None  #: of reports
    names_per_second: float | None = None  #: substreams that its reports name for the first time
    open_substreams: int | None = None  #: of a job, beyond which its reports name no new ones
    watchers: int | None = None  #: watches, waits and streams of reports that it has under way


UNBOUNDED: Final = Quotas()


class Bucket:
    """A token bucket.

    Args:
        rate: what flows in, a second.
        now: the time, in seconds.

    >>> bucket = Bucket(rate=10, now=0)
    >>> bucket.take(25, now=0), bucket.take(1, now=0.25), bucket.take(1, now=0.75)
    (0.0, 0.25, 0.0)
    """

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = rate * _BURST_S
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take an amount, unless the bucket is in debt.

        Args:
            now: the time, in seconds; one before the last changes nothing.

        Returns:
            0 if it was taken; else the seconds until the debt is paid.
        """
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._level = min(self._rate * _BURST_S, self._level + elapsed * self._rate)
        if self._level < 0:
            return -self._level / self._rate
        self._level -= amount
        return 0.0


class Usage:
    """Use of its quotas by one client.

    Args:
        client: its name, for messages.
        now: the time, in seconds.
    """

    def __init__(self, client: str, quotas: Quotas, now: float) -> None:
        self._client = client
        self.watchers = 0
        self.held = 0  #: refusals that are held back
        self.use(quotas, now)

    def use(self, quotas: Quotas, now: float) -> None:
        """Go on with other quotas: the buckets are new, and what lasts is still counted.

        Args:
            now: the time, in seconds.
        """
        self.quotas = quotas
        self._buckets = {
            name: Bucket(rate, now)
            for name in ("calls_per_second", "entries_per_second", "names_per_second")
            if (rate := getattr(quotas, name)) is not None
        }

    def take_call(self, now: float) -> None:
        """Count a call, or a report of a stream.

        Raises:
            Refused: ``QUOTA``, with the time after which the call can be made again.
        """
        self._take("calls_per_second", 1, now)

    def take_entries(self, entries: int, now: float) -> None:
        """Count the entries of a report.

        Raises:
            Refused: ``QUOTA``.
        """
        self._take("entries_per_second", entries, now)

    def take_names(self, new: int, open_substreams: int, now: float) -> None:
        """Count substreams that a report names for the first time.

        Args:
            open_substreams: how many its job has besides.
            now: the time, in seconds.

        Raises:
            Refused: ``QUOTA``.
        """
        if not new:
            return
        most = self.quotas.open_substreams
        if most is not None and open_substreams + new > most:
            raise exceeded(
                f"quota open_substreams={most} of client {self._client!r} exceeded: its job would have "
                f"{open_substreams + new}; end substreams first, or raise the quota in the server's tokens file",
                1.0,
            )
        self._take("names_per_second", new, now)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watch, a wait or a stream of reports while the context lasts.

        Raises:
            Refused: ``QUOTA``.
        """
        most = self.quotas.watchers
        if most is not None and self.watchers >= most:
            raise exceeded(
                f"quota watchers={most} of client {self._client!r} exceeded: it has as many watches, waits and streams "
                f"under way; end some, or raise the quota in the server's tokens file",
                1.0,
            )
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    def _take(self, name: str, amount: float, now: float) -> None:
        bucket = self._buckets.get(name)
        if bucket is not None and (wait := bucket.take(amount, now)):
            raise exceeded(
                f"quota {name}={getattr(self.quotas, name):g} of client {self._client!r} exceeded; "
                f"retry in {wait:.3g} s, ask for less, or raise the quota in the server's tokens file",
                wait,
            )


def exceeded(detail: str, wait: float) -> Refused:
    """Return the refusal of what a quota does not allow now.

    Args:
        detail: which quota, and what to do.
        wait: the seconds after which the caller may try again.
    """
    return Refused(Refusal.QUOTA, detail, retry_after=wait)
