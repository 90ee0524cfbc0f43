"""The pipeline: two queries, a channel between them, and the tracker that knows when an airport's day is over.

    departures ──▶ clean ──▶ channel ──▶ daily ──▶ one row an airport, scheduled day and carrier
    (the source)   query 1   (files)     query 2   each once, final, as soon as that airport's day is over

A substream is one airport's day: the flights that were scheduled to leave that airport on that day, whenever they
left. Nobody guesses how late a flight may be: the timetable says how many there are, and when the tracker has seen
every one of them arrive at the end of the pipeline, or fall out on the way, the day has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client import Channel, Schedule, Tracking


def figures() -> dict[str, Column]:
    """What is worth knowing about a carrier's day at an airport."""
    return {
        "flights": F.count("*"),
        "departed": F.count("dep_delay"),  # a cancelled flight has none
        "mean_delay": F.avg("dep_delay"),
        "worst_delay": F.max("dep_delay"),
        "seats": F.sum("seats"),
    }


@dataclass(frozen=True)
class Pipeline:
    """The running pipeline."""

    tracking: Tracking
    channel: Channel
    clean: StreamingQuery
    daily: StreamingQuery


def start(
    spark: SparkSession, tracker: str, departures: DataFrame, timetable: DataFrame, planes: DataFrame, directory: Path
) -> Pipeline:
    """Start both queries.

    Args:
        spark: the session.
        tracker: its address.
        departures: a stream of flights as they become known; columns as in `replay.DEPARTURES`.
        timetable: rows of (origin, day, number of flights).
        planes: rows of (tailnum, seats).
        directory: where channel, checkpoints and the released table (`released`) go.
    """
    tracking = Tracking(spark, job="flights", server=tracker)

    # Query 1 takes flights in, drops those that never got an aircraft, and looks up the seats of the others.
    flights = tracking.source(
        departures,
        "departures",
        scope="origin",
        window=("sched_dep", "1 day"),
        identity=["row_id"],
        front=Schedule(timetable),
    )
    channel = tracking.channel("flights", str(directory / "channel"), keep=True)  # the baseline reads it
    clean = (
        flights.where("tailnum is not null")
        .join(F.broadcast(planes), "tailnum", "left")
        .writeStream.channel(channel)
        .queryName("clean")
        .option("checkpointLocation", directory / "clean")
    )

    # Query 2 aggregates them, and releases each airport's day when it has ended.
    daily = (
        tracking.release(tracking.receive(channel), ["carrier"], aggs=figures())
        .writeStream.queryName("daily")
        .option("checkpointLocation", directory / "daily")
    )

    return Pipeline(tracking, channel, clean.start(), daily.start(directory / "released"))
