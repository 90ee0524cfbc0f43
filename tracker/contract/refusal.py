"""Why a command was not carried out."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - the contract's term
    """A command that the tracker refuses; it has changed nothing (but settling, once that was reached).

    Args:
        code: the name of the gRPC status that the wire answers with, such as ``"FAILED_PRECONDITION"``.
        reason: the contract's reason, such as ``"FENCED"``: what a program reads.
        detail: what a person reads: what was wrong and what to do about it.
        retry_after: the seconds after which the same command may be accepted; None: that depends on other things.

    >>> str(Refused("FAILED_PRECONDITION", "FENCED", "run 'a' was superseded by run 'b'"))
    "FENCED: run 'a' was superseded by run 'b'"
    """

    def __init__(self, code: str, reason: str, detail: str, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.code = code
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after

    @classmethod
    def malformed(cls, detail: str) -> Refused:
        """An ``INVALID_ARGUMENT`` for a message that contradicts itself."""
        return cls("INVALID_ARGUMENT", "MALFORMED", detail)

    @classmethod
    def invalid(cls, reason: str, detail: str) -> Refused:
        """An ``INVALID_ARGUMENT``: the command would be refused in any state."""
        return cls("INVALID_ARGUMENT", reason, detail)

    @classmethod
    def unknown(cls, reason: str, detail: str) -> Refused:
        """A ``NOT_FOUND``: something asked for by name does not exist."""
        return cls("NOT_FOUND", reason, detail)

    @classmethod
    def precondition(cls, reason: str, detail: str) -> Refused:
        """A ``FAILED_PRECONDITION``: the state forbids it now."""
        return cls("FAILED_PRECONDITION", reason, detail)
