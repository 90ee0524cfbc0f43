"""What a user reads when a query has failed: our sentence first, wherever Spark has put it."""

from __future__ import annotations

from typing import Final

from pyspark.errors import StreamingQueryException

from spark_client.advice import explained
from spark_client.errors import TrackingError
from spark_client.spark_internals.error_texts import of_two_drivers, sentence_in
from tracker.client import TrackerError, TrackerUnavailable

_TWO_DRIVERS: Final = (
    "two drivers have run this query with one checkpoint, and one has found the other's entry in Spark's log. Nothing "
    "is lost, and both may have ended: start one of them again, and see that the other stays down"
)


class QueryFailedError(TrackingError, StreamingQueryException):
    """A failed query, in the words of this package; who catches Spark's own error catches this one, too."""

    def __init__(self, sentence: str) -> None:
        StreamingQueryException.__init__(self, message=sentence)


def sentence_of(error: BaseException) -> str | None:
    """Return the sentence of this package that a failure goes back to; None: the failure is not of this package.

    >>> sentence_of(RuntimeError("Traceback: …\\nspark_client.errors.TrackingError: 3 rows belong to no substream\\n"))
    '3 rows belong to no substream'
    >>> sentence_of(ValueError("a user's own"))
    """
    if isinstance(error, TrackingError):
        return str(error)
    if isinstance(error, TrackerError | TrackerUnavailable):
        return str(explained(error))
    if of_two_drivers(error):
        return _TWO_DRIVERS
    return sentence_in(error)


def shortened(error: Exception) -> Exception:
    """Return the error to raise in Spark's place: with our sentence and no long chain, if it is ours; else the same."""
    sentence = sentence_of(error)
    return error if sentence is None else TrackingError(sentence)
