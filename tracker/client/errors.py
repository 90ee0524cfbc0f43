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


class EpochCommittedError(TrackerError):
    """A new run reports an epoch that its producer had committed before: nothing of it would count.

    Raised by the client itself, with the reason ``EPOCH_COMMITTED``; nothing was sent.

    Attributes:
        next_epoch: the first that is not committed.

    >>> EpochCommittedError("till", 0, 4).next_epoch
    4
    """

    def __init__(self, producer: str, epoch: int, next_epoch: int) -> None:
        super().__init__(
            "FAILED_PRECONDITION",
            "EPOCH_COMMITTED",
            f"EPOCH_COMMITTED: epoch {epoch} of producer {producer!r} was committed before this run was opened, so "
            f"this report would have no effect. The next epoch is {next_epoch}: `producer.epoch()` and "
            "`producer.epochs()` continue there. To report committed epochs of earlier runs again on purpose, open the "
            "run with replays=True",
        )
        self.next_epoch = next_epoch
        self._said = (producer, epoch, next_epoch)

    def __reduce__(self) -> tuple[type[EpochCommittedError], tuple[str, int, int]]:
        return EpochCommittedError, self._said


class TrackerUnavailable(ConnectionError):  # noqa: N818
    """The tracker did not answer, or could not write, for as long as the caller was ready to try.

    Whether the call was carried out is not known. Calls that are safe to repeat were repeated (`TrackerClient` says
    which these are) and may be made again later.
    """
