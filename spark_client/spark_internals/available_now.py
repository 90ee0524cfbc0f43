"""Sources in Python that can tell where a run with `trigger(availableNow=True)` ends.

Spark cuts the backlog of such a run into batches only if all sources of the query can tell where it ends.

Relies on ``SupportsTriggerAvailableNow`` of ``pyspark.sql.streaming.datasource``, and on Spark asking a simple reader
that has it before the first read (``python_streaming_source_runner``). Fails open: Spark takes everything in one batch,
as it does before 4.2. Since Spark 4.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:

    class AvailableNow:
        """A source that can say where a run with ``availableNow`` ends."""

        def prepareForTriggerAvailableNow(self) -> None: ...  # noqa: N802
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:  # before Spark 4.2 there is no such thing for sources in Python

        class AvailableNow:
            """Says nothing: Spark takes everything in one batch."""
