"""The pipeline: two queries, a channel between them, and the tracker that knows when an airport's day is over.

    departures ──▶ clean ──▶ channel ──▶ daily ──▶ one row an airport, scheduled day and carrier
    (the source)   query 1   (files)     query 2   each once, final, as soon as that airport's day is over

A substream is one airport's day: the flights that were scheduled to leave that airport on that day, whenever they
left. Nobody guesses how late a flight may be: the timetable says how many there are, and when the tracker has seen
every one of them arrive at the end of the pipeline, or fall out on the way, the day has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client import Aggregate, Channel, Schedule, Snapshots, TrackedWriter, Tracking


def figures() -> dict[str, Column]:
    """Return the aggregates of a carrier's day at an airport."""
    return {
        "flights": F.count("*"),
        "departed": F.count("dep_delay"),  # a cancelled flight has none
        "mean_delay": F.avg("dep_delay"),
        "worst_delay": F.max("dep_delay"),
        "seats": F.sum("seats"),
    }


@dataclass(frozen=True)
class Version:
    """A version of the pipeline, which goes on where the one before has handed over.

    Attributes:
        deployment: its name.
        seats_apart: whether a query of its own looks up the seats, behind a channel of its own.
        figures: what is worth knowing.
        mapping: makes what the figures keep of what the version before has kept, which left a snapshot of it; None: the
            same is kept.
    """

    deployment: str = "1"
    seats_apart: bool = False
    figures: Mapping[str, Aggregate | Column] = field(default_factory=figures)
    mapping: Callable[[DataFrame], DataFrame] | None = None

    @property
    def checkpoint(self) -> str:
        """The name of the releasing query's checkpoint: one that is made of a snapshot is another one."""
        return "daily" if self.mapping is None else f"daily-{self.deployment}"


@dataclass(frozen=True)
class Pipeline:
    """The running pipeline."""

    tracking: Tracking
    channel: Channel
    clean: StreamingQuery
    daily: StreamingQuery


def start(
    spark: SparkSession,
    tracker: str,
    departures: DataFrame,
    timetable: DataFrame,
    planes: DataFrame,
    directory: Path,
    version: Version | None = None,
) -> Pipeline:
    """Start the queries.

    Args:
        spark: the session.
        tracker: its address.
        departures: a stream of flights as they become known; columns as in `replay.DEPARTURES`.
        timetable: rows of (origin, day, number of flights).
        planes: rows of (tailnum, seats).
        directory: where channel, checkpoints and the released table (`released`) go.
        version: of the pipeline; None: the first.
    """
    version = version or Version()
    tracking = Tracking(spark, job="flights", server=tracker, deployment=version.deployment)

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
    known = flights.where("tailnum is not null")
    if version.seats_apart:
        between = tracking.channel("known", str(directory / "known"))
        first = _query(known.writeStream.channel(between), "clean", directory)
        known = tracking.receive(between)
    seated = known.join(F.broadcast(planes), "tailnum", "left").writeStream.channel(channel)
    senders = (
        [first, _query(seated, "seats", directory)] if version.seats_apart else [_query(seated, "clean", directory)]
    )

    # Query 2 aggregates them, and releases each airport's day when it has ended.
    released = tracking.release(tracking.receive(channel), ["carrier"], aggs=dict(version.figures))
    if version.mapping is not None:
        newest = snapshots(directory).newest()
        newest.restore(released, directory / version.checkpoint, mapping=version.mapping)
    daily = _query(released.writeStream, version.checkpoint, directory)

    clean, *_ = [sender.start() for sender in senders]
    return Pipeline(tracking, channel, clean, daily.start(directory / "released"))


def snapshots(directory: Path) -> Snapshots:
    """Return the place to which the state is exported when a version hands over to one that keeps other aggregates."""
    return Snapshots(directory / "snapshots", keep=2)


def _query(writer: TrackedWriter, name: str, directory: Path) -> TrackedWriter:
    return writer.queryName(name).option("checkpointLocation", directory / name)
