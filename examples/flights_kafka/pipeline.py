"""The pipeline: four queries over three Kafka topics, one of them a loop, and two tables in PostgreSQL.

    departures ──▶ first ──▶ clean ──────────────▶ daily ──▶ table daily
                     │         ▲
                     ▼         │
                   retry ──▶ again ──▶ given_up ──▶ dead ──▶ table given_up
                     ▲─────────┘

Looking up an aircraft's seats fails now and then. A failed look-up goes round by `retry` until it succeeds or was
tried twice. An airport's day waits for its flights in the loop, and is released once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import psycopg
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.flights.pipeline import figures
from spark_client import Schedule, Tables, Tracking

TOPICS = ("clean", "retry", "given_up")
TRIES = 2  #: after which a flight is given up
_ONE_IN = 12  # look-ups fail

TABLES = """
create table daily (
    origin text, window_start timestamptz, window_end timestamptz, carrier text,
    flights bigint, departed bigint, mean_delay double precision, worst_delay bigint, seats bigint
);
create table given_up (origin text, window_start timestamptz, window_end timestamptz, flights bigint);
"""


def fails(row_id: str, attempt: int) -> bool:
    """Return whether a flight's look-up fails at an attempt (1, 2, …): about one in twelve does.

    >>> [fails("2013-01-01 UA1545 EWR", attempt) for attempt in (1, 2, 3)]
    [False, True, False]
    """
    return int(hashlib.md5(f"{row_id}/{attempt}".encode()).hexdigest()[:6], 16) % _ONE_IN == 0


def _failed() -> Column:
    digest = F.md5(F.concat_ws("/", "row_id", "attempts").cast("binary"))
    return F.conv(F.substring(digest, 1, 6), 16, 10).cast("int") % _ONE_IN == 0


def start(
    spark: SparkSession,
    tracker: str,
    kafka: str,
    dsn: str,
    departures: DataFrame,
    timetable: DataFrame,
    planes: DataFrame,
    directory: Path,
) -> Tracking:
    """Start all queries; those that ran before go on from their checkpoints.

    Args:
        spark: the session.
        tracker: its address.
        kafka: the brokers.
        dsn: of the database.
        departures: a stream of flights as they become known.
        timetable: rows of (origin, day, number of flights).
        planes: rows of (tailnum, seats).
        directory: for checkpoints and what the channels remember.
    """
    tracking = Tracking(spark, job="flights", server=tracker)
    clean, retry, given_up = (tracking.kafka_channel(topic, topic, kafka, str(directory / topic)) for topic in TOPICS)

    def look_up(flights: DataFrame) -> DataFrame:
        known = flights.withColumn("attempts", F.col("attempts") + 1).drop("seats")
        return known.join(F.broadcast(planes), "tailnum", "left").withColumn("failed", _failed())

    flights = tracking.source(
        departures,
        "departures",
        scope="origin",
        window=("sched_dep", "1 day"),
        identity=["row_id"],
        front=Schedule(timetable),
    )
    first = flights.where("tailnum is not null").withColumn("attempts", F.lit(0)).transform(look_up)
    writers = {
        "first": first.writeStream.route([(clean, "not failed"), (retry, None)]),
        "again": tracking.receive(retry)
        .transform(look_up)
        .writeStream.route([(clean, "not failed"), (given_up, f"attempts >= {TRIES}"), (retry, None)]),
        "daily": tracking.release(tracking.receive(clean), ["carrier"], aggs=figures()).writeStream.sink(
            Tables(lambda: psycopg.connect(dsn), "daily")
        ),
        "dead": tracking.release(tracking.receive(given_up), aggs={"flights": F.count("*")}).writeStream.sink(
            Tables(lambda: psycopg.connect(dsn), "given_up")
        ),
    }
    for name, writer in writers.items():
        writer.queryName(name).option("checkpointLocation", directory / "checkpoints" / name).start()
    return tracking
