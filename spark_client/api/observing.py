"""Observation of a query that is left as it is: what can be observed, and the writer that starts an observer."""

from __future__ import annotations

import os
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from spark_client.api.refusals import refuse_elsewhere
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import TrackedWriter
from spark_client.destinations.destination import Nowhere
from spark_client.errors import UsageError, check_seconds
from spark_client.plan.sources import Source
from spark_client.runtime.observer import Observed
from spark_client.spark_internals.checkpoints import checkpoint_of, started_query
from spark_client.spark_internals.plans import options_read
from spark_client.spark_internals.stores import folder_of

#: Options of a source under which rows could be missing, or files go: by name in small letters, with the one value that
#: is none of them.
_UNFIT: Final = {
    "cleansource": ("off", "it would remove files of the query that is observed"),
    "failondataloss": ("true", "rows that are gone would be missing in the counts, and nobody would know"),
    "ignoremissingfiles": ("false", "rows that are gone would be missing in the counts, and nobody would know"),
}


class ObservingWriter(TrackedWriter):
    """Writer of an observer, which counts the rows of a stream and writes none.

    Args:
        stream: what `Tracking.source` returned for the rows to be counted.
        query: that is observed, or its checkpoint.
        checkpoint: the directory of the observer's own checkpoint.

    Raises:
        UsageError: that cannot be observed.
    """

    def __init__(
        self,
        stream: TrackedStream,
        query: StreamingQuery | str | os.PathLike[str],
        checkpoint: str | os.PathLike[str],
        source: int | None,
        from_now: bool,
        every: float,
    ) -> None:
        rows = stream.readable
        origin, spark = rows.plan.input, rows.df.sparkSession
        refuse_elsewhere(spark, "observe")
        if not isinstance(origin, Source) or rows.plan.steps:
            raise UsageError(
                "observe takes the result of tracking.source as it is: do before what is done to the rows, "
                "tracking.source(raw.where(…), …)"
            )
        check_seconds("observe: every", every)
        given = options_read(rows.df)
        for option, (fit, why) in _UNFIT.items():
            if given.get(option, fit).lower() != fit:
                raise UsageError(f"observe: the source {origin.segment!r} has {option}={given[option]}: {why}")
        place = query if isinstance(query, str | os.PathLike) else checkpoint_of(query)
        observed = folder_of(spark, place, "the checkpoint of the query that is observed,")
        own = folder_of(spark, checkpoint, "checkpoint")
        if f"{own.real}/".startswith(f"{observed.real}/") or f"{observed.real}/".startswith(f"{own.real}/"):
            raise UsageError(
                f"observe: {own} and {observed}, the checkpoint of the query that is observed, are one inside the "
                "other, and nothing is written there: give the observer a checkpoint beside it"
            )
        started_query(observed)
        super().__init__(stream.tracking, rows)
        self.observed = Observed(observed, source, from_now, every)
        self._destinations["observe"] = Nowhere()
        self.option("checkpointLocation", checkpoint)
