"""Event time: windows equal Spark's own over any type of time, in any session zone, on any date."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, UsageError
from spark_client.fronts import timetable
from spark_client.windows import eventtime, lengths
from spark_client.windows.declaration import declare
from spark_client.windows.substreams import Substreams
from tests.client.processes import Server
from tests.spark.feed import Feed, row

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu", "America/St_Johns", "+05:30"]
WIDTHS = ["1 day", "1 hour", "7 minutes", "1 week", "25 hours", "1.5 seconds", "333 milliseconds", "100 days"]
DAY = eventtime.DAY
#: Around changes of clocks, of calendars, of eras, leap days, and the ends of what Python's datetime can hold.
CORNERS = [
    (1970, 1, 1), (1969, 12, 31), (2024, 3, 31), (2024, 10, 27), (2018, 11, 4), (2011, 12, 30), (2024, 2, 29),
    (1900, 3, 1), (1582, 10, 4), (1582, 10, 15), (1, 1, 1), (9999, 12, 31), (1893, 4, 1), (1919, 3, 31),
]  # fmt: skip


def some_micros(rng: random.Random) -> int:
    """Return a time: near a corner, a while ago, or tens of thousands of years away."""
    way = rng.random()
    if way < 0.6:
        corner = (date(*rng.choice(CORNERS)).toordinal() - date(1970, 1, 1).toordinal()) * DAY
        return corner + rng.randrange(-DAY, 2 * DAY)
    if way < 0.9:
        return rng.randrange(-(10**17), 3 * 10**17)
    return rng.randrange(-eventtime.LIMIT, eventtime.LIMIT) // 2


def times(spark: SparkSession, rng: random.Random, kind: str, number: int) -> DataFrame:
    """Return rows with a column `at` of a type; one is null."""
    micros = spark.createDataFrame([(some_micros(rng),) for _ in range(number)] + [(None,)], "micros long")
    if kind == "date":
        value: Column = F.date_from_unix_date((F.col("micros") / DAY).cast("int"))
    elif kind == "timestamp_ntz":
        value = F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00' + micros * INTERVAL '0.000001' SECOND")
    else:
        value = F.timestamp_micros("micros")
    return micros.select(value.alias("at"))


@pytest.mark.thorough
@pytest.mark.parametrize("draws", [9, pytest.param(400, marks=pytest.mark.slow)])
def test_windows_equal_sparks_own_for_every_type_zone_width_and_offset(
    spark: SparkSession, conf: Any, draws: int
) -> None:
    rng = random.Random(draws)
    compared = 0
    for number in range(draws):
        kind = eventtime.TIMES[number % 3]
        zone, width = rng.choice(ZONES), rng.choice(WIDTHS)
        conf("spark.sql.session.timeZone", zone)
        conf("spark.sql.timestampType", rng.choice(["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"]))
        conf("spark.sql.ansi.enabled", rng.choice(["true", "false"]))
        length = lengths.length(spark, width, "width")
        offset = f"{rng.randrange(1 - length, length)} microseconds" if rng.random() < 0.7 else "0 seconds"
        rows = times(spark, rng, kind, 200)
        declared = declare(rows, None, ("at", width, offset), None)
        rule, scope, key = declared.rule, declared.scope, declared.key
        tracked = rows.select("at", key.alias("end"))
        ours = tracked.select("at", *rule.result_columns(scope, F.col("end")))
        sparks = rows.where("at is not null").select("at", F.window("at", width, startTime=offset).alias("window"))
        assert ours.schema["window"].dataType.simpleString() == sparks.schema["window"].dataType.simpleString()
        texts = [F.col(each).cast("string") for each in ("at", "window.start", "window.end")]
        expected = sorted(tuple(r) for r in sparks.select(*texts).collect())
        got = sorted(tuple(r) for r in ours.where("at is not null").select(*texts).collect())
        assert got == expected, (kind, zone, width, offset)
        assert ours.where("at is null and window.end is not null").count() == 0
        compared += len(got)
        if kind == "timestamp":  # the same once more, by the arithmetic over what files hold
            table = tracked.select("at", F.unix_micros("end").alias("end")).toArrow()
            told = rule.derived_values(table["at"].combine_chunks())
            assert told.to_pylist() == table["end"].to_pylist()
    assert compared == draws * 200


def test_names_of_windows_are_readable_on_any_date() -> None:
    rng = random.Random(3)
    for kind in ("timestamp", "timestamp_ntz"):
        for _ in range(2000):
            micros = rng.randrange(-62_135_596_800_000_000, 253_402_300_800_000_000)
            expected = datetime(1970, 1, 1) + timedelta(microseconds=micros)
            text = expected.isoformat(timespec="microseconds" if expected.microsecond else "seconds")
            assert eventtime.iso(micros, kind) == text + ("Z" if kind == "timestamp" else "")
    assert eventtime.iso(253_402_300_800_000_000, "timestamp") == "+10000-01-01T00:00:00Z"
    assert eventtime.iso(-62_135_596_800_000_001, "timestamp") == "0000-12-31T23:59:59.999999Z"
    assert eventtime.iso(-62_167_219_200_000_000 - DAY, "timestamp") == "-0001-12-31T00:00:00Z"
    assert eventtime.iso(eventtime.LIMIT, "timestamp").startswith("+75039-04-04T")


@pytest.mark.thorough
def test_times_out_of_range_belong_nowhere_instead_of_failing(spark: SparkSession, conf: Any) -> None:
    conf("spark.sql.ansi.enabled", "true")
    far = [2**63 - 1, -(2**63), eventtime.LIMIT + 1, -eventtime.LIMIT - 1]
    rows = spark.createDataFrame([(micros,) for micros in far], "micros long").select(
        F.timestamp_micros("micros").alias("timestamp"),
        F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00' + micros * INTERVAL '0.000001' SECOND").alias("timestamp_ntz"),
        F.expr("date_from_unix_date(2147483647)").alias("date"),
    )
    for kind in eventtime.TIMES:
        key = declare(rows, None, (kind, "1 day"), None).key
        assert [r[0] for r in rows.select(F.unix_micros(key)).collect()] == [None] * len(far), kind


# ---------------------------------------------------------------- lengths of time

TEXTS = [
    "10 minutes", "0 days 10 minutes", "1 hour 30 minutes", "-5 minutes", "PT10M", "INTERVAL '10' MINUTE", "P1D",
    "interval 10 minutes", "INTERVAL '1 2' DAY TO HOUR", "1.5 seconds", "1.5 minutes", ".5 seconds", "1 week 2 days",
    "  10   minutes ", "10minutes", "10 Minutes", "1 day -2 hours", "0 seconds", "1 year", "1 month", "1 nanosecond",
    "1 microsecond", "+ 10 minutes", "interval -10 minutes", "10", "10 min", "1 quarter", "0 months 10 minutes",
    "1 month -1 month 3 days", "interval", "1e3 seconds", "10\tminutes", "0.0000005 seconds", "interval '1' month",
    "soon", "1 day;", "1 millisecond 5 microseconds",
]  # fmt: skip


@pytest.mark.thorough
def test_texts_of_durations_mean_what_they_mean_to_spark(spark: SparkSession) -> None:
    moment = spark.createDataFrame([(0,)], "micros long").select(F.timestamp_micros("micros").alias("at"))
    wide = "1000 days"
    for text in TEXTS:
        try:
            window = F.window("at", text).alias("w")
            width = moment.select(window).select(F.unix_micros("w.end") - F.unix_micros("w.start")).collect()[0][0]
        except Exception:
            width = None
        try:
            assert lengths.length(spark, text, "it") == width, text
        except UsageError:
            assert width is None, text
        try:
            start = F.window("at", wide, startTime=text).alias("w")
            begin = moment.select(start).select(F.unix_micros("w.start")).collect()[0][0]
        except Exception:
            begin = None
        try:
            assert (lengths.microseconds(spark, text, "it") - begin) % (1000 * DAY) == 0, text
        except UsageError:
            assert begin is None, text
    assert lengths.length(spark, timedelta(minutes=90), "it") == lengths.length(spark, "1 hour 30 minutes", "it")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "is not a length of time"),
        (5, "is not a length of time"),
        ("1 month", "months and years have no fixed length"),
        ("-1 day", "is not above zero"),
        (timedelta(0), "is not above zero"),
        ("soon", "Spark does not parse it"),
        ("90000000 days", "is too long"),
    ],
)
def test_what_is_no_length_of_time_is_refused_wherever_one_is_taken(
    spark: SparkSession, job: str, feed: Feed, given: Any, message: str
) -> None:
    for rule in ("stall_after", "expire_after", "idle_after", "retention", "remember"):
        with pytest.raises(UsageError, match=f"{rule}.*{message}"):
            Tracking(spark, job, "127.0.0.1:1", **{rule: given})
    tracking = Tracking(spark, job, "127.0.0.1:1", retention="1 day", stall_after=timedelta(seconds=5))
    with pytest.raises(UsageError, match=f"window's length.*{message}"):
        tracking.source(feed.stream(spark), "in", window=("ts", given))
    if given not in ("-1 day", timedelta(0)):
        with pytest.raises(UsageError, match=f"window's offset.*{message}"):
            tracking.source(feed.stream(spark), "in", window=("ts", "1 hour", given))
    if given != timedelta(0):
        with pytest.raises(UsageError, match=f"Frontier's delay.*({message}|below zero)"):
            tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"), front=Frontier(given))
    tracking.stop()


def test_rules_of_a_job_are_what_their_texts_mean(spark: SparkSession, tracker: Server, job: str, feed: Feed) -> None:
    rules = {"stall_after": "90 seconds", "expire_after": "2 hours", "idle_after": "1 day", "retention": "2 days"}
    with Tracking(spark, job, tracker.address, **rules, remember="INTERVAL '90 12' DAY TO HOUR") as tracking:  # type: ignore[arg-type]
        tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"))
        tracking.define()
        spec = tracking.client.job(job).spec
    assert (spec.stall_after, spec.expire_after) == (timedelta(seconds=90), timedelta(hours=2))
    assert (spec.idle_after, spec.retention) == (timedelta(days=1), timedelta(days=2))
    assert spec.remember == timedelta(days=90, hours=12)


# ---------------------------------------------------------------- schedules


def rule_over(spark: SparkSession, kind: str, width: str = "1 day", offset: str = "0 seconds") -> Substreams:
    rows = times(spark, random.Random(0), kind, 1)
    return declare(rows, None, ("at", width, offset), None).rule


BERLIN = timezone(timedelta(hours=1))
NEW_YEAR = 1_704_067_200_000_000  # 2024-01-01 in UTC
READINGS: list[tuple[str, Any, int | str]] = [
    ("timestamp", date(2024, 1, 1), NEW_YEAR + DAY),
    ("timestamp", datetime(2024, 1, 1, 0, 30, tzinfo=BERLIN), NEW_YEAR),
    ("timestamp", datetime(2024, 1, 1, 0, 30), "it is not certain which instant"),
    ("timestamp", "2024-01-01", "is no time.*: give a date or datetime"),
    ("timestamp_ntz", date(2024, 1, 1), NEW_YEAR + DAY),
    ("timestamp_ntz", datetime(2024, 1, 1, 0, 30), NEW_YEAR + DAY),
    ("timestamp_ntz", datetime(2024, 1, 1, 0, 30, tzinfo=BERLIN), "without tzinfo"),
    ("date", date(2024, 1, 1), NEW_YEAR),  # Berlin's day begins before UTC's
    ("date", datetime(2024, 1, 1, 0, 30, tzinfo=UTC), NEW_YEAR + DAY),
]


@pytest.mark.parametrize(("kind", "when", "expected"), READINGS)
def test_a_schedules_times_are_read_as_the_source_has_them_or_refused(
    spark: SparkSession, conf: Any, kind: str, when: Any, expected: int | str
) -> None:
    conf("spark.sql.session.timeZone", "Europe/Berlin")
    rule = rule_over(spark, kind)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            timetable.read(spark, [(when, 3)], rule)
    else:
        ((substream, count),) = timetable.read(spark, [(when, 3)], rule).items()
        assert (substream.end_time, count) == (expected, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", eventtime.TIMES)
def test_a_schedule_made_of_the_rows_counts_them_where_spark_does(spark: SparkSession, conf: Any, kind: str) -> None:
    conf("spark.sql.session.timeZone", "America/Sao_Paulo")
    rows = times(spark, random.Random(7), kind, 300).where("at is not null")
    for width, offset in (("1 day", "0 seconds"), ("25 hours", "-3 hours")):
        declared = declare(rows, None, ("at", width, offset), None)
        rule, end = declared.rule, declared.key
        counted = {
            r[0]: r[1]
            for r in rows.groupBy(F.window("at", width, startTime=offset).alias("w"))
            .agg(F.count("*").alias("n"), F.first(F.unix_micros(end)).alias("end"))
            .select("end", "n")
            .collect()
        }
        expected = rows.groupBy(end).agg(F.first("at").alias("at"), F.count("*").alias("n")).select("at", "n")
        due = timetable.read(spark, expected, rule)
        assert {substream.end_time: number for substream, number in due.items()} == counted


@pytest.mark.parametrize(
    ("kind", "width", "given", "message"),
    [
        ("timestamp", "1 hour", date(2024, 1, 1), "not whole days from midnight"),
        ("timestamp", "1 day", None, "has a null"),
        ("timestamp_ntz", "1 day", datetime(2024, 1, 1, tzinfo=UTC), "without tzinfo"),
    ],
)
def test_a_schedule_that_is_not_certain_is_refused(
    spark: SparkSession, kind: str, width: str, given: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        timetable.read(spark, [(given, 3)], rule_over(spark, kind, width))


def test_a_schedules_table_of_another_clock_is_refused(spark: SparkSession, conf: Any) -> None:
    conf("spark.sql.session.timeZone", "Europe/Berlin")
    for kind, other in (("timestamp", "timestamp_ntz"), ("timestamp_ntz", "timestamp_ltz"), ("timestamp", "string")):
        table = spark.sql(f"SELECT CAST('2024-01-01' AS {other}) AS at, 3 AS n")
        with pytest.raises(UsageError, match="Schedule: its times are"):
            timetable.read(spark, table, rule_over(spark, kind))
    table = spark.sql("SELECT DATE'2024-01-01' AS at, 3 AS n")
    (found,) = timetable.read(spark, table, rule_over(spark, "timestamp"))
    assert found.end_time == NEW_YEAR + DAY


# ---------------------------------------------------------------- a whole life, away from Greenwich

FIELDS = "row_id long, ts timestamp, local timestamp_ntz, day date, tenant string, is_last boolean"
LOCAL = [
    "2024-03-31 01:30:00",
    "2024-03-31 02:30:00",
    "2024-03-31 03:30:00",
    "1500-02-28 23:59:59",
    "9999-12-31 23:30:00",
]


def local_row(row_id: int, local: str, last: bool = False) -> dict[str, Any]:
    made = row(row_id, 0, last=last)
    return {**made, "local": local, "day": local[:10]}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["local", "day"])
def test_windows_over_wall_clocks_and_dates_are_sparks_own(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any, kind: str
) -> None:
    conf("spark.sql.session.timeZone", "Europe/Berlin")
    stream = spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", 1).json(str(feed.path))

    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(stream, "in", window=(kind, "1 hour"), identity=["row_id"], front=Marks("is_last"))
    clean = tracking.channel("clean", str(tmp_path / "clean"))
    sending = source.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1")
    released = tracking.release(tracking.receive(clean), aggs={"n": F.count("*")}).writeStream
    sending.start()
    released.receipts(tmp_path / "receipts").option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    feed.put(*[local_row(number, local) for number, local in enumerate(LOCAL)])
    feed.put(*[local_row(10 + number, local, last=True) for number, local in enumerate(LOCAL)])
    tracking.process_all_available()
    got = spark.read.parquet(str(tmp_path / "out"))
    rows = spark.read.schema(FIELDS).json(str(feed.path))
    expected = rows.groupBy(F.window(kind, "1 hour").alias("window")).agg(F.count("*").alias("n"))
    assert got.schema["window"].dataType == expected.schema["window"].dataType
    texts = [F.col("window.start").cast("string"), F.col("window.end").cast("string"), F.col("n")]
    wanted = sorted(tuple(r) for r in expected.select(*texts).collect())
    assert sorted(tuple(r) for r in got.select(*texts).collect()) == wanted

    feed.put(local_row(20, LOCAL[1]))  # its window is over
    tracking.process_all_available()
    (late,) = tracking.late(str(tmp_path / "cp2")).select(F.unix_micros("end_time")).collect()
    receipts = spark.read.parquet(str(tmp_path / "receipts")).select("name", F.unix_micros("end_time")).collect()
    ends = {s.name: s.end_time for s in tracking.client.substreams(job, include_ended=True)}
    assert dict(map(tuple, receipts)) == ends
    assert late[0] in ends.values()
    assert len(ends) == len(wanted)
    if kind == "local":
        assert "2024-03-31T02:00:00/2024-03-31T03:00:00" in ends
        assert "9999-12-31T23:00:00/+10000-01-01T00:00:00" in ends
    tracking.stop()


@pytest.mark.thorough
def test_days_of_a_schedule_are_the_windows_days_east_of_greenwich(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any
) -> None:
    conf("spark.sql.session.timeZone", "Europe/Berlin")
    days = [(date(2024, 1, day), count) for day, count in ((1, 3), (2, 1), (3, 1))]
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 day"), front=Schedule(days))
    released = tracking.release(source, aggs={"n": F.count("*")}).writeStream
    released.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")

    def at(row_id: int, text: str) -> dict[str, Any]:
        return {**row(row_id, 0), "ts": text}

    def ended() -> list[str]:
        tracking.process_all_available()
        return [s.name[:10] for s in tracking.client.substreams(job, include_ended=True) if s.closed]

    feed.put(at(1, "2024-01-01T00:10:00Z"), at(2, "2024-01-01T12:00:00Z"))
    assert ended() == []
    feed.put(at(3, "2024-01-01T23:50:00Z"))
    assert ended() == ["2024-01-01"]
    tracking.stop()


@pytest.mark.thorough
def test_a_restart_in_another_zone_moves_nothing_or_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any
) -> None:
    stream = spark.readStream.schema(FIELDS).json(str(feed.path))

    def start(kind: str, zone: str, between: str | None = None) -> None:
        conf("spark.sql.session.timeZone", zone)
        tracking = Tracking(spark, f"{job}-{kind}", tracker.address)
        try:
            source = tracking.source(stream, "in", window=(kind, "1 day"), front=Marks("is_last"))
            released = tracking.release(source, aggs={"n": F.count("*")}).writeStream
            conf("spark.sql.session.timeZone", between or zone)
            released.option("checkpointLocation", tmp_path / kind).start(tmp_path / f"out-{kind}")
            tracking.process_all_available()
        finally:
            tracking.stop()

    feed.put(local_row(1, LOCAL[0]))
    for kind in ("ts", "local"):
        start(kind, "Europe/Berlin")
        start(kind, "America/New_York")
    with pytest.raises(UsageError, match=r"declared while spark.sql.session.timeZone was Europe/Berlin"):
        start("day", "Europe/Berlin", "UTC")
    start("day", "Europe/Berlin")
    with pytest.raises(UsageError, match=r"timeZone was Europe/Berlin, is UTC; .*set spark.sql.session.timeZone back"):
        start("day", "UTC")
    start("day", "Europe/Berlin")
