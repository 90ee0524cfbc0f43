"""What can go wrong between a caller and the tracker: it refuses, or it does not answer."""

from __future__ import annotations


class TrackerError(Exception):
    """The tracker answered, and refused. Nothing has changed; asking again would give the same answer.

    Args:
        code: the name of the gRPC status, such as ``"FAILED_PRECONDITION"``.
        reason: the contract's reason, such as ``"FENCED"``: what a program reads. Equal to `code` if the answer came
            without one (a proxy's, or a fault in the server).
        message: what a person reads: what was wrong and what to do about it. Begins with the reason.

    >>> str(TrackerError("FAILED_PRECONDITION", "FENCED", "FENCED: run 'a' was superseded by run 'b'"))
    "FENCED: run 'a' was superseded by run 'b'"
    """

    def __init__(self, code: str, reason: str, message: str) -> None:
        super().__init__(code, reason, message)
        self.code = code
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


class TrackerUnavailable(ConnectionError):  # noqa: N818
    """The tracker did not answer, or could not write, for as long as the caller was ready to try.

    Whether the call was carried out is not known. Calls that are safe to repeat were repeated (`TrackerClient` says
    which these are) and may be made again later.
    """
