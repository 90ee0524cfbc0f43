"""Schedules by part: a substream's count is known when each of its parts has given its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Counts, Schedule, Tracking, UsageError
from spark_client.fronts.front import SourceRows
from spark_client.windows.fixed import Fixed
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.test_counts import NoRows
from tests.spark.test_schedule import at
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark

RULE = Fixed(3_600_000_000, scope="tenant")
HOSTS = ["h1", "h2", "h3"]


def bound(schedule: Schedule) -> Any:
    nothing: Any = None
    schedule.bind(SourceRows("in", NoRows, RULE, nothing, nothing, None))  # type: ignore[arg-type]
    return schedule


def counts(schedule: Schedule) -> dict[tuple[str, str], int]:
    """Return the expected counts, by tenant and the hour in which its window begins."""
    return {(each.scope, each.name[11:13]): count for each, count in bound(schedule).table.items()}


@pytest.mark.parametrize("parts", [3, HOSTS, {*HOSTS}, "hosts"])
def test_counts_of_parts_add_up_once_all_are_there(parts: Any) -> None:
    number = [3] if parts == "hosts" else []
    rows = [("a", at(0), n, f"h{n}", *number) for n in (1, 2, 3)]
    rows += [("b", at(0), 4, "h1", *number), ("b", at(0), 5, "h2", *number), ("b", at(0), 5, "h2", *number)]
    assert counts(Schedule(rows, part="host", parts=parts, complete=False)) == {("a", "00"): 6}
    whole = [*rows, ("b", at(0), 0, "h3", *number)]
    assert counts(Schedule(whole, part="host", parts=parts)) == {("a", "00"): 6, ("b", "00"): 9}


def test_a_number_of_parts_that_grows_is_heeded() -> None:
    rows = [("a", at(0), 1, "h1", 2), ("a", at(0), 1, "h2", 3)]
    assert counts(Schedule(rows, part="host", parts="hosts", complete=False)) == {}
    assert counts(Schedule([*rows, ("a", at(0), 1, "h3", 3)], part="host", parts="hosts")) == {("a", "00"): 3}


def test_a_table_has_parts_in_columns_of_any_place(spark: SparkSession) -> None:
    rows = [("h1", "a", START, 2, 1), ("h2", "a", START, 2, 4)]
    table = spark.createDataFrame(rows, "`the host` string, tenant string, at timestamp, of int, n bigint")
    schedule = Schedule(table, part="the host", parts="of")
    source: Any = type("Rows", (), {"sparkSession": spark})
    schedule.bind(SourceRows("in", source, RULE, *[None] * 3))  # type: ignore[arg-type]
    assert [*schedule.table.values()] == [5]


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        ([("a", at(0), 1, "h1")], {"parts": 2}, "has .'h1'. of 2 parts, and its table is complete"),
        ([("a", at(0), 1, "h1"), ("a", at(0), 2, "h1")], {"parts": 2}, "part 'h1' of .* has 1 and 2 rows"),
        ([("a", at(0), 1, "h4")], {"parts": HOSTS}, "part 'h4' is none of Schedule"),
        ([("a", at(0), 1, f"h{n}") for n in range(3)], {"parts": 2}, "has 3 parts, .* and was to have 2"),
        ([("a", at(0), 1, None)], {"parts": 2}, "has a null"),
        ([("a", at(0), 1, "h1", "many")], {"parts": "hosts"}, "'hosts' is 'many': write the number of parts"),
        ([("a", at(0), 1)], {"parts": 2}, r"takes rows of \(scope, when, count, host\)"),
        ([], {"parts": None}, "give part='host'"),
    ],
)
def test_parts_that_contradict_one_another_are_refused(rows: Any, options: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        bound(Schedule(rows, part="host", **options))


def test_completeness_waits_for_parts_that_are_missing(spark: SparkSession) -> None:
    """Else the hour whose second host is silent would be over with the hours that are complete."""
    given = [("a", at(0), 1, "h1"), ("a", at(1), 1, "h1"), ("a", at(1), 1, "h2")]
    front = bound(Schedule(lambda: Counts(given, through=at(1)), part="host", parts=2))
    live = front.live(spark)
    assert live.find().through is None
    given.append(("a", at(0), 2, "h2"))
    found = live.find()
    assert (found.through, sorted(found.counts.values())) == (at(1), [2, 3])


@pytest.mark.thorough
def test_uploaders_count_their_rows_and_each_hour_equals_a_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Rows and counts come in any order, drivers are replaced, and a fourth uploader comes with a new hour."""
    draw = random.Random(1)
    rows = [row(n, draw.randrange(180), draw.choice("ab"), part=draw.randrange(3)) for n in range(60)]
    rows += [row(100 + n, 180 + draw.randrange(60), draw.choice("ab"), part=draw.randrange(4)) for n in range(20)]
    expected: dict[tuple[str, int], dict[int, int]] = {}
    for each in rows:
        hour = int(each["ts"][11:13])
        parts = expected.setdefault((each["tenant"], hour), dict.fromkeys(range(4 if hour == 3 else 3), 0))
        parts[each["part"]] += 1
    uploads = [
        (tenant, at(hour), count, f"h{part}", len(parts))
        for (tenant, hour), parts in expected.items()
        for part, count in parts.items()
    ]
    draw.shuffle(rows)
    draw.shuffle(uploads)
    given: list[Any] = []

    def start() -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        front = Schedule(lambda: [*given], part="uploader", parts="uploaders", refresh=0.02)
        source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=front)
        writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    for step in range(4):
        tracking = start()
        feed.put(*rows[20 * step : 20 * step + 20])
        tracking.process_all_available()
        given.extend(uploads[len(uploads) * step // 4 : len(uploads) * (step + 1) // 4])
        if step < 3:
            tracking.stop()

    def out() -> list[tuple[str, int, int]]:
        tracking.process_all_available()
        found = rows_of(tmp_path / "out", spark, "tenant", "window.start", "n")
        return [(tenant, begin.hour, number) for tenant, begin, number in found]

    soon(lambda: len(out()) == len(expected))
    assert out() == sorted((tenant, hour, sum(parts.values())) for (tenant, hour), parts in expected.items())
    tracking.stop()
