"""A kind of windows of the user's own, from outside the package: from one full moon to the next."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Substreams, UsageError
from spark_client.windows.eventtime import DAY, micros_in
from spark_client.windows.lengths import Length, TimedRows
from spark_client.windows.substreams import Windows
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

FULL_MOONS = [
    *("2023-12-27T00:33:00Z", "2024-01-25T17:54:00Z", "2024-02-24T12:30:00Z", "2024-03-25T07:00:00Z"),
    *("2024-04-23T23:49:00Z", "2024-05-23T13:53:00Z"),
]
MOONS = [micros_in(text) for text in FULL_MOONS]


@dataclass(frozen=True)
class Lunations(Windows):
    """Windows that end at each full moon of an almanac."""

    almanac: str

    marker = "almanac"
    called = "lunations"

    @property
    def reach(self) -> int:
        return 30 * DAY

    def bounds_at(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:
        moons = F.array(*map(F.lit, MOONS))
        before = F.array_max(F.filter(moons, lambda moon: moon <= micros))
        return before, F.array_min(F.filter(moons, lambda moon: moon > micros))


class FullMoons(Length):
    def windows(self, rows: TimedRows) -> tuple[Windows, Column]:
        rule = Lunations("2024", **rows.fields(rows.time))
        return rule, rule.key_at(rows.micros, None)


@pytest.mark.parametrize(
    "through_a_channel", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["direct", "channel"]
)
def test_a_kind_of_windows_from_outside_is_released_like_a_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, through_a_channel: bool
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", FullMoons()), identity=["row_id"],
        front=Frontier("1 day"),
    )  # fmt: skip
    stream = source.where("amount > 0")
    if through_a_channel:  # whoever receives has the windows from the channel's description
        clean = tracking.channel("clean", str(tmp_path / "clean"))
        stream.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
        stream = tracking.receive(clean)
    released = tracking.release(stream, ["kind"], aggs={"rows": F.count("*")}, completeness=True)
    writer = released.writeStream.receipts(tmp_path / "receipts").option("checkpointLocation", tmp_path / "cp")
    writer.start(tmp_path / "out")
    days = [1, 2, 20, 24, 26, 40, 54, 60]
    rows = [row(number, 60 * 24 * day, "ab"[number % 2], "xy"[number // 3 % 2]) for number, day in enumerate(days)]
    feed.put(*rows[:4])
    feed.put(*rows[4:], row(90, 60 * 24 * 120, "c"))  # which ends all windows of the others
    tracking.process_all_available()
    feed.put(row(91, 60 * 24 * 3, "a"))
    tracking.process_all_available()

    at = F.unix_micros("ts")
    good = feed.batch(spark).where("row_id < 90").select("tenant", "kind", at).collect()
    expected = Counter((tenant, MOONS[bisect_right(MOONS, micros)], kind) for tenant, kind, micros in good)
    columns = ("tenant", "kind", "rows", "completeness")
    out = spark.read.parquet(str(tmp_path / "out")).select(F.unix_micros("window.end"), *columns).collect()
    assert {(tenant, end, kind): number for end, tenant, kind, number, _ in out} == expected
    assert {r[-1] for r in out} == {"whole"}
    late = tracking.late(str(tmp_path / "cp")).select("name").collect()
    assert [name for (name,) in late] == [f"{FULL_MOONS[0]}/{FULL_MOONS[1]}"]
    receipts = spark.read.parquet(str(tmp_path / "receipts")).where("results > 0").select("scope", "name", "rows")
    by_window = Counter[tuple[str, str]]()
    for tenant, _, micros in good:
        place = bisect_right(MOONS, micros)
        by_window[tenant, f"{FULL_MOONS[place - 1]}/{FULL_MOONS[place]}"] += 1
    assert {(scope, name): number for scope, name, number in receipts.collect()} == by_window
    tracking.stop()


def test_a_description_brings_the_kind_back_where_its_module_is_imported() -> None:
    rule = Lunations("2024", scope="tenant")
    described = json.loads(json.dumps(rule.to_json()))
    assert Substreams.from_json(described) == rule
    with pytest.raises(UsageError, match="described by eclipses, which no kind of windows here has: import the module"):
        Substreams.from_json({**described, "eclipses": "2024"})
