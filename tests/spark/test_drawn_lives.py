"""Lives of a job, drawn: which windows, promises, ways and results it has, and what happens to it, all at once.

Each feature has tests of its own. These tests look for what two features do to each other. In every life,
the results are those of a batch over all rows, each is out once, and what is out stays as it is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import (
    FinishedGroup,
    Frontier,
    Marks,
    Released,
    Schedule,
    Tracking,
    TrackingError,
    calendar,
    nested,
    session,
    sliding,
)
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import SCHEMA, Feed, row, rows_of
from tests.spark.test_nested import day_in_kathmandu

pytestmark = pytest.mark.spark

BATCHES = 6
LATE = 7000  #: the rows from this one on are late
DELAY = "40 minutes"  #: rows come no later than that
DEAD = (KilledError, TrackingError, StreamingQueryException)


@dataclass(frozen=True)
class Kind:
    """A kind of windows.

    Attributes:
        of: what a source is given.
        batchs: the windows as a batch computes them, one column for each level; none: substreams are named.
        several: whether a row is in several of them, or in one that is made when it ends.
    """

    of: Callable[[], dict[str, Any]]
    batchs: Callable[[], list[Column]]
    several: bool = False


def table(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Return rows as a feed's stream has them."""
    lines = spark.createDataFrame([(json.dumps(each),) for each in rows], "line string")
    return lines.select(F.from_json("line", SCHEMA).alias("row")).select("row.*")


def windows(*given: Any) -> dict[str, Any]:
    return {"window": ("ts", *given)}


KINDS: dict[str, Kind] = {
    "hours": Kind(lambda: windows("1 hour"), lambda: [F.window("ts", "1 hour")]),
    "moved": Kind(
        lambda: windows("2 hours", "25 minutes"), lambda: [F.window("ts", "2 hours", startTime="25 minutes")]
    ),
    "days": Kind(lambda: windows(calendar("1 day", "Asia/Kathmandu")), lambda: [day_in_kathmandu()]),
    "named": Kind(lambda: {"substream": "part"}, list),
    "sliding": Kind(
        lambda: windows(sliding("1 hour", "20 minutes")), lambda: [F.window("ts", "1 hour", "20 minutes")], True
    ),
    "sessions": Kind(lambda: windows(session("30 minutes")), lambda: [F.session_window("ts", "30 minutes")], True),
    "nested": Kind(
        lambda: windows(nested("1 hour", "3 hours")),
        lambda: [F.window("ts", "1 hour"), F.window("ts", "3 hours")],
        True,
    ),
}


@dataclass(frozen=True)
class Life:
    """A drawn life.

    Attributes:
        kind: of windows.
        front: what its source promises.
        way: of the rows: through how many channels, and who counts them.
        result: what the release makes.
        scope: whether substreams belong to tenants.
        local: whether times have no zone.
        quarantine: whether some rows are bad.
        late: whether some rows come after all of their time was promised.
        completeness, early, receipts: of the release.
        compact_from: option of the release.
        events: what happens after each batch was put.
        dies_stopping: whether the driver dies in each hand-over, and in the drain.
    """

    kind: str
    front: str
    way: str
    result: str
    scope: bool
    local: bool
    quarantine: bool
    late: bool
    completeness: bool
    early: bool
    receipts: bool
    compact_from: int
    events: tuple[str, ...]
    dies_stopping: bool

    @staticmethod
    def drawn(rng: random.Random) -> Life:
        kind = rng.choice([*KINDS])
        several = KINDS[kind].several
        fronts = ["frontier", "nothing"] if several else ["frontier", "marks", "counts"]
        if kind == "named":
            fronts.remove("frontier")
        front = rng.choice(fronts)
        made_when_ended = kind in ("sessions", "nested")
        result = "aggs" if made_when_ended else rng.choice(["aggs", "aggs", "rows", "function", "together"])
        return Life(
            kind,
            front,
            rng.choice(["direct", "files", "executors", "sealed", "two"]),
            result,
            scope=rng.random() < 0.8,
            local=kind != "days" and rng.random() < 0.3,
            quarantine=rng.random() < 0.5,
            late=front == "frontier" and rng.random() < 0.5,
            completeness=rng.random() < 0.3,
            early=result == "aggs" and not made_when_ended and rng.random() < 0.3,
            receipts=not several and rng.random() < 0.4,
            compact_from=rng.choice([2, 3, 24]),
            events=tuple(
                rng.choice(["wait", "wait", "go on", "restart", "tracker", "death", "hand over", "stop, tracker"])
                for _ in range(BATCHES)
            ),
            dies_stopping=rng.random() < 0.4,
        )


class Job:
    """A job that lives such a life.

    Args:
        spark: the session.
        address: of the tracker.
        name: of the job.
        feed: its rows.
        path: where everything else is.
        life: how it lives.
    """

    def __init__(self, spark: SparkSession, address: str, name: str, feed: Feed, path: Path, life: Life) -> None:
        self.spark, self.address, self.name, self.feed, self.path, self.life = spark, address, name, feed, path, life
        self.kind = KINDS[life.kind]
        self.outputs = ("aggs", "rows") if life.result == "together" else (life.result,)
        self.all_rows: list[dict[str, Any]] = []
        self.late = 0  # rows that came too late
        self.newest: Tracking

    # ---------------------------------------------------------------- rows

    def timed(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn("ts", F.col("ts").cast("timestamp_ntz")) if self.life.local else rows

    def grouped(self, rows: DataFrame, window: Column | None, *more: str) -> Any:
        keys = [*(["tenant"] if self.life.scope else []), *more]
        by = F.col("part") if window is None else window.alias("window")
        return rows.groupBy(*keys[:1], by, *keys[1:]) if self.life.scope else rows.groupBy(by, *keys)

    def rows(self, rng: random.Random) -> list[list[dict[str, Any]]]:
        """Return the rows of each batch."""
        batches: list[list[dict[str, Any]]] = []
        number = 0
        for batch in range(BATCHES):
            made = []
            for _ in range(rng.randrange(4, 14)):
                number += 1
                minute = 60 * batch + rng.choice([rng.uniform(-39, 0), rng.choice([-30, 0, -20, -39])])
                part = max(0, batch - rng.randrange(2))
                made.append(row(number, minute, rng.choice("aab"), rng.choice("xy"), rng.randrange(4), part=part))
            made.append(row(1000 + batch, 60 * batch, rng.choice("ab"), "x", part=batch))
            batches.append(made)
        self.all_rows = [each for made in batches for each in made]
        if not self.kind.several:
            self.mark()
        return batches

    def mark(self) -> None:
        """Mark the row of each substream that comes last."""
        window = self.kind.batchs()
        named = self.timed(table(self.spark, self.all_rows)).withColumn("window", window[0] if window else F.lit(None))
        name = F.col("window.start") if window else F.col("part")
        scope = F.col("tenant") if self.life.scope else F.lit("")
        substreams = {row_id: (of, name) for row_id, of, name in named.select("row_id", scope, name).collect()}
        last = {substreams[each["row_id"]]: each["row_id"] for each in self.all_rows}
        for each in self.all_rows:
            each["is_last"] = last[substreams[each["row_id"]]] == each["row_id"]

    def put(self, rng: random.Random, rows: list[dict[str, Any]]) -> None:
        if self.life.quarantine:
            missing = {"part": None} if self.life.kind == "named" else {"ts": None}
            rows = [*rows, row(5000 + self.feed.files, 0) | missing]
            rng.shuffle(rows)
        if self.life.late and self.feed.files % 2:
            self.late += 1
            rows = [*rows, row(LATE + self.late, -10_000 * self.late)]
        self.feed.put(*rows)

    # ---------------------------------------------------------------- the job

    def front(self) -> Any:
        if self.life.front == "frontier":
            return Frontier(DELAY)
        if self.life.front == "marks":
            return Marks("is_last")
        if self.life.front == "nothing":
            return None
        window = self.kind.batchs()
        counted = self.grouped(self.timed(table(self.spark, self.all_rows)), window[0] if window else None)
        when = F.min("ts") if window else F.first(F.col("part").cast("string"))
        counts = counted.agg(when.alias("at"), F.count("*").alias("n"))
        return Schedule(counts.select(*(["tenant"] if self.life.scope else []), "at", "n"))

    def start(self, deployment: int) -> Tracking:
        life = self.life
        probe: Any = "executors" if life.way in ("executors", "sealed") else "driver"
        self.newest = tracking = Tracking(self.spark, self.name, self.address, str(deployment), probe=probe)
        raw = self.timed(self.feed.stream(self.spark))
        if life.kind == "named":
            raw = raw.withColumn("part", F.col("part").cast("string"))
        source = tracking.source(
            raw, "in", scope="tenant" if life.scope else None, **self.kind.of(), identity=["row_id"],
            front=self.front(), on_bad_rows="quarantine" if life.quarantine else "fail",
        )  # fmt: skip
        stream = source.where("amount > 0").withColumn("twice", F.col("amount") * 2)
        sending = []
        hops = {"direct": [], "two": ["clean", "more"]}.get(life.way, ["clean"])
        for number, name in enumerate(hops):
            channel = tracking.channel(name, str(self.path / name))
            writer = stream.writeStream.channel(channel).option("checkpointLocation", self.path / f"cp {number}")
            if life.way == "sealed":
                writer = writer.option("seal", "true")
            sending.append(writer)
            stream = tracking.receive(channel)
        releases = {name: self.released(tracking, stream, name) for name in self.outputs}
        for each in sending:
            each.start()
        if life.result == "together":
            outputs = {
                name: each.writeStream.option("path", self.path / f"out {name}") for name, each in releases.items()
            }
            if life.receipts:  # a substream leaves one
                outputs["aggs"] = outputs["aggs"].receipts(self.path / "receipts")
            tracking.write_together(outputs).option("checkpointLocation", self.path / "cp").start()
            return tracking
        writer = releases[life.result].writeStream.option("compact_from", life.compact_from)
        if life.receipts:
            writer = writer.receipts(self.path / "receipts")
        writer.option("checkpointLocation", self.path / "cp").start(self.path / f"out {life.result}")
        return tracking

    def ends(self, rng: random.Random, driver: Driver, deployment: int, way: str) -> None:
        """End the deployment by a drain or a hand-over, in which a driver may die and be followed by another."""
        if self.life.dies_stopping:
            with driver.living(rng.randrange(40)), suppress(*DEAD):
                getattr(self.newest, way)(timeout=300)
            with suppress(*DEAD):
                self.newest.stop()
            try:
                self.start(deployment)
            except TrackingError as error:
                if "start another deployment=" not in str(error):
                    raise
                self.newest.stop()  # it was done before the driver died
                return
        getattr(self.newest, way)(timeout=300)
        self.newest.stop()

    def released(self, tracking: Tracking, stream: Any, name: str) -> Released:
        completeness, early = self.life.completeness, "0 seconds" if self.life.early else None
        if name == "aggs":
            return tracking.release(stream, ["kind"], aggs=AGGS(), completeness=completeness, early=early)
        kept = tracking.release(stream, ["kind"], columns=["row_id", "twice"], completeness=completeness)
        if name == "rows":
            return kept
        return kept.applyInPandas(middle, "n long, ids long, middle double")

    # ---------------------------------------------------------------- what comes of it

    def results(self, name: str) -> list[tuple[Any, ...]]:
        """Return the results that are out."""
        values = {"aggs": ["n", "ids", "twos"], "rows": ["row_id", "twice"], "function": ["n", "ids", "middle"]}[name]
        return rows_of(self.path / f"out {name}", self.spark, *self.names, "kind", *values)

    @property
    def names(self) -> list[str]:
        scope = ["tenant"] if self.life.scope else []
        return [*scope, *(["part"] if self.life.kind == "named" else ["window.start", "window.end"])]

    def expected(self, name: str) -> list[tuple[Any, ...]]:
        """Compute the results of all rows in one batch by Spark."""
        rows = self.timed(self.feed.batch(self.spark)).where("amount > 0").withColumn("twice", F.col("amount") * 2)
        if self.life.kind == "named":
            rows = rows.withColumn("part", F.col("part").cast("string"))
        rows = rows.where("part is not null" if self.life.kind == "named" else "ts is not null").where(
            f"row_id < {LATE}"
        )
        made: list[tuple[Any, ...]] = []
        levels: list[Column | None] = [*self.kind.batchs()] or [None]
        for window in levels:
            if name == "rows":
                placed = rows if window is None else rows.withColumn("window", window)
                found = placed.select(*self.names, "kind", "row_id", "twice")
            else:
                values = {**AGGS(), "middle": F.median(F.col("twice").cast("double"))}
                wanted = ["n", "ids", "twos"] if name == "aggs" else ["n", "ids", "middle"]
                grouped = self.grouped(rows, window, "kind").agg(*[values[each].alias(each) for each in wanted])
                found = grouped.select(*self.names, "kind", *wanted)
            made += [tuple(each) for each in found.collect()]
        return sorted(made)


def AGGS() -> dict[str, Any]:  # noqa: N802
    return {"n": F.count("*"), "ids": F.sum("row_id"), "twos": F.max("twice")}


def middle(group: FinishedGroup, rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {"n": [len(rows)], "ids": [int(rows["row_id"].sum())], "middle": [float(rows["twice"].median())]}
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 61))])
def test_a_drawn_life_has_the_results_of_a_batch(
    spark: SparkSession, mortal_tracker: Server, job: str, feed: Feed, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    life = Life.drawn(rng)
    print(life)
    running = Job(spark, mortal_tracker.address, job, feed, tmp_path, life)
    batches = running.rows(rng)
    driver = Driver(tmp_path)
    deployment = 1
    tracking = running.start(deployment)
    for batch, event in zip(batches, life.events, strict=True):
        running.put(rng, batch)
        if event == "tracker":
            mortal_tracker.restart()
        elif event == "stop, tracker":
            tracking.stop()
            mortal_tracker.restart()
            tracking = running.start(deployment)
        elif event == "restart":
            tracking.stop()
            tracking = running.start(deployment)
        elif event == "death":
            with driver.living(rng.randrange(60)), suppress(*DEAD):
                tracking.process_all_available()
            with suppress(*DEAD):
                tracking.stop()
            tracking = running.start(deployment)
        elif event == "hand over":
            tracking.process_all_available()
            running.ends(rng, driver, deployment, "hand_over")
            deployment += 1
            tracking = running.start(deployment)
        if event != "go on":
            tracking.process_all_available()
            for name in running.outputs:
                assert set(running.results(name)) <= set(running.expected(name)), "what is out stays as it is"
    tracking.process_all_available()
    if life.front in ("marks", "counts"):
        for name in running.outputs:
            assert running.results(name) == running.expected(name), "all have ended"
    running.ends(rng, driver, deployment, "drain")
    for name in running.outputs:
        assert running.results(name) == running.expected(name)
    at_source = tmp_path / ("cp" if life.way == "direct" else "cp 0")
    assert tracking.late(str(at_source)).where("kind = 'bad'").count() == (BATCHES if life.quarantine else 0)
    late = [json.loads(each["data"]) for each in tracking.late(str(tmp_path / "cp")).where("kind != 'bad'").collect()]
    ids = sum(each["ids"] if "ids" in each else each["row_id"] for each in late)
    times = {"sliding": 3}.get(life.kind, 1) * len(running.outputs)
    assert ids == times * sum(LATE + number for number in range(1, running.late + 1)), "each is set aside, once"
    if life.early:
        open_now = tracking.early(str(tmp_path / "cp")).count() if any((tmp_path / "cp").rglob("moment-*")) else 0
        assert open_now == 0, "nothing is open"
    if life.receipts:
        receipts = spark.read.parquet(str(tmp_path / "receipts"))
        rows, results = receipts.selectExpr("sum(rows)", "sum(results)").collect()[0]
        name = running.outputs[0]
        out = running.results(name)
        assert results == len(out)
        assert rows == (len(out) if name == "rows" else sum(each[len(running.names) + 1] for each in out))
