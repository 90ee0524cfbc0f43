"""The errors of the client: the tracker refuses a call, or it does not answer."""

from __future__ import annotations


class TrackerError(Exception):
    """The tracker has refused a call. Nothing has changed; repeating the call would give the same answer.

    Args:
        code: the name of the gRPC status, such as ``"FAILED_PRECONDITION"``.
        reason: the contract's reason, such as ``"FENCED"``, for programs. Equal to `code` if the answer has none (it
            came from a proxy, or the server has a fault).
        message: for people: what was wrong and what to do about it. It begins with the reason.

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
    """A new run reports an epoch that its producer had committed before, so the report would not count.

    The client raises this itself, with the reason ``EPOCH_COMMITTED``; nothing was sent.

    Attributes:
        next_epoch: the first epoch that is not committed.

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
        self._arguments = (producer, epoch, next_epoch)

    def __reduce__(self) -> tuple[type[EpochCommittedError], tuple[str, int, int]]:
        return EpochCommittedError, self._arguments


class TrackerUnavailable(ConnectionError):  # noqa: N818
    """The tracker did not answer, or could not write its journal, for as long as the client tried.

    The call may or may not have been carried out. The client has repeated it if that is safe (the docstring of
    `TrackerClient` lists these calls); then the caller may make it again later.
    """
