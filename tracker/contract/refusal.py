"""Refusals: every reason for which a tracker refuses a command, with its gRPC status."""

from __future__ import annotations

from tracker.python310 import StrEnum


class Refusal(StrEnum):
    """A reason to refuse a command: the text that programs read.

    Attributes:
        code: the name of the gRPC status that the wire answers with.
        meaning: a sentence for people, as the contract has it.

    >>> Refusal.FENCED.code, Refusal("LIMIT") == "LIMIT"
    ('FAILED_PRECONDITION', True)
    """

    code: str
    meaning: str

    def __new__(cls, reason: str, code: str, meaning: str) -> Refusal:
        member = str.__new__(cls, reason)
        member._value_, member.code, member.meaning = reason, code, meaning
        return member

    # In any state of the tracker.
    MALFORMED = "MALFORMED", "INVALID_ARGUMENT", "the message contradicts itself, or a name or number is out of range"
    UNKNOWN_SEGMENT = "UNKNOWN_SEGMENT", "INVALID_ARGUMENT", "the job's spec has no such segment"
    UNKNOWN_FRONT = "UNKNOWN_FRONT", "INVALID_ARGUMENT", "the job's spec has no such front, or a close names none"
    END_TIME_CONFLICT = (
        "END_TIME_CONFLICT",
        "INVALID_ARGUMENT",
        "a substream's end time is bound when a report first names the substream",
    )
    UNKNOWN_JOB = "UNKNOWN_JOB", "NOT_FOUND", "nobody has defined the job"
    UNKNOWN_PRODUCER = "UNKNOWN_PRODUCER", "NOT_FOUND", "the producer has opened no run"
    UNKNOWN_SUBSTREAM = "UNKNOWN_SUBSTREAM", "NOT_FOUND", "no report has named the substream"
    UNKNOWN_SUBSCRIPTION = "UNKNOWN_SUBSCRIPTION", "NOT_FOUND", "nobody has made the subscription, or it was removed"
    # In the present state.
    FENCED = "FENCED", "FAILED_PRECONDITION", "another run is current, or this one was closed"
    FRONT_OWNED = "FRONT_OWNED", "FAILED_PRECONDITION", "another producer promises for that front"
    EXPECT_CONFLICT = (
        "EXPECT_CONFLICT",
        "FAILED_PRECONDITION",
        "another number was expected before, and this one does not revise it in time",
    )
    DRAINED = "DRAINED", "FAILED_PRECONDITION", "the deployment is over"
    SEALED = "SEALED", "FAILED_PRECONDITION", "the epoch's manifest is fixed, and the report was not in it"
    UNKNOWN_ID = "UNKNOWN_ID", "FAILED_PRECONDITION", "an id is not valid, or not any more: send the name again"
    LOG_CHANGED = "LOG_CHANGED", "FAILED_PRECONDITION", "the job's log is another one: what the caller knows is void"
    MISSING_UNITS = "MISSING_UNITS", "FAILED_PRECONDITION", "a manifest names units that no report has covered"
    SPLIT_UNITS = "SPLIT_UNITS", "FAILED_PRECONDITION", "a report is half in a manifest and half out of it"
    EPOCH_STAGED = "EPOCH_STAGED", "FAILED_PRECONDITION", "an epoch is staged that has to be committed or revoked first"
    EPOCH_REWOUND = "EPOCH_REWOUND", "FAILED_PRECONDITION", "a run begins before what its producer has committed"
    MODE_CONFLICT = (
        "MODE_CONFLICT",
        "FAILED_PRECONDITION",
        "a producer's mode, or the job's committed_ends, forbids this",
    )
    SPEC_CONFLICT = "SPEC_CONFLICT", "FAILED_PRECONDITION", "the deployment was defined with another spec"
    INCOMPATIBLE_GRAPH = (
        "INCOMPATIBLE_GRAPH",
        "FAILED_PRECONDITION",
        "the new deployment's graph does not fit what is open in the old one",
    )
    DEPLOYMENT_MISMATCH = "DEPLOYMENT_MISMATCH", "FAILED_PRECONDITION", "the job is at another deployment"
    DRAIN_MISMATCH = "DRAIN_MISMATCH", "FAILED_PRECONDITION", "another drain is under way, or none is"
    DRAIN_IN_PROGRESS = "DRAIN_IN_PROGRESS", "FAILED_PRECONDITION", "the job is draining"
    JOB_ACTIVE = "JOB_ACTIVE", "FAILED_PRECONDITION", "runs of the job are open"
    NO_STANDBY = "NO_STANDBY", "FAILED_PRECONDITION", "no other tracker follows the journal"
    EVENTS_EXPIRED = "EVENTS_EXPIRED", "OUT_OF_RANGE", "retention has dropped the events"
    SUBSCRIPTION_EXPIRED = "SUBSCRIPTION_EXPIRED", "OUT_OF_RANGE", "the subscription lagged too far behind"
    # By what the server can take.
    LIMIT = "LIMIT", "RESOURCE_EXHAUSTED", "a limit of the server is reached"
    QUOTA = "QUOTA", "RESOURCE_EXHAUSTED", "the client's quota is used up: try again after the time that is given"
    UNAUTHENTICATED = "UNAUTHENTICATED", "UNAUTHENTICATED", "the server does not know the caller"
    PERMISSION_DENIED = "PERMISSION_DENIED", "PERMISSION_DENIED", "the caller may not do this"
    # For now: clients repeat the call.
    JOURNAL_FAILED = "JOURNAL_FAILED", "UNAVAILABLE", "the journal does not work; nothing was changed"
    JOURNAL_FULL = "JOURNAL_FULL", "UNAVAILABLE", "the journal has no room; nothing was changed"
    JOURNAL_GONE = "JOURNAL_GONE", "UNAVAILABLE", "another tracker leads now"
    RECOVERING = "RECOVERING", "UNAVAILABLE", "the server recovers its state from the journal"
    STOPPING = "STOPPING", "UNAVAILABLE", "the server is stopping"
    AUDIT = "AUDIT", "UNAVAILABLE", "the audit log cannot be written"
    FAULT = "FAULT", "INTERNAL", "a fault in the server: see its log"


class Refused(Exception):  # noqa: N818 - the contract's term
    """A command that the tracker refuses; it has changed nothing (but settling, once that was reached).

    Args:
        detail: for people: what was wrong and what to do.
        retry_after: the seconds after which the same command may be accepted; None: that depends on other things.
        code: another gRPC status than the reason's; the wire keeps the one that a call has always had.

    >>> str(Refused(Refusal.FENCED, "run 'a' was superseded by run 'b'"))
    "FENCED: run 'a' was superseded by run 'b'"
    """

    def __init__(self, reason: Refusal, detail: str, retry_after: float | None = None, code: str | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.code = code or reason.code
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after
