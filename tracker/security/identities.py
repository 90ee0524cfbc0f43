"""A client as the server knows it: its name, and what it may do with which jobs."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from functools import cached_property

from tracker.contract.refusal import Refusal, Refused

from .quotas import UNBOUNDED, Quotas
from .scopes import Scope, with_included


@dataclass(frozen=True)
class Identity:
    """A client.

    Args:
        name: as operators call it; logs have it.
        scopes: what it may do.
        jobs: globs of the jobs' names with which it may do that.
        quotas: how much it may ask for.

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
        """Whether one of its patterns matches every name."""
        return "*" in self.jobs

    def check_scope(self, call: str, needed: Scope | None) -> None:
        """Refuse a call that needs a scope that this client does not have.

        Args:
            call: the call, for the message.
            needed: the scope; None: none.

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

        Args:
            call: the call, for the message.

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
        client: its name.
        detail: what it may not do, and what to do about it.
    """

    def __init__(self, client: str, detail: str) -> None:
        super().__init__(Refusal.PERMISSION_DENIED, detail)
        self.client = client


def unauthenticated(detail: str) -> Refused:
    """Return the refusal of a caller that is not known."""
    return Refused(Refusal.UNAUTHENTICATED, detail)
