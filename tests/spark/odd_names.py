"""Names with anything in them, and a life that rows with such names live: restarts, late rows, revisions, drains."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Channel, Marks, TrackedStream, Tracking
from spark_client.columns import named, quoted
from tests.spark.feed import Feed

ODD = [
    *(
        "http.status",
        "a b",
        " lead",
        "trail ",
        "a`b",
        "``",
        "q'uote",
        'd"quote',
        "%s",
        "100%",
        "%(x)s",
        "?",
        "{}",
        "$x",
    ),
    *(
        "tab\there",
        "new\nline",
        "né",
        "ne\u0301",
        "😀",
        "select",
        "order",
        "null",
        "true",
        "1",
        "a/b",
        "..",
        "\\",
        "a:b",
    ),
    *("c,d", "a;b", "(x)", "a=b", "[0]", "*", "#r1", "-", "x" * 10_000, "Column<'x'>", "lambda x", "a<b>", "nul\0"),
    *("scope", "name", "kind", "end", "end_time", "label", "data", "rows", "reason", "sender", "sent", "value", "key"),
    *("count(1)", "sum(x)", "epochs", "id", "x#12L", "struct<a:int>", "current_date", "row", "piece", "piece.row"),
]


class Names:
    """The names of one life, drawn at random, all different whatever their case."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        drawn = iter(rng.sample(ODD, 14))
        self.id, self.tenant, self.time, self.last, self.text, self.number, self.none = (next(drawn) for _ in range(7))
        self.sum, self.most, self.key = (next(drawn) for _ in range(3))
        self.segment, self.channel = (next(drawn).replace("\0", "")[:500] or "empty" for _ in range(2))
        self.tenants = [next(drawn)[:500].replace("*", "**") for _ in range(2)]  # "*" stands for every scope

    def rows(self, spark: SparkSession, feed: Feed) -> DataFrame:
        raw = spark.readStream.schema("id long, t long, minute long, last boolean").option("maxFilesPerTrigger", 1)
        return raw.json(str(feed.path)).select(
            F.col("id").alias(self.id),
            F.when(F.col("t") == 0, self.tenants[0]).otherwise(self.tenants[1]).alias(self.tenant),
            F.timestamp_micros(F.col("minute") * 60_000_000).alias(self.time),
            F.col("last").alias(self.last),
            F.concat(F.lit("k"), F.col("id") % 2).alias(self.text),
            (F.col("id") * 10).alias(self.number),
            F.lit(None).cast("string").alias(self.none),
        )


def made(id_: int, t: int, minute: int, last: bool = False) -> dict[str, Any]:
    return {"id": id_, "t": t, "minute": minute, "last": last}


Results = Callable[[], DataFrame]


def live(
    names: Names,
    spark: SparkSession,
    address: str,
    job: str,
    feed: Feed,
    path: Path,
    channel_of: Callable[[Tracking], Channel],
    sink: Any = None,
    results: Results | None = None,
) -> None:
    """Send rows through a channel into a release; queries are stopped, started and drained; all is there at the end.

    Args:
        names: of columns, segments and tenants.
        channel_of: declares the channel.
        sink: of the release; None: files.
        results: reads what is in the sink.
    """

    def start(deployment: str = "1") -> tuple[Tracking, TrackedStream]:
        tracking = Tracking(spark, job, address, deployment)
        source = tracking.source(
            names.rows(spark, feed),
            names.segment,
            scope=quoted(names.tenant),
            window=(named(names.time), "1 hour"),
            identity=[named(names.id)],
            front=Marks(named(names.last)),
        )
        channel = channel_of(tracking)
        sending = source.where(named(names.number) > 0).writeStream.channel(channel, ordinal=names.text)
        sending.option("checkpointLocation", path / "send").start()
        released = tracking.release(
            tracking.receive(channel),
            [named(names.text), quoted(names.none), F.upper(named(names.text)), F.lit(5).alias(names.key)],
            aggs={
                names.sum: F.sum(named(names.number)),
                names.most: F.max(quoted(names.id)),
            },
            revisions=True,
        )
        writing = released.writeStream.option("checkpointLocation", path / "release")
        writing = writing.receipts(path / "receipts")
        if sink is None:
            writing.start(path / "out")
        else:
            writing.sink(sink).start()
        return tracking, source

    tracking, _ = start()
    feed.put(made(1, 0, 1), made(2, 1, 2), made(3, 0, 3))
    tracking.process_all_available()
    tracking.stop()
    tracking, _ = start()
    feed.put(made(4, 0, 4, last=True))
    tracking.process_all_available()
    feed.put(made(5, 0, 5))  # late, known row by row
    tracking.process_all_available()
    (late,) = tracking.late(str(path / "release")).collect()
    assert json.loads(late["data"])[names.number] == 50
    assert late["scope"] == names.tenants[0]
    tracking.stop()
    tracking, _ = start()
    assert [r.rows for r in tracking.reopen(str(path / "release"), scope=names.tenants[0])] == [1]
    feed.put(made(6, 1, 6))
    tracking.process_all_available()
    tracking.drain(timeout=120)
    tracking.stop()
    tracking, source = start("2")
    feed.put(made(7, 1, 7))
    tracking.process_all_available()
    tracking.stop()
    tracking.client.drain(job, "2", "asked for while nothing runs")
    tracking, source = start("2")
    tracking.await_drained(timeout=120)
    tracking.stop()
    tracking, source = start("3")
    feed.put(made(8, 1, 8))
    tracking.process_all_available()
    tracking.finish(source)
    tracking.process_all_available()
    tracking.stop()

    table = spark.read.parquet(str(path / "out")) if results is None else results()
    columns = [named(c) for c in (names.tenant, "revision", names.text, names.none, f"upper({names.text})", names.key)]
    got = sorted(tuple(r) for r in table.select(*columns, named(names.sum), named(names.most)).collect())
    one, other = names.tenants
    assert got == sorted(
        [
            (one, 0, "k0", None, "K0", 5, 40, 4),
            (one, 0, "k1", None, "K1", 5, 40, 3),
            (one, 1, "k1", None, "K1", 5, 50, 5),
            (other, 0, "k0", None, "K0", 5, 80, 6),
            (other, 0, "k1", None, "K1", 5, 70, 7),  # of the window that the drain has closed: the next deployment's
            (other, 0, "k0", None, "K0", 5, 80, 8),
        ]
    )
    receipts = spark.read.parquet(str(path / "receipts")).where("rows > 0")
    assert sorted((r.segment, r.scope, r.rows) for r in receipts.collect()) == sorted(
        [(names.channel, one, rows) for rows in (3, 1)] + [(names.channel, other, rows) for rows in (2, 1, 1)]
    )
