"""Errors as Spark passes them on: what is left of ours, and the end that Spark takes for a stop.

Relies on texts that Spark does not promise: the error of an action has the text that ``raise_error`` was given, and the
traceback of what Python has raised in the driver or in a task; and of ``CONCURRENT_STREAM_LOG_UPDATE``.
Fails closed: an error that is not known again reaches the user as Spark's own. Since Spark 4.0.
"""

from __future__ import annotations

import re
from typing import Final

try:
    from py4j.protocol import Py4JError as _Py4JError
except ImportError:  # `pyspark-client` has no JVM beside it
    _Py4JError = AttributeError

#: Errors of asking the JVM for what is no public interface of Spark. A session of Spark Connect has no JVM to ask, and
#: raises an AttributeError.
NOT_SHOWN: Final[tuple[type[Exception], type[Exception]]] = (AttributeError, _Py4JError)

# As Python's tracebacks write it.
_CAUSE: Final = re.compile(r"\b\w*(?:Exception|Error): (.+)$", re.MULTILINE)
_LONGEST: Final = 300  #: characters of such words
#: The last one where Spark finds the entry while it writes its own in a store of objects.
_TWO_DRIVERS: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Concurrent update to the log",
    "Multiple streaming queries are concurrently using",
)
_SENTENCE: Final = re.compile(r"^(?:spark_client\.errors\.)?(?:TrackingError|UsageError): (.+)$", re.MULTILINE)


def has_text(error: BaseException, text: str) -> bool:
    """Return whether an error comes from an expression that has raised this text.

    >>> has_text(RuntimeError("[USER_RAISED_EXCEPTION] TRACKER_BAD_ROW"), "TRACKER_BAD_ROW")
    True
    """
    return text in str(error)


def of_two_drivers(error: BaseException) -> bool:
    """Return whether Spark has found the entry of another driver in a checkpoint's log.

    >>> of_two_drivers(RuntimeError("Concurrent update to the log. Multiple streaming jobs detected for 2."))
    True
    >>> of_two_drivers(RuntimeError("Multiple streaming queries are concurrently using s3a://shop/cp/offsets."))
    True
    """
    return any(has_text(error, text) for text in _TWO_DRIVERS)


def sentence_in(error: BaseException) -> str | None:
    """Return the sentence of this package's error that was raised inside Spark; None: there was none.

    >>> sentence_in(RuntimeError("Traceback: …\\nspark_client.errors.TrackingError: 3 rows belong to no substream\\n"))
    '3 rows belong to no substream'
    """
    found = _SENTENCE.findall(str(error))
    return found[-1].strip() if found else None


def cause_in(error: BaseException) -> str:
    """Return the words of the error that is deepest in one of Spark's, on one line and without its class.

    >>> cause_in(RuntimeError("[FAILED] …\\n  File …\\nAnalysisException: [GONE] a.json\\n=== Streaming Query ==="))
    '[GONE] a.json'
    >>> cause_in(RuntimeError("no answer"))
    'no answer'
    """
    text = str(error).partition("=== Streaming Query ===")[0].strip()
    found = _CAUSE.findall(text)
    return (found[-1] if found else text.partition("\n")[0])[:_LONGEST].strip()


# Relies on Spark's reading of a Python error's text (``StreamExecution.isInterruptionException``): a call that was
# interrupted, written as py4j writes it, in a query that is being stopped. Fails open: a Spark that reads it otherwise
# shows the query as failed, and reads the batch again all the same. Since Spark 4.0.

INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling the tracker's stop\n: "
    "java.lang.InterruptedException: stopped between two batches"
)
