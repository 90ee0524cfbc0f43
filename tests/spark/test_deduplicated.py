"""Rows that are delivered again, as in docs/howto/sources.md: each identity counts once in its substream."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, TrackingError, UsageError, session, sliding
from spark_client.columns import TRACKER, hashable
from spark_client.counting import once
from spark_client.counting.runs import Run
from spark_client.plan.labels import source_label
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.windows.fixed import Fixed
from spark_client.windows.named import Named
from spark_client.windows.substreams import Substream
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import START, Feed, appear, row, rows_of
from tracker.client import TrackerError
from tracker.contract.refusal import Refusal

pytestmark = pytest.mark.spark

DEAD = (KilledError, TrackingError, StreamingQueryException)


@pytest.fixture(autouse=True)
def _busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each batch look at what has ended, and merge parts."""
    monkeypatch.setattr(once, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(once, "_PARTS", 2)


def aggs() -> dict[str, Column]:
    return {"n": F.count("*"), "amount": F.sum("amount"), "ids": F.bit_xor("row_id")}


def kept(checkpoint: Path) -> list[str]:
    """Return the parts of identities that are kept after a query's last batch."""
    newest = max((checkpoint / "tracker" / once.IDENTITIES).glob("version-*.json"))
    parts: list[str] = json.loads(newest.read_text())["parts"]
    return parts


KINDS: dict[str, tuple[dict[str, Any], Callable[[], list[Column]]]] = {
    "named": ({"scope": "tenant", "substream": "kind"}, lambda: [F.col("tenant"), F.col("kind")]),
    "hours": ({"window": ("ts", "1 hour")}, lambda: [F.window("ts", "1 hour").alias("window")]),
    "sliding": (
        {"scope": "tenant", "window": ("ts", sliding("1 hour", "20 minutes"))},
        lambda: [F.col("tenant"), F.window("ts", "1 hour", "20 minutes").alias("window")],
    ),
    "sessions": (
        {"scope": "tenant", "window": ("ts", session("30 minutes"))},
        lambda: [F.col("tenant"), F.session_window("ts", "30 minutes").alias("window")],
    ),
}


def put_copies(feed: Feed, draw: random.Random, files: int) -> None:
    """Put rows in any order, some of them several times: in one file, in later ones, and when all is over."""
    number, had = 0, list[dict[str, Any]]()
    for file in range(files):
        rows = []
        for _ in range(12):
            number += 1
            rows.append(row(number, 60 * file + draw.uniform(0, 60), draw.choice("ab"), f"k{file}", draw.randrange(9)))
        had += rows
        rows += [draw.choice(had) for _ in range(8)]
        draw.shuffle(rows)
        feed.put(*rows)
    lasts = [row(1000 + i, 60 * files + 5000, tenant, "end", last=True) for i, tenant in enumerate("ab")]
    feed.put(*lasts, *had[:5], lasts[0])
    feed.put(*lasts, *had[-5:])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_copies_count_once_wherever_they_come_and_the_driver_dies(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, kind: str
) -> None:
    draw = random.Random(kind)
    put_copies(feed, draw, files=4)
    given, keys = KINDS[kind]
    driver = Driver(tmp_path)

    def live(dies_at: int | None) -> None:
        dying: Any = nullcontext() if dies_at is None else suppress(*DEAD)
        with driver.living(dies_at), dying:
            tracking = BatchTracking(feed, spark, job, tracker.address)
            front = Marks("is_last") if kind == "named" else Frontier("1 hour")
            raw = feed.stream(spark)
            source = tracking.source(raw, "in", **given, front=front, identity=["row_id"], deduplicate=True)
            released = tracking.release(source, aggs=aggs()).writeStream
            released.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
            tracking.process_all_available()
            if dies_at is None:
                tracking.finish(source)
                tracking.process_all_available()
            tracking.stop()

    for _ in range(5):
        live(dies_at=draw.randrange(5, 120))
    live(dies_at=None)
    batch = feed.batch(spark).dropDuplicates(["row_id"]).groupBy(*keys())
    expected = batch.agg(*[value.alias(name) for name, value in aggs().items()])
    columns = [name for name in expected.columns if name != "kind"]
    assert rows_of(tmp_path / "out", spark, *columns) == sorted(
        tuple(each) for each in expected.select(columns).collect()
    )


def declared(tracking: Any, feed: Feed, **given: Any) -> Any:
    given = {"scope": "tenant", "window": ("ts", "1 hour"), "front": Marks("is_last"), **given}
    raw = feed.stream(tracking.spark)
    return tracking.source(raw, "in", identity=["row_id"], **{"deduplicate": True, **given})


def released(tracking: Any, source: Any, path: Path) -> None:
    writer = tracking.release(source, aggs=aggs(), completeness=True).writeStream
    writer.option("checkpointLocation", path / "cp").start(path / "out")


def hour(number: int, ids: range) -> list[dict[str, Any]]:
    return [row(each, 60 * number + each % 59) for each in ids]


@pytest.mark.thorough
@pytest.mark.parametrize("probe", ["driver", "executors"])
def test_promised_counts_are_of_rows_and_not_of_copies(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: str
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address, probe=probe)
    counts = [("a", START.replace(tzinfo=timezone.utc), 4)]
    released(tracking, declared(tracking, feed, front=Schedule(counts)), tmp_path)
    feed.put(row(1, 5), row(2, 6), row(1, 5))
    feed.put(row(2, 6), row(1, 5), row(3, 7))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "n") == []
    feed.put(row(4, 8), row(4, 8), row(1, 5))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "n", "amount", "completeness") == [(4, 4, "whole")]
    tracking.stop()


@pytest.mark.thorough
def test_identities_go_when_their_substream_has_ended(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    released(tracking, declared(tracking, feed), tmp_path)
    for number in range(3):
        ids = range(100 * number, 100 * number + 5)
        feed.put(*hour(number, ids), row(100 * number + 50, 60 * number + 59, last=True), row(7, 3), row(9999, 6000))
        tracking.process_all_available()
        assert len(kept(tmp_path / "cp")) <= 3
    feed.put(row(9996, 6000, last=True))
    feed.put(row(1, 3), row(9998, 6001))  # late, a copy or not, and forgotten with the next batch
    feed.put(row(9997, 9000))
    tracking.process_all_available()
    (part,) = kept(tmp_path / "cp")
    own = tmp_path / "cp" / "tracker" / once.IDENTITIES
    assert spark.read.parquet(str(own / part)).count() == 1
    assert len(list(own.iterdir())) < 12
    assert rows_of(tmp_path / "out", spark, "n") == [(2,), *[(6,)] * 2, (7,)]
    assert tracking.late(tmp_path / "cp").count() == 2 + 2
    tracking.stop()


@pytest.mark.thorough
def test_a_drain_ends_windows_and_their_copies_stay_known(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    lives = [
        ("drain", [row(1, 5), row(2, 6)]),
        ("hand_over", [row(1, 5), row(3, 7)]),
        ("drain", [row(2, 6), row(3, 7), row(4, 59, last=True)]),
    ]
    for deployment, (ends_by, rows) in enumerate(lives):
        tracking = BatchTracking(feed, spark, job, tracker.address, f"v{deployment}")
        released(tracking, declared(tracking, feed), tmp_path)
        feed.put(*rows)
        tracking.process_all_available()
        getattr(tracking, ends_by)(timeout=60)
    assert rows_of(tmp_path / "out", spark, "n", "completeness") == [(2, "drained"), (2, "rest")]


@pytest.mark.thorough
def test_rows_that_are_only_sent_on_are_sent_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    clean = tracking.channel("clean", str(tmp_path / "clean"), keep=True)
    source = declared(tracking, feed).where("kind <> 'dropped'")
    source.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
    released(tracking, tracking.receive(clean), tmp_path)
    for number in range(2):
        ids = range(100 * number, 100 * number + 5)
        feed.put(*hour(number, ids), *hour(number, ids), row(100 * number + 9, 60 * number, "b", "dropped"))
        feed.put(
            *hour(number, ids),
            row(100 * number + 50, 60 * number + 59, last=True),
            row(1, 1, "b", "dropped", last=True),
        )
        tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "tenant", "n") == [("a", 6)] * 2
    assert len(kept(tmp_path / "cp1")) <= 3
    tracking.stop()


@pytest.mark.thorough
def test_a_query_that_has_run_without_begins_with_the_next_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    for given in (False, True, False, True):
        tracking = BatchTracking(feed, spark, job, tracker.address)
        released(tracking, declared(tracking, feed, deduplicate=given), tmp_path)
        feed.put(row(1, 5), row(1, 5))
        tracking.process_all_available()
        tracking.stop()
    tracking = BatchTracking(feed, spark, job, tracker.address)
    released(tracking, declared(tracking, feed), tmp_path)
    feed.put(row(1, 5), row(2, 59, last=True))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "n") == [(2 + 1 + 2 + 1 + 1,)]
    tracking.stop()


@pytest.mark.thorough
def test_a_repaired_batch_is_decided_anew(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    untimed = {**row(2, 6), "ts": None}
    feed.put(row(1, 5), untimed, untimed, row(3, 7))
    tracking = BatchTracking(feed, spark, job, tracker.address)
    released(tracking, declared(tracking, feed), tmp_path)
    with pytest.raises(TrackingError, match="ts is null"):
        tracking.process_all_available()
    appear(feed.path / "000001.json", [row(1, 5), row(2, 6), row(2, 6)], time.time())
    feed.put(row(2, 6), row(3, 7), row(4, 8, last=True))
    tracking = BatchTracking(feed, spark, job, tracker.address)
    released(tracking, declared(tracking, feed), tmp_path)
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "n", "ids") == [(4, 1 ^ 2 ^ 3 ^ 4)]
    tracking.stop()


@pytest.mark.thorough
def test_another_identity_than_that_of_the_kept_labels_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def live(*identity: str, deduplicate: bool = True) -> None:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"),
            identity=identity, deduplicate=deduplicate,
        )  # fmt: skip
        released(tracking, source, tmp_path)
        feed.put(row(1, 5), row(1, 5))
        tracking.process_all_available()
        tracking.stop()

    live("row_id")
    with pytest.raises(UsageError, match=r"'identity' was struct.row_id.*, is struct.kind, row_id"):
        live("kind", "row_id")
    live("row_id", deduplicate=False)
    live("kind", "row_id")


@pytest.mark.thorough
def test_identities_within_others_are_told_apart(spark: SparkSession) -> None:
    values = [
        ([], []), ([None], []), (["a"], ["b"]), (["a", "b"], []), ([None, "a"], ["b"]), (["a", None], ["b"]),
        (None, ["a", "b"]),
    ]  # fmt: skip
    pairs = [(None, "a"), ("a", None), (None, None), ("", "a"), None]
    moments = [(datetime(2024, 1, 1, 0, 0, 0, micros),) for micros in (0, 1, 2)]
    frames = [
        spark.createDataFrame(values, "x array<string>, y array<string>"),
        spark.createDataFrame([(each, None) for each in pairs], "x struct<a: string, b: string>, y int"),
        spark.createDataFrame([(each, None) for each in moments], "x struct<at: timestamp>, y int"),
    ]
    for frame in frames:
        labels = frame.select(source_label("job", [hashable(frame, "x"), hashable(frame, "y")]))
        assert labels.distinct().count() == frame.count()
    of_maps = spark.createDataFrame([({"a": 1},)], "m map<string, int>")
    with pytest.raises(UsageError, match="'m' is map<string,int>, whose equal values may be in different orders"):
        hashable(of_maps, "m")


@pytest.mark.thorough
def test_identities_of_another_time_are_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    for number in range(2):
        tracking = BatchTracking(feed, spark, job, tracker.address)
        released(tracking, declared(tracking, feed), tmp_path)
        feed.put(row(number, 5))
        tracking.process_all_available()
        tracking.stop()
    (tmp_path / "cp" / "tracker" / once.IDENTITIES / "version-000000000001.json").unlink()
    tracking = BatchTracking(feed, spark, job, tracker.address)
    released(tracking, declared(tracking, feed), tmp_path)
    feed.put(row(1, 5))
    with pytest.raises(StreamingQueryException, match=r"identities of rows .* that of batch 0, and Spark goes on with"):
        tracking.process_all_available()
    tracking.stop()


def test_a_source_without_identity_is_refused(spark: SparkSession, tracker: Server, job: str, feed: Feed) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    with pytest.raises(UsageError, match="needs at least one column of identity="):
        tracking.source(feed.stream(spark), "in", substream="tenant", deduplicate=True)


class Away:
    """A run of which the tracker is away."""

    incarnation = 0

    def unless_away(self, ask: Callable[[], Any]) -> None:
        return None


class Behind(Away):
    """A run that was away for longer than there are events, at a tracker that knows some substreams."""

    place = Place((9,), ("log",))

    def __init__(self, incarnation: int, known: dict[str, bool]) -> None:
        self.incarnation, self._known, self.news = incarnation, known, self

    def unless_away(self, ask: Callable[[], Any]) -> Any:
        return ask()

    def events(self, *_: Any) -> Any:
        raise TrackingError("gone") from TrackerError("OUT_OF_RANGE", Refusal.EVENTS_EXPIRED, "gone")

    def ended_of(self, substreams: set[Substream], _: str) -> dict[Substream, int | None]:
        return {
            each: 1 if each.name in self._known else None for each in substreams if self._known.get(each.name, True)
        }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("incarnation", "passed"),
    # After a drain, the tracker does not know what goes on: no row may count again.
    [(0, [1, 3, 5]), (1, [1, 5])],
)
def test_what_has_ended_is_asked_for_where_its_events_are_gone(
    spark: SparkSession, tmp_path: Path, incarnation: int, passed: list[int]
) -> None:
    rule = Named("kind", scope="tenant")

    def tracked(*rows: tuple[int, str]) -> DataFrame:
        frame = spark.createDataFrame(rows, "id long, kind string")
        return frame.withColumn(TRACKER, rule.tracker(F.lit("a"), F.col("kind"), F.col("id")))

    rows = [(1, "ended"), (2, "open"), (3, "forgotten")]
    before = once.CountedOnce(Folder(tmp_path), rule, "in")
    before.unique(tracked(*rows), cast(Run, Away()), 0)
    run = Behind(incarnation, {"ended": True, "open": False})
    after = once.CountedOnce(Folder(tmp_path), rule, "in")
    found = after.unique(tracked(*rows, (5, "open")), cast(Run, run), 1)
    assert sorted(each["id"] for each in found.collect()) == passed


@pytest.mark.thorough
def test_identities_move_to_windows_of_another_length(spark: SparkSession, tmp_path: Path) -> None:
    hour, day, run = 3_600_000_000, Fixed(24 * 3_600_000_000, scope="tenant"), cast(Run, Away())
    hours = Fixed(hour, scope="tenant")

    def tracked(rule: Fixed, *rows: tuple[int, int]) -> DataFrame:
        end = rule.key_at(F.col("at") * hour, None)
        frame = spark.createDataFrame(rows, "id long, at long")
        return frame.withColumn(TRACKER, rule.tracker(F.lit("a"), end, F.col("id")))

    def passed(rows: DataFrame) -> list[int]:
        return sorted(each["id"] for each in rows.collect())

    before = once.CountedOnce(Folder(tmp_path), hours, "in")
    assert passed(before.unique(tracked(hours, (1, 0), (2, 0), (2, 0)), run, 0)) == [1, 2]
    assert passed(before.unique(tracked(hours, (2, 0), (3, 5), (2, 5)), run, 1)) == [2, 3]
    once.recut(spark, Folder(tmp_path), 1, hours, day)
    after = once.CountedOnce(Folder(tmp_path), day, "in")
    assert passed(after.unique(tracked(day, (1, 7), (3, 7), (4, 7), (1, 30)), run, 2)) == [1, 4]
    assert after.copies == 2
