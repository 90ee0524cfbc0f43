"""Clients as the server knows them: their names, their scopes, and the scope that each call needs."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tracker.contract.refusal import Refusal, Refused
from tracker.python310 import StrEnum

from .quotas import UNBOUNDED, Quotas


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
#: What is read by HTTP.
PAGE: Final = "the status page"
METRICS: Final = "the metrics"
HTTP: Final[dict[str, Scope | None]] = {PAGE: Scope.WATCH, METRICS: Scope.WATCH}
#: What DefineJob needs with `force`.
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
        """Refuse a call that needs a scope that this client does not have.

        Raises:
            Refused: ``PERMISSION_DENIED``.
        """
        if needed is None or needed in self._allowed:
            return
        scopes = ", ".join(sorted(self.scopes)) or "none"
        raise DeniedError(
            self.name,
            f"client {self.name!r} may not use {call}: it needs the scope {needed}, and has {scopes}; use a "
            f"token with that scope, or add the scope to the client's entry in the server's tokens file",
        )

    def check_job(self, job: str) -> None:
        """Refuse a job that no pattern matches.

        Raises:
            Refused: ``PERMISSION_DENIED``.
        """
        if not self.may_touch(job):
            patterns = ", ".join(map(repr, self.jobs)) or "none"
            raise DeniedError(
                self.name,
                f"client {self.name!r} has no access to job {job[:100]!r}: its patterns are {patterns}; use another "
                "token, or add a pattern to the client's entry in the server's tokens file",
            )

    def check_all_jobs(self, call: str) -> None:
        """Refuse a call that concerns all jobs to a client that may not touch each of them.

        Raises:
            Refused: ``PERMISSION_DENIED``.
        """
        if not self.sees_all:
            patterns = ", ".join(map(repr, self.jobs)) or "none"
            raise DeniedError(
                self.name,
                f"client {self.name!r} may not use {call}, which concerns all jobs: its patterns are {patterns}; use "
                "another token, or add the pattern '*' to the client's entry in the server's tokens file",
            )


#: Whoever calls a server that asks for no credentials.
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
