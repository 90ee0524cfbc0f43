"""Errors a user of `spark_client` can make, or may have to know."""

from __future__ import annotations


class TrackingError(Exception):
    """A tracked query cannot go on. The message has what happened and what to do."""


class UsageError(TrackingError, ValueError):
    """A declaration cannot work: raised where it is made, before any data flows."""


def check_choice(what: str, value: object, one: str, other: str) -> None:
    """Refuse a value of an option that has two.

    Raises:
        UsageError: it is neither.
    """
    if value not in (one, other):
        raise UsageError(f"{what}={value!r}: either {one!r} or {other!r}")


def torn(what: str, epoch: int, checkpoint: object) -> TrackingError:
    """Return the error of a checkpoint whose parts are not of one time.

    Args:
        what: the part that does not fit, and how.
        epoch: the batch that Spark goes on with.
        checkpoint: of the query, with Spark's part of it.
    """
    return TrackingError(
        f"{what}, and Spark goes on with batch {epoch} in {checkpoint}: some of the checkpoint is gone, or from "
        "another time. Nothing of this batch was released. Put back the whole checkpoint, Spark's files and the "
        "directory `tracker` as they were at one time; or start the query with a new checkpoint, which reads its "
        "sources anew"
    )
