"""Clients as the server knows them: their names, scopes and quotas, and the scope that each call needs.

Quotas are rates, as token buckets, and numbers. A bucket holds what a rate gives in two seconds, so short bursts pass.
A caller may take more than the bucket holds: then the bucket is in debt, and gives nothing until the debt is paid. So a
large report passes as a whole, and the rate holds on average.
"""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tracker.contract.refusal import Refusal, Refused
from tracker.python310 import StrEnum

_BURST_S: Final = 2.0
_HOLD_S: Final = 1.0  # the longest time for which the answer to a client beyond its quota is held back
_MOST_HELD: Final = 20  # answers to one client that are held back at a time


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
    """Use of its quotas by one client. A call that takes too much is refused: ``QUOTA``, with the time until a retry.

    Args:
        client: its name, for messages.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, client: str, quotas: Quotas, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self.watchers = 0
        self._held = 0  # refusals that are held back
        self.use(quotas)

    def use(self, quotas: Quotas) -> None:
        """Go on with other quotas: the buckets are new, and what lasts is still counted."""
        self.quotas = quotas
        self._buckets = {
            name: Bucket(rate, self._now())
            for name in ("calls_per_second", "entries_per_second", "names_per_second")
            if (rate := getattr(quotas, name)) is not None
        }

    def take_call(self) -> None:
        """Count a call, or a report of a stream."""
        self._take("calls_per_second", 1)

    def take_entries(self, entries: int) -> None:
        """Count the entries of a report."""
        self._take("entries_per_second", entries)

    def take_names(self, new: int, open_substreams: Callable[[], int]) -> None:
        """Count substreams that a report names for the first time.

        Args:
            open_substreams: returns how many its job has besides.
        """
        if not new:
            return
        most = self.quotas.open_substreams
        if most is not None and (already := open_substreams()) + new > most:
            raise self._exceeded(
                f"open_substreams={most}", f"its job would have {already + new}; end substreams first", 1.0
            )
        self._take("names_per_second", new)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watch, a wait or a stream of reports while the context lasts."""
        most = self.quotas.watchers
        if most is not None and self.watchers >= most:
            raise self._exceeded(
                f"watchers={most}", "it has as many watches, waits and streams under way; end some", 1.0
            )
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    @asynccontextmanager
    async def calling(self, lasts: bool) -> AsyncIterator[None]:
        """Count a call while the context lasts. A refusal by a quota is held back a while: see `hold`.

        Args:
            lasts: whether the call is a watch, a wait or a stream.
        """
        try:
            self.take_call()
            with self.watching() if lasts else nullcontext():
                yield
        except Refused as refused:
            await self.hold(refused)
            raise

    async def hold(self, refused: Refused) -> None:
        """Wait before a client that is beyond a quota is refused.

        A client that floods and does not obey the answer would be answered thousands of times a second, which costs all
        others more than its calls. Only a few answers of a client are held at a time.
        """
        is_bound = refused.reason == Refusal.QUOTA and self.quotas != UNBOUNDED
        if not is_bound or refused.retry_after is None or self._held >= _MOST_HELD:
            return
        self._held += 1
        try:
            pause = min(refused.retry_after, _HOLD_S)
            await asyncio.sleep(pause)
            refused.retry_after -= pause
        finally:
            self._held -= 1

    def _take(self, name: str, amount: float) -> None:
        bucket = self._buckets.get(name)
        if bucket is not None and (wait := bucket.take(amount, self._now())):
            raise self._exceeded(f"{name}={getattr(self.quotas, name):g}", f"retry in {wait:.3g} s, ask for less", wait)

    def _exceeded(self, quota: str, advice: str, wait: float) -> Refused:
        return Refused(
            Refusal.QUOTA,
            f"quota {quota} of client {self._client!r} exceeded: {advice}, or raise the quota in the server's tokens "
            "file",
            retry_after=wait,
        )


class Scope(StrEnum):
    """A part of the contract that a client may be allowed to use."""

    REPORT = "report"  #: what a job does: define itself, open producers, report, commit
    WATCH = "watch"  #: read states and events, with subscriptions
    OPERATE = "operate"  #: interfere: drain, abandon, finish fronts, forget producers; includes watch
    BACKUP = "backup"  #: read the whole state, of all jobs
    ADMIN = "admin"  #: delete jobs, move the leader; includes all others


#: The scope that each call needs; None: any client that is known may make it.
NEEDED: Final[dict[str, Scope | None]] = {
    "GetServerInfo": None,
    "ListJobs": None,  # it lists those jobs that the client's patterns match
    "DefineJob": Scope.REPORT,  # with `force`, which ends what is open, it needs FORCE
    "OpenProducer": Scope.REPORT,
    "CloseProducer": Scope.REPORT,
    "Report": Scope.REPORT,
    "ReportStream": Scope.REPORT,
    "Commit": Scope.REPORT,
    "GetJob": Scope.WATCH,
    "Watch": Scope.WATCH,
    "ListEvents": Scope.WATCH,
    "Await": Scope.WATCH,
    "AwaitThrough": Scope.WATCH,
    "Subscribe": Scope.WATCH,
    "Ack": Scope.WATCH,
    "Unsubscribe": Scope.WATCH,
    "ListSubscriptions": Scope.WATCH,
    "ListSubstreams": Scope.WATCH,
    "Explain": Scope.WATCH,
    "GetDrain": Scope.WATCH,
    "Drain": Scope.OPERATE,
    "CancelDrain": Scope.OPERATE,
    "Abandon": Scope.OPERATE,
    "FinishFront": Scope.OPERATE,
    "ForgetProducer": Scope.OPERATE,
    "DeleteJob": Scope.ADMIN,
    "Backup": Scope.BACKUP,  # with a pattern for all jobs, and so does MoveLeader
    "MoveLeader": Scope.ADMIN,
}
#: Documents that are read by HTTP.
PAGE: Final = "the status page"
METRICS: Final = "the metrics"
HTTP: Final[dict[str, Scope | None]] = {PAGE: Scope.WATCH, METRICS: Scope.WATCH}
#: Scope that DefineJob needs with `force`.
FORCE: Final = Scope.OPERATE

_INCLUDED: Final = {Scope.OPERATE: {Scope.WATCH}, Scope.ADMIN: {*Scope}}


def with_included(scopes: frozenset[Scope]) -> frozenset[Scope]:
    """Return the scopes with those that they include.

    >>> sorted(with_included(frozenset({Scope.OPERATE})))
    [<Scope.OPERATE: 'operate'>, <Scope.WATCH: 'watch'>]
    """
    return scopes.union(*(_INCLUDED.get(scope, ()) for scope in scopes))


@dataclass(frozen=True)
class Identity:
    """A client.

    Args:
        name: as operators call it; logs have it.
        jobs: globs of the jobs' names with which it may do that.

    >>> shop = Identity("shop", frozenset({Scope.REPORT}), ("shop", "shop.*"))
    >>> shop.may_touch("shop.2of3"), shop.may_touch("mail")
    (True, False)
    """

    name: str
    scopes: frozenset[Scope]
    jobs: tuple[str, ...] = ("*",)
    quotas: Quotas = UNBOUNDED
    _allowed: frozenset[Scope] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_allowed", with_included(self.scopes))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.jobs)))

    def may_touch(self, job: str) -> bool:
        """Return whether one of its patterns matches a job's name."""
        return self._pattern.match(job) is not None

    @property
    def sees_all(self) -> bool:
        """Return whether one of its patterns matches every name."""
        return "*" in self.jobs

    def check_scope(self, call: str, needed: Scope | None) -> None:
        """Refuse a call that needs a scope that this client does not have."""
        if needed is None or needed in self._allowed:
            return
        scopes = ", ".join(sorted(self.scopes)) or "none"
        raise DeniedError(
            self.name,
            f"client {self.name!r} may not use {call}: it needs the scope {needed}, and has {scopes}; use a "
            f"token with that scope, or add the scope to the client's entry in the server's tokens file",
        )

    def check_job(self, job: str) -> None:
        """Refuse a job that no pattern matches."""
        if not self.may_touch(job):
            patterns = ", ".join(map(repr, self.jobs)) or "none"
            raise DeniedError(
                self.name,
                f"client {self.name!r} has no access to job {job[:100]!r}: its patterns are {patterns}; use another "
                "token, or add a pattern to the client's entry in the server's tokens file",
            )

    def check_all_jobs(self, call: str) -> None:
        """Refuse a call that concerns all jobs to a client that may not touch each of them."""
        if not self.sees_all:
            patterns = ", ".join(map(repr, self.jobs)) or "none"
            raise DeniedError(
                self.name,
                f"client {self.name!r} may not use {call}, which concerns all jobs: its patterns are {patterns}; use "
                "another token, or add the pattern '*' to the client's entry in the server's tokens file",
            )


#: Any caller of a server that asks for no credentials.
ANYBODY = Identity("anybody", frozenset({Scope.ADMIN}))


class DeniedError(Refused):
    """A client that is known, and may not do this: ``PERMISSION_DENIED``.

    Args:
        detail: what it may not do, and what to do about it.
    """

    def __init__(self, client: str, detail: str) -> None:
        super().__init__(Refusal.PERMISSION_DENIED, detail)
        self.client = client


def unauthenticated(detail: str) -> Refused:
    """Return the refusal of a caller that is not known."""
    return Refused(Refusal.UNAUTHENTICATED, detail)
