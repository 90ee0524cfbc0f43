"""Windows of a calendar: days, weeks, months and years as clocks in a zone show them, each tenant's in its own."""

from __future__ import annotations

import random
from bisect import bisect_right
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, UsageError, calendar
from spark_client.fronts import timetable
from spark_client.windows import eventtime
from spark_client.windows.declaration import declare
from spark_client.windows.eventtime import DAY
from spark_client.windows.substreams import Substreams
from tests.client.processes import Server
from tests.spark.feed import Feed, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

#: Clocks that change at midnight, by half an hour, by a day, at odd times; that have offsets of half and quarter hours.
ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/Havana", "Europe/London",
    "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "Asia/Kolkata", "Pacific/Chatham",
]  # fmt: skip
LENGTHS = [
    "1 day", "3 days", "1 week", "2 weeks", "1 month", "2 months", "5 months", "1 quarter", "1 year", "4 years",
]  # fmt: skip
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTHS = ["january", "february", "march", "april", "may", "june"]
#: Around changes of clocks, ends of months and of years, leap days, and before 1970.
CORNERS = [
    (2024, 3, 31), (2024, 10, 27), (2018, 11, 4), (2018, 2, 18), (2011, 12, 30), (2024, 2, 29), (1900, 2, 28),
    (2023, 12, 31), (1969, 12, 31), (1970, 1, 1), (2006, 10, 29), (2007, 4, 1), (2021, 3, 28), (1950, 4, 30),
]  # fmt: skip
EPOCH = datetime(1970, 1, 1)


def first_days(length: str, first: str | None) -> list[date]:
    """Return the days on which windows begin, from 1890 to 2080: by Python's calendar."""
    number, unit = int(length.split()[0]), length.split()[1].rstrip("s")
    if unit in ("day", "week"):
        step = timedelta(days=number * (7 if unit == "week" else 1))
        day = date(1970, 1, 1)
        while unit == "week" and day.weekday() != WEEKDAYS.index(first or "monday"):
            day += timedelta(days=1)
        day -= (day - date(1890, 1, 1)) // step * step
        return [day + step * place for place in range((date(2080, 1, 1) - day) // step)]
    months = number * {"month": 1, "quarter": 3, "year": 12}[unit]
    begin = 1970 * 12 + (MONTHS.index(first) if first else 0)
    begin -= (begin - 1890 * 12) // months * months
    return [date(each // 12, each % 12 + 1, 1) for each in range(begin, 2080 * 12, months)]


def micros(moment: datetime) -> int:
    return (moment.astimezone(UTC).replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


@cache
def starts(length: str, first: str | None, zone: str, hours: int) -> list[int]:
    """Return when windows begin: Python's own time zones tell when a clock shows it first."""
    begin = [datetime.combine(day, datetime.min.time()) + timedelta(hours=hours) for day in first_days(length, first)]
    return [micros(each.replace(tzinfo=ZoneInfo(zone))) for each in begin]


def expected_window(instant: int, begin: list[int]) -> tuple[int, int]:
    place = bisect_right(begin, instant)
    return begin[place - 1], begin[place]


def some_micros(rng: random.Random) -> int:
    if rng.random() < 0.8:
        corner = (date(*rng.choice(CORNERS)).toordinal() - date(1970, 1, 1).toordinal()) * DAY
        near = corner + rng.randrange(-36, 60) * 3_600_000_000
        return near + rng.choice([0, -1, 1, rng.randrange(3_600_000_000)])
    return rng.randrange(-2 * 10**15, 3 * 10**15)


@pytest.mark.thorough
@pytest.mark.parametrize("draws", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_windows_are_those_of_pythons_calendar_in_every_zone(spark: SparkSession, conf: Any, draws: int) -> None:
    rng = random.Random(draws)
    for number in range(draws):
        length = LENGTHS[number % len(LENGTHS)]
        unit = length.split()[1].rstrip("s")
        first = rng.choice([None, *(WEEKDAYS if unit == "week" else [] if unit == "day" else MONTHS)])
        hours = rng.choice([0, 0, 6, 23])
        conf("spark.sql.session.timeZone", rng.choice(ZONES))
        conf("spark.sql.ansi.enabled", rng.choice(["true", "false"]))
        drawn = [(some_micros(rng), rng.choice(ZONES)) for _ in range(150)]
        rows = spark.createDataFrame(drawn, "micros long, zone string").withColumn("at", F.timestamp_micros("micros"))
        by_row = number % 2 == 0
        zone: Any = F.col("zone") if by_row else rng.choice(ZONES)
        window = ("at", calendar(length, zone, first=first), f"{hours} hours")
        declared = declare(rows, None, window, None)
        rule, scope, key = declared.rule, declared.scope, declared.key
        named = rows.select("micros", "zone", key.alias("_name"))
        shown = named.select("*", *rule.result_columns(scope, F.col("_name")))
        got = shown.select("micros", "zone", F.unix_micros("window.start"), F.unix_micros("window.end"), "_name")
        for instant, own, start, end, text in got.collect():
            begin = starts(length, first, own if by_row else zone, hours)
            assert (start, end) == expected_window(instant, begin), (length, first, own, zone, hours, instant, text)
            name_of, end_of = rule.substream("", text)[1:]
            assert name_of == f"{eventtime.iso(start, 'timestamp')}/{eventtime.iso(end, 'timestamp')}"
            assert end_of == end
            assert rule.key_of(rule.substream("", text)) == text


@pytest.mark.thorough
@pytest.mark.parametrize("zones", [ZONES[3:4], pytest.param([*ZONES[:3], "Pacific/Apia"], marks=pytest.mark.slow)])
def test_windows_begin_where_sparks_date_trunc_says_in_that_zone(
    spark: SparkSession, conf: Any, zones: list[str]
) -> None:
    rng = random.Random(11)
    # Before, clocks were put back to midnight here and there, which is shown twice then: windows begin at the first.
    drawn = [(each,) for each in (some_micros(rng) for _ in range(400)) if each > -20 * 365 * DAY]
    for zone in zones:
        conf("spark.sql.session.timeZone", zone)
        rows = spark.createDataFrame(drawn, "micros long").select(F.timestamp_micros("micros").alias("at"))
        compared = []
        for unit in ("day", "week", "month", "quarter", "year"):
            declared = declare(rows, None, ("at", calendar(f"1 {unit}", zone)), None)
            rule, scope, key = declared.rule, declared.scope, declared.key
            (window,) = rule.result_columns(scope, key)
            compared.append((window.getField("start") == F.date_trunc(unit, "at")).alias(unit))
        assert rows.select(*compared).distinct().collect() == [(True,) * 5], zone


@pytest.mark.thorough
def test_windows_of_wall_clocks_and_of_dates(spark: SparkSession, conf: Any) -> None:
    rng = random.Random(12)
    conf("spark.sql.session.timeZone", "America/New_York")
    rows = spark.createDataFrame([(some_micros(rng),) for _ in range(200)], "micros long").select(
        F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00' + micros * INTERVAL '0.000001' SECOND").alias("local"),
        F.date_from_unix_date((F.col("micros") / DAY).cast("int")).alias("day"),
    )
    declared = declare(rows, None, ("local", calendar("1 month")), None)
    rule, scope, key = declared.rule, declared.scope, declared.key
    (window,) = rule.result_columns(scope, key)
    assert (
        rows.select(window).schema["window"].dataType.simpleString() == "struct<start:timestamp_ntz,end:timestamp_ntz>"
    )
    texts = rows.select("local", key, window.getField("start").cast("date"), window.getField("end").cast("date"))
    for local, text, start, end in texts.collect():
        assert start == date(local.year, local.month, 1)
        assert end == start + timedelta(days=monthrange(local.year, local.month)[1])
        assert rule.substream("", text).name == f"{start}T00:00:00/{end}T00:00:00"
    declared = declare(rows, None, ("day", calendar("1 day", "Europe/Berlin")), None)
    rule, scope, key = declared.rule, declared.scope, declared.key
    for day, text in rows.select("day", key).collect():
        assert rule.substream("", text).name.startswith(
            eventtime.iso(micros(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("Europe/Berlin"))), "x")
        )


@pytest.mark.thorough
def test_far_and_unknown_times_belong_nowhere(spark: SparkSession) -> None:
    far = [2**63 - 1, -(2**63), eventtime.LIMIT, -eventtime.LIMIT, None]
    rows = spark.createDataFrame([(each,) for each in far], "micros long").select(
        F.timestamp_micros("micros").alias("at")
    )
    key = declare(rows, None, ("at", calendar("1 year", "Europe/Berlin")), None).key
    assert [text for (text,) in rows.select(key).collect()] == [None] * len(far)
    for year in (-70_000, -1, 0, 9999, 70_000):
        at = spark.sql(f"select timestamp_micros({(year - 1970) * 365 * DAY}) as at")
        declared = declare(at, None, ("at", calendar("1 month", "Asia/Kolkata")), None)
        rule, scope, key = declared.rule, declared.scope, declared.key
        text, shown = at.select(key, F.unix_micros(rule.result_columns(scope, key)[0].getField("end"))).collect()[0]
        assert rule.substream("", text).end_time == shown
        shown_as = at.select(rule.name_and_end(key)[0]).collect()[0][0]
        assert shown_as == rule.substream("", text).name


def test_names_are_read_as_they_are_written() -> None:
    rng = random.Random(4)
    for _ in range(3000):
        value = rng.randrange(-eventtime.LIMIT, eventtime.LIMIT)
        assert eventtime.micros_in(eventtime.iso(value, "timestamp")) == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: calendar("1 hour", "UTC"), "window=\\('time', '1 hour'\\)"),
        (lambda: calendar("0 days", "UTC"), "a whole number"),
        (lambda: calendar("9999 years", "UTC"), "too long"),
        (lambda: calendar("1 week", "UTC", first="may"), "one of monday"),
        (lambda: calendar("1 day", "UTC", first="monday"), "none: give an offset"),
        (lambda: calendar("1 day", 5), "give a name"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_calendar_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        given()


def test_calendars_that_do_not_fit_their_times_are_refused(spark: SparkSession, job: str, feed: Feed) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    rows = feed.stream(spark).withColumn("local", F.col("ts").cast("timestamp_ntz"))
    for window, message in (
        (("ts", calendar("1 day")), "whose 1 day"),
        (("ts", calendar("1 day", "Europe/Atlantis")), "'Europe/Atlantis' is no time zone"),
        (("ts", calendar("1 day", "")), "'' is no time zone"),
        (("ts", calendar("1 day", F.col("amount"))), "is no text"),
        (("ts", calendar("1 day", F.col("nowhere"))), "not a column of the rows"),
        (("local", calendar("1 day", "UTC")), "belongs to no zone"),
        (("ts", calendar("1 day", "UTC"), "-1 hour"), "the time on the clock"),
        (("ts", calendar("1 day", "UTC"), "24 hours"), "the time on the clock"),
    ):
        with pytest.raises(UsageError, match=message):
            tracking.source(rows, "in", window=window)
    tracking.stop()


def rule_over(spark: SparkSession, zone: str | Column, **options: Any) -> Substreams:
    rows = spark.sql("select timestamp_micros(0L) as at, 'UTC' as zone, 'a' as shop")
    return declare(rows, "shop", ("at", calendar("1 day", zone), *options.values()), None).rule


@pytest.mark.thorough
def test_schedules_are_read_in_the_zone_of_the_windows(spark: SparkSession, conf: Any) -> None:
    conf("spark.sql.session.timeZone", "America/New_York")
    tokyo, berlin = (rule_over(spark, zone) for zone in ("Asia/Tokyo", "Europe/Berlin"))
    moment = datetime(2024, 3, 31, 12, tzinfo=UTC)
    for when in (date(2024, 3, 31), moment):
        ((found, count),) = timetable.read(spark, [("a", when, 3)], berlin).items()
        assert (found.name, count) == ("2024-03-30T23:00:00Z/2024-03-31T22:00:00Z", 3)
    table = spark.sql("select 'a' as shop, date'2024-03-31' as day, 4 as n")
    assert [each.name for each in timetable.read(spark, table, tokyo)] == ["2024-03-30T15:00:00Z/2024-03-31T15:00:00Z"]

    own = rule_over(spark, F.col("zone"))
    given = [("a", date(2024, 3, 31), 3, "Europe/Berlin"), ("b", moment, 2, "Asia/Tokyo")]
    by_values = timetable.read(spark, given, own)
    assert [each.name for each in by_values] == [
        "2024-03-30T23:00:00Z/2024-03-31T22:00:00Z",
        "2024-03-30T15:00:00Z/2024-03-31T15:00:00Z",
    ]
    assert by_values == timetable.read(
        spark,
        spark.createDataFrame(
            [(s, date(2024, 3, 31), n, z) for s, _, n, z in given], "s string, d date, n int, z string"
        ),
        own,
    )
    for rows, message in (
        ([("a", date(2024, 3, 31), 3)], r"rows of \(scope, when, count, zone\)"),
        ([("a", date(2024, 3, 31), 3, "Mars")], "a time zone that Spark does not have"),
    ):
        with pytest.raises(UsageError, match=message):
            timetable.read(spark, rows, own)
    with pytest.raises(UsageError, match="not whole days from midnight"):
        timetable.read(spark, [("a", date(2024, 3, 31), 3)], rule_over(spark, "Asia/Tokyo", offset="6 hours"))


# ---------------------------------------------------------------- whole lives

FIELDS = "row_id long, at timestamp, shop string, zone string, is_last boolean"
SHOPS = {"berlin": "Europe/Berlin", "paulo": "America/Sao_Paulo", "apia": "Pacific/Apia", "nepal": "Asia/Kathmandu"}


def order(row_id: int, at: str, shop: str, zone: str | None = None, last: bool = False) -> dict[str, Any]:
    return {"row_id": row_id, "at": f"{at[:19]}Z", "shop": shop, "zone": zone or SHOPS[shop], "is_last": last}


def orders(spark: SparkSession, feed: Feed) -> DataFrame:
    return spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", 1).json(str(feed.path))


def batch_of(spark: SparkSession, feed: Feed, length: str) -> list[tuple[Any, ...]]:
    """Compute the same by a batch: each shop by itself, in a session of its zone."""
    found = []
    for shop, zone in SHOPS.items():
        spark.conf.set("spark.sql.session.timeZone", zone)
        rows = spark.read.schema(FIELDS).json(str(feed.path)).where(F.col("shop") == shop)
        day = F.date_trunc(length, "at")
        counted = rows.where(F.col("zone") == zone).groupBy(F.unix_micros(day)).agg(F.count("*"), F.sum("row_id"))
        found += [(shop, *map(int, each)) for each in counted.collect()]
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return sorted(found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "way", ["files", *(pytest.param(way, marks=pytest.mark.slow) for way in ("direct", "executors"))]
)
def test_each_shops_days_are_its_own_and_end_by_themselves(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any, way: str
) -> None:
    conf("spark.sql.session.timeZone", "UTC")
    tracking = Tracking(spark, job, tracker.address, probe="executors" if way == "executors" else "driver")
    window = ("at", calendar("1 day", F.col("zone")))
    source = tracking.source(
        orders(spark, feed), "in", scope="shop", window=window, identity=["row_id"], front=Marks("is_last"),
        on_bad_rows="quarantine",
    )  # fmt: skip
    stream = source
    if way != "direct":
        clean = tracking.channel("clean", str(tmp_path / "clean"))
        source.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
        stream = tracking.receive(clean)
    writer = tracking.release(stream, aggs={"n": F.count("*"), "ids": F.sum("row_id")}, revisions=True).writeStream
    writer.receipts(tmp_path / "receipts").option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")

    rng = random.Random(3)
    number = 0
    for _ in range(3):
        rows = []
        for _ in range(30):
            number += 1
            shop = rng.choice(list(SHOPS))
            hour = rng.randrange(-12, 60)  # about when clocks change in Berlin
            rows.append(order(number, str(datetime(2024, 3, 30) + timedelta(hours=hour)), shop))
        feed.put(*rows)
    feed.put(order(500, "2024-03-30 12:00:00", "berlin", "Mars/Base"))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "n") == []
    assert [r.reason for r in tracking.late(str(tmp_path / ("cp" if way == "direct" else "cp1"))).collect()] == [
        "zone is no time zone that Spark has"
    ]
    # The last row of each day of each shop: an instant of that day.
    known = {(r["shop"], r["at"]) for r in feed.rows if r["row_id"] != 500}
    feed.put(*[order(1000 + place, at, shop, last=True) for place, (shop, at) in enumerate(sorted(known))])
    tracking.process_all_available()
    out = spark.read.parquet(str(tmp_path / "out")).select("shop", F.unix_micros("window.start"), "n", "ids")
    assert sorted(map(tuple, out.collect())) == batch_of(spark, feed, "day")
    ends = {(s.scope, s.name): s.end_time for s in tracking.client.substreams(job, include_ended=True)}
    berlin = ends["berlin", "2024-03-30T23:00:00Z/2024-03-31T22:00:00Z"]
    assert berlin == micros(datetime(2024, 3, 31, 22, tzinfo=UTC)), "a day of 23 hours"
    receipts = spark.read.parquet(str(tmp_path / "receipts")).select("scope", "name", F.unix_micros("end_time"))
    assert {(scope, name): end for scope, name, end in receipts.collect()} == ends

    feed.put(order(2000, "2024-03-31 01:00:00", "berlin"))  # its day is over
    tracking.process_all_available()
    late = tracking.late(str(tmp_path / "cp")).where("kind != 'bad'").select("scope", "name", F.unix_micros("end_time"))
    assert [tuple(r) for r in late.collect()] == [("berlin", "2024-03-30T23:00:00Z/2024-03-31T22:00:00Z", berlin)]
    (revision,) = tracking.reopen(str(tmp_path / "cp"), end_time=datetime(2024, 3, 31, 22, tzinfo=UTC))
    tracking.process_all_available()
    revised = spark.read.parquet(str(tmp_path / "out")).where("revision = 1").select("shop", "n").collect()
    assert [tuple(r) for r in revised] == [("berlin", 1)]
    assert tracking.late(str(tmp_path / "cp")).where("revision = 1").count() == revision.rows == 1
    tracking.stop()
