"""What a caller may do: the scopes, and the one that each call of the contract needs."""

from __future__ import annotations

from typing import Final

from tracker.python310 import StrEnum


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
