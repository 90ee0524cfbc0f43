"""Sources in Python that can tell where a run with `trigger(availableNow=True)` ends.

Spark cuts the backlog of such a run into batches only if all sources of the query can tell where it ends.

Relies on ``pyspark.sql.streaming.datasource``, which Spark has from 4.2 on. Fails open: before that Spark takes
everything in one batch.
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
