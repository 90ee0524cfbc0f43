"""Refusals of what no tracked query can run with: at its declaration or start, not when it is too late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from spark_client.datasource.watermark import OF_WINDOWS
from spark_client.errors import UsageError, check_kind, check_setting
from spark_client.plan.streams import Stream
from spark_client.release.declaring import check_grouping
from spark_client.runtime.elsewhere import Followed
from spark_client.spark_internals.plans import that_takes_single_rows
from spark_client.spark_internals.sessions import is_remote
from spark_client.storage.folder import Folder
from spark_client.windows.eventtime import WALL
from spark_client.windows.eventtime import check_session as check_wall_clock

_TRIGGERS: Final = ("processingTime", "once", "availableNow")
#: Settings, with what they must not be.
_OF_WATERMARKS: Final = (
    (
        "spark.sql.streaming.multipleWatermarkPolicy",
        "max",
        "the stream that is furthest would decide for all, and Spark would drop rows of the others",
    ),
    (
        "spark.sql.streaming.noDataMicroBatches.enabled",
        "false",
        "what is over would come out with later rows only, and the last of it never",
    ),
)


#: Features that have no form over Spark Connect, as a user writes them: why, and what to do.
ELSEWHERE: Final[Mapping[str, str]] = {
    "metrics=": "batches run in a process of the server, where nobody reads what this one serves: watch the tracker's "
    "own metrics, and those of Spark's server",
    "server=": "the tracker of a journal runs in the process that names it, on its loopback address, and the queries "
    "go on when this one has ended: run `tracker serve` where this process and Spark's server reach it",
    "Frontier(each='run')": "the process of a query does not learn whether a run has read all or was stopped: leave "
    "each= out, or give another front",
    "observe": "batches of its own are planned by the process that starts it, in Spark's log: observe from a classic "
    "session",
    "with_watermark": "its promises are read from what Spark observes, in the plan of a batch: use tracking.release",
    "write_stream": "its commits are read from Spark's log by the process that starts it: use tracking.release",
    "transform_with_state": "tasks promise and report there, and have to know their batch: use tracking.release, with "
    ".applyInPandas(…) for what aggregates cannot say",
}


def check_session(spark: Any) -> None:
    """Refuse what is no session."""
    if not is_remote(spark):
        check_kind("the session of Tracking", spark, SparkSession, "give a SparkSession")


def refuse_elsewhere(spark: SparkSession, what: str) -> None:
    """Refuse what has no form over Spark Connect.

    Args:
        what: a key of `ELSEWHERE`.
    """
    if is_remote(spark):
        raise UsageError(f"{what} over Spark Connect: {ELSEWHERE[what]}")


def check_option(key: str, value: Any) -> None:
    """Refuse options under which Spark commits a batch otherwise than tracking relies on."""
    if key.lower() == "asyncprogresstrackingenabled" and str(value).lower() == "true":
        raise UsageError(
            "asyncProgressTrackingEnabled: Spark would begin batches before the one before is in its commit log, so "
            "commits could not be reported: leave it off"
        )


def check_operators(df: DataFrame) -> None:
    """Refuse operators, and settings of the session, under which the tracker's watermark is not exact."""
    for key, bad, why in _OF_WATERMARKS:
        check_setting(df.sparkSession, key, bad, "write_stream", why)
    operator = that_takes_single_rows(df, OF_WINDOWS)
    if operator is not None:
        raise UsageError(
            f"with_watermark(…, over='windows'): the query has {operator}, which lives by each row's own time, and a "
            "row at just the watermark may still come: it would be dropped, or split a session. Give over='instants'"
        )


def check_trigger(trigger: Mapping[str, Any]) -> None:
    """Refuse triggers that make no batches of their own: continuous ones, and those in real time."""
    if len(trigger) != 1 or next(iter(trigger)) not in _TRIGGERS:
        raise UsageError(
            f"trigger({', '.join(trigger)}): a tracked query runs in batches: one of processingTime='1 second', "
            "availableNow=True, once=True"
        )


def check_checkpoint(given: str | None) -> None:
    """Refuse a query that has no checkpoint."""
    if given is None:
        raise UsageError(
            "a tracked query needs .option('checkpointLocation', 'path'): Spark's progress and the release's state "
            "live there"
        )


def check_exact(stream: Stream, asks: str) -> None:
    """Refuse rows that may come twice, where nobody would drop the second ones."""
    if not stream.input.exact:
        raise UsageError(
            f"{asks}: the rows of {stream.segment!r} come at least once, and some would be counted twice: release "
            "them, or send them through a channel of files"
        )


def check_start(
    reads: Iterable[Stream],
    checkpoint: Folder,
    name: str | None,
    started: Iterable[Followed],
    spark: SparkSession,
) -> None:
    """Refuse a query that cannot run beside those that were started before.

    Args:
        reads: the streams that it reads.
        name: that Spark is to call it; None: none.
        started: the queries that were started here, also those that have ended.
    """
    check_grouping(spark)
    reads = list(reads)
    for stream in reads:
        if stream.input.rule.clock == WALL:
            check_wall_clock(spark, f"the window of {stream.segment!r}")
    segments = {stream.segment for stream in reads}
    for other in started:
        if other.checkpoint.real == checkpoint.real:
            if other.runs:
                raise UsageError(
                    f"the query of checkpoint {checkpoint} runs already: stop it first, or give this one a checkpoint "
                    "of its own"
                )
        elif shared := segments.intersection(other.segments):
            raise UsageError(
                f"segment {min(shared)!r} has a consumer already, the query of checkpoint {other.checkpoint}: a "
                "segment has one, else its rows would be counted twice. Send them into a channel for each"
            )
    if name is not None and any(query.name == name for query in spark.streams.active):
        raise UsageError(
            f"queryName({name!r}): a query of this name runs already: stop it first, or call this otherwise"
        )
