"""How a batch in Python ends so that Spark takes it for stopped, and not for failed.

Relies on Spark's reading of a Python error's text (``StreamExecution.isInterruptionException``): a call that was
interrupted, written as py4j writes it, in a query that is being stopped. Fails open: a Spark that reads it otherwise
shows the query as failed, and reads the batch again all the same. Since Spark 4.0.
"""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling the tracker's stop\n: "
    "java.lang.InterruptedException: stopped between two batches"
)
