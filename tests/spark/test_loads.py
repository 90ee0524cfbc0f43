"""Markers, manifests and control tables: a load ends with its last row, whichever of both is found first."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import ControlTable, Front, Manifests, SuccessMarkers, Tracking, TrackingError, UsageError
from spark_client.fronts.front import SourceRows
from spark_client.storage.folder import Folder
from spark_client.windows.fixed import Fixed
from spark_client.windows.named import Named
from spark_client.windows.substreams import Substreams
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark

NAMED = Named("load", scope="shop")
DAYS = Fixed(86_400_000_000)


def load(directory: Path, name: str, rows: int, marker: bool = False) -> None:
    """Put a file of so many rows, and after it the marker."""
    directory.mkdir(parents=True, exist_ok=True)
    if rows:
        pq.write_table(pa.table({"amount": range(rows)}), directory / f".{name}")
        (directory / f".{name}").rename(directory / f"{name}.parquet")
    if marker:
        (directory / "_SUCCESS").touch()


def by_load(spark: SparkSession, address: str, job: str, path: Path, front: Front) -> Tracking:
    """Return a job that adds up each load's rows, a file a batch."""
    tracking = Tracking(spark, job, address)
    raw = spark.readStream.schema("amount long, shop string, load string").option("maxFilesPerTrigger", 1)
    source = tracking.source(
        raw.parquet(str(path / "in")), "loads", scope="shop", substream="load", front=front, on_bad_rows="quarantine"
    )
    released = tracking.release(source, aggs={"rows": F.count("*"), "amount": F.sum("amount")})
    released.writeStream.option("checkpointLocation", path / "cp").start(path / "out")
    return tracking


def out(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return rows_of(path / "out", spark, "shop", "load", "rows", "amount")


def of_batch(spark: SparkSession, path: Path, *loads: str) -> list[tuple[Any, ...]]:
    """Return the results of a batch over those loads."""
    raw = spark.read.schema("amount long, shop string, load string").parquet(str(path / "in"))
    found = raw.groupBy("shop", "load").agg(F.count("*"), F.sum("amount")).collect()
    return sorted(tuple(r) for r in found if f"{r[0]}/{r[1]}" in loads)


def ended(tracking: Tracking) -> set[str]:
    found = tracking.client.substreams(tracking.job, include_ended=True)
    return {f"{each.scope}/{each.name}" for each in found if all(account.ended for account in each.segments)}


@pytest.mark.thorough
def test_a_marker_ends_its_directory_however_early_it_is_found(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    berlin, lima = tmp_path / "in" / "shop=berlin", tmp_path / "in" / "shop=lima"
    load(berlin / "load=a b", "1", 3)
    load(berlin / "load=a b", "2", 4)
    load(berlin / "load=a b", "3", 2, marker=True)  # all are there before the first is read
    load(berlin / "load=07", "1", 5)
    load(lima / "load=07", "1", 0, marker=True)
    front = SuccessMarkers(tmp_path / "in", "load", "shop", empty=True, refresh=0.05)
    with by_load(spark, tracker.address, job, tmp_path, front) as tracking:
        tracking.process_all_available()
        soon(lambda: ended(tracking) == {"berlin/a b", "lima/07"})
        tracking.process_all_available()
        assert out(spark, tmp_path) == of_batch(spark, tmp_path, "berlin/a b")
    load(berlin / "load=07", "2", 6, marker=True)
    with by_load(spark, tracker.address, job, tmp_path, front) as tracking:  # the promises come again
        tracking.process_all_available()
        soon(lambda: ended(tracking) == {"berlin/a b", "lima/07", "berlin/07"})
        tracking.process_all_available()
        assert out(spark, tmp_path) == of_batch(spark, tmp_path, "berlin/a b", "berlin/07")
        status = tracking.client.job(job)
        assert (status.open_substreams, status.late_reports) == (0, 0)


def dying_at(step: int, spark: SparkSession, address: str, job: str, path: Path) -> bool:
    """Let a driver die before a step and start again. Return whether it has died."""
    for number in range(3):
        load(path / "in" / "shop=berlin" / f"load={number}", "1", number + 1)
        load(path / "in" / "shop=berlin" / f"load={number}", "2", 2, marker=True)
    driver = Driver(path)
    whole = {f"berlin/{number}" for number in range(3)}
    for dies_at in (step, None):
        failing = (KilledError, TrackingError, StreamingQueryException, UsageError)
        with driver.living(dies_at), suppress(*(failing if dies_at is not None else ())):
            front = SuccessMarkers(path / "in", "load", "shop", refresh=0.05)
            with by_load(spark, address, job, path, front) as tracking:
                tracking.process_all_available()
                if dies_at is None:
                    assert ended(tracking) == whole
        if not driver.dead:
            break
    assert out(spark, path) == of_batch(spark, path, *whole), f"it died before step {step}"
    return driver.dead or dies_at is None


@pytest.mark.thorough
def test_a_driver_that_dies_changes_nothing(spark: SparkSession, tracker: Server, job: str, tmp_path: Path) -> None:
    assert dying_at(25, spark, tracker.address, job, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_driver_may_die_at_any_step(spark: SparkSession, tracker: Server, job: str, tmp_path: Path) -> None:
    step = 2
    while dying_at(step, spark, tracker.address, f"{job}-{step}", tmp_path / str(step)):
        step += 5


@pytest.mark.thorough
@pytest.mark.parametrize("again", [False, True], ids=["in one run", "by the next run"])
@pytest.mark.parametrize("kind", ["marker", "manifest"])
def test_a_file_replaced_after_reading_completes_no_load(
    spark: SparkSession,
    tracker: Server,
    job: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    again: bool,
) -> None:
    """The file's new rows are as many, so that counts tell nothing; the load beside it ends as always."""
    place = tmp_path / "in" / "shop=berlin"
    (tmp_path / "manifests").mkdir()
    front: Front = SuccessMarkers(tmp_path / "in", "load", "shop", refresh=0.05)
    if kind == "manifest":
        front = Manifests(tmp_path / "manifests" / "*.json", "load", "shop", refresh=0.05)

    def complete(name: str) -> None:
        entry = {"shop": "berlin", "load": name, "files": [f"../in/shop=berlin/load={name}/1.parquet"]}
        (tmp_path / "manifests" / ".new").write_text(json.dumps(entry))
        (tmp_path / "manifests" / ".new").rename(tmp_path / "manifests" / f"{name}.json")
        load(place / f"load={name}", "", 0, marker=True)

    def replace() -> None:
        read = (place / "load=a" / "1.parquet").stat().st_mtime_ns
        while (place / "load=a" / "1.parquet").stat().st_mtime_ns // 1_000_000 == read // 1_000_000:
            load(place / "load=a", "1", 3)
        for name in ("a", "b"):
            complete(name)

    for name in ("a", "b"):
        load(place / f"load={name}", "1", 3)
    with caplog.at_level(logging.WARNING, "spark_client"):
        with by_load(spark, tracker.address, job, tmp_path, front) as tracking:
            tracking.process_all_available()
            if not again:
                replace()
                soon(lambda: ended(tracking) == {"berlin/b"})
        if again:
            replace()
        with by_load(spark, tracker.address, job, tmp_path, front) as tracking:
            soon(lambda: ended(tracking) == {"berlin/b"})
            tracking.process_all_available()
            assert out(spark, tmp_path) == of_batch(spark, tmp_path, "berlin/b")
            assert ended(tracking) == {"berlin/b"}
    assert "such as 1.parquet, have changed since Spark found them to read them" in caplog.text


@pytest.mark.thorough
def test_a_manifest_and_a_control_table_end_what_they_count(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """One source of each over the same rows, in one job."""
    manifests, database = tmp_path / "manifests", tmp_path / "control.db"
    manifests.mkdir()
    with sqlite3.connect(database) as connection:
        connection.execute("create table control (tenant text, hour text, orders numeric, whole text)")
    tables = ControlTable(
        lambda: sqlite3.connect(database),
        "select tenant, hour, orders from control",
        through="select max(whole) from control",
        refresh=0.05,
    )
    read = spark.read.schema("row_id long").json
    with Tracking(spark, job, tracker.address) as tracking:
        raw = feed.stream(spark)
        kinds = tracking.source(
            raw, "kinds", substream="kind", front=Manifests(f"{manifests}/*.json", read=read, refresh=0.05)
        )
        hours = tracking.source(raw, "hours", scope="tenant", window=("ts", "1 hour"), front=tables)
        for number, stream in enumerate((kinds, hours)):
            writer = tracking.release(stream, aggs={"rows": F.count("*")}).writeStream
            writer.option("checkpointLocation", tmp_path / f"cp{number}").start(tmp_path / f"out{number}")
        feed.put(row(1, 1), row(2, 61, kind="y"))
        feed.put(row(3, 2, kind="y"), row(4, 3, "b", kind="y"))
        tracking.process_all_available()
        manifest = {"files": [str(feed.path / "000001.json")], "note": "x"}
        (manifests / "x.json").write_text('{"rows": 1')  # half of it: it is read again
        with sqlite3.connect(database) as connection:
            counts = [("a", "2024-01-01T00:00:00Z", 2), ("a", "2024-01-01T01:30:00Z", 2)]
            connection.executemany("insert into control values (?, ?, ?, '2024-01-01T01:00:00Z')", counts)
        soon(lambda: ("a", 2) in rows_of(tmp_path / "out1", spark, "tenant", "rows") or tracking.check())
        (manifests / "y.json").write_text(json.dumps([{**manifest, "files": "../raw/000002.json"}, {"rows": 1}]))
        (manifests / "x.json").write_text('{"rows": 1}')
        soon(lambda: len(rows_of(tmp_path / "out0", spark, "kind", "rows")) == 2 or tracking.check())
        feed.put(row(5, 4, "b"), row(6, 62))  # of "b" the table has nothing up to one o'clock
        tracking.process_all_available()
        assert rows_of(tmp_path / "out0", spark, "kind", "rows") == [("x", 1), ("y", 3)]
        out = rows_of(tmp_path / "out1", spark, "tenant", "window.start", "rows")
        assert [(tenant, start.hour, rows) for tenant, start, rows in out] == [("a", 0, 2), ("a", 1, 2), ("b", 0, 1)]
        assert tracking.late(str(tmp_path / "cp1")).count() == 1
        assert {each.front: each.frontiers for each in tracking.client.job(job).fronts}["hours"] == {
            "*": int(datetime(2024, 1, 1, 2, tzinfo=UTC).timestamp() * 1_000_000)
        }


@pytest.mark.thorough
def test_parts_of_three_hosts_end_an_hour_over_a_restart(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    place = tmp_path / "in" / "shop=berlin" / "load=07"
    front = SuccessMarkers(tmp_path / "in", "load", "shop", part="host", parts=["a", "b", "c"], refresh=0.05)
    for rows, host in enumerate("ab", 1):
        load(place / f"host={host}", "1", rows, marker=True)
        with by_load(spark, tracker.address, job, tmp_path, front) as tracking:
            tracking.process_all_available()
            assert out(spark, tmp_path) == []
    with by_load(spark, tracker.address, job, tmp_path, front) as tracking:
        load(place / "host=c", "1", 3, marker=True)
        soon(lambda: ended(tracking) == {"berlin/07"} or tracking.check())
        tracking.process_all_available()
    assert out(spark, tmp_path) == of_batch(spark, tmp_path, "berlin/07") != []


# ---------------------------------------------------------------- what is found, without Spark


class NoRows:
    """A stand-in for the source's rows."""

    sparkSession = None  # noqa: N815
    columns = ()


def found(front: Any, rule: Substreams) -> Callable[[], dict[str, int]]:
    """Return a function that looks again and returns the new counts of a front."""
    nothing: Any = None
    front.bind(SourceRows("in", NoRows, rule, nothing, nothing, None))  # type: ignore[arg-type]
    living: Any = front.live(nothing)

    def look() -> dict[str, int]:
        living.look(Folder("."), None, at_once=True)
        due = [each for each in living.due() if hasattr(each, "elements")]
        living.promised(due)
        return {"/".join(filter(None, (each.scope, each.name[:10]))): each.elements for each in due}

    return look


def test_a_file_that_is_newer_than_its_marker_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    day = tmp_path / "dt=2026-03-01"
    load(day / "hour=7", "deep", 4)
    load(day, "1", 3, marker=True)
    later = time.time() + 10
    load(day, "copied after it", 2)
    os.utime(day / "copied after it.parquet", (later, later))
    look = found(SuccessMarkers(tmp_path, "dt"), DAYS)
    with caplog.at_level(logging.WARNING, "spark_client"):
        assert look() == {}
    assert "copied after it.parquet, are newer than its marker" in caplog.text
    os.utime(day / "_SUCCESS", (later + 1, later + 1))
    assert look() == {"2026-03-01": 9}
    load(tmp_path, "beside", 3, marker=True)  # of the whole directory: it names no substream
    load(tmp_path / "dt=__HIVE_DEFAULT_PARTITION__", "1", 3, marker=True)
    (tmp_path / "_temporary" / "dt=2026-03-02").mkdir(parents=True)
    assert look() == {}
    po.write_table(pa.table({"x": [1, 2]}), tmp_path / "two.orc")
    (tmp_path / "dt=2026-03-03").mkdir()
    (tmp_path / "two.orc").rename(tmp_path / "dt=2026-03-03" / "two.orc")
    load(tmp_path / "dt=2026-03-03", "", 0, marker=True)
    assert look() == {"2026-03-03": 2}
    load(day, "1", 8, marker=True)
    os.utime(day / "_SUCCESS", (later + 2, later + 2))
    assert look() == {"2026-03-01": 14}, "which the tracker refuses, unless it was declared with revise=True"


def test_a_marker_without_files_promises_nothing_unless_it_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first file may be on its way."""
    day = tmp_path / "dt=2026-03-01"
    load(day, "", 0, marker=True)
    look = found(SuccessMarkers(tmp_path, "dt"), DAYS)
    with caplog.at_level(logging.WARNING, "spark_client"):
        assert (look(), look()) == ({}, {})
    assert caplog.text.count("has a marker and no files, so nothing is promised of it") == 1
    assert found(SuccessMarkers(tmp_path, "dt", empty=True), DAYS)() == {"2026-03-01": 0}
    pq.write_table(pa.table({"amount": pa.array([], "int64")}), day / "none.parquet")
    later = time.time() + 10
    os.utime(day / "_SUCCESS", (later, later))
    assert look() == {"2026-03-01": 0}, "a file without rows is one"


def test_half_of_a_copy_that_keeps_times_counts_as_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As `rsync -a` and `tar x` make it: each file with its old time, under its name when it is whole, by name."""
    day, copy = tmp_path / "from" / "dt=2026-03-01", tmp_path / "to" / "dt=2026-03-01"
    load(day, "part-1", 3)
    load(day, "part-2", 4, marker=True)
    for name in ("part-1.parquet", "part-2.parquet"):
        os.utime(day / name, (1_000_000_000, 1_000_000_000))
    copy.mkdir(parents=True)
    look = found(SuccessMarkers(tmp_path / "to", "dt"), DAYS)
    shutil.copy2(day / "_SUCCESS", copy)
    assert look() == {}
    marked = (copy / "_SUCCESS").stat().st_ctime_ns
    for name in ("part-1.parquet", "part-2.parquet"):
        while True:  # until the file system's clock has gone on
            shutil.copy2(day / name, copy / f".{name}")
            if (copy / f".{name}").stat().st_ctime_ns > marked:
                break
        (copy / f".{name}").rename(copy / name)
        assert look() == {}
    assert caplog.text.count("are newer than its marker") == 1, "after the other warning, that there are no files"
    (copy / "_SUCCESS").touch()
    assert look() == {"2026-03-01": 7}


def test_a_directory_that_changes_while_it_is_counted_is_counted_again(tmp_path: Path) -> None:
    day = tmp_path / "dt=2026-03-01"
    load(day, "1", 3, marker=True)
    later = time.time() + 10
    os.utime(day / "_SUCCESS", (later, later))
    looks = 0

    class Rows:
        def __init__(self, files: list[str]) -> None:
            self.files = files

        def count(self) -> int:
            nonlocal looks
            looks += 1
            if looks == 1:
                load(day, "2", 4)
            return sum(pq.read_metadata(file).num_rows for file in self.files)

    read: Any = Rows
    look = found(SuccessMarkers(tmp_path, "dt", read=read), DAYS)
    assert look() == {}
    assert look() == {"2026-03-01": 7}


def test_a_number_in_a_path_is_the_one_that_spark_reads(tmp_path: Path) -> None:
    load(tmp_path / "shop=08" / "load=007", "1", 3, marker=True)
    rule = Named("load", "int", scope="shop", scope_type="int")
    assert found(SuccessMarkers(tmp_path, "load", "shop"), rule)() == {"8/7": 3}
    assert found(SuccessMarkers(tmp_path, "load", "shop"), NAMED)() == {"08/007": 3}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.jsonl", '{"s": "a", "d": "1", "n": 3}\n{"s": "a", "d": "1", "n": 2}\n{"s": "b", "d": "2", "n": 0}\n'),
        ("m.csv", "s,d,n\na,1,3\na,1,2\nb,2,0\n"),
        ("m.csv", "\ufeffs,d,n\r\na,1,3\r\na,1,2\r\nb,2,0\r\n"),
        ("m.json", '\ufeff[{"s": "a", "d": "1", "n": 3}, {"s": "a", "d": "1", "n": 2}, {"s": "b", "d": "2", "n": 0}]'),
        ("m.parquet", pa.table({"s": ["a", "a", "b"], "d": [1, 1, 2], "n": [3, 2, 0]})),
    ],
)
def test_manifests_of_each_format_add_up_entries_of_a_substream(tmp_path: Path, name: str, content: Any) -> None:
    if isinstance(content, str):
        (tmp_path / name).write_text(content)
    else:
        pq.write_table(content, tmp_path / name)
    look = found(Manifests(tmp_path / f"*{Path(name).suffix}", "d", "s", rows="n"), NAMED)
    assert look() == {"a/1": 5, "b/2": 0}
    assert look() == {}


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512"])
@pytest.mark.parametrize("counts", [{"rows": 3}, {}])
def test_files_count_once_they_are_as_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, algorithm: str, counts: dict[str, int]
) -> None:
    """A file is uploaded late, in two pieces, and is replaced by one of the same size."""
    load(tmp_path / "in", "1", 3)
    file = next((tmp_path / "in").glob("*1*"))
    whole = file.read_bytes()
    file.unlink()
    digest = hashlib.new(algorithm, whole).hexdigest().upper()
    listed = {"path": f"in/{file.name}", "size": len(whole), algorithm: digest}
    (tmp_path / "m.json").write_text(json.dumps({"d": "2026-03-01", "files": [listed], **counts}))
    look = found(Manifests(tmp_path / "*.json", "d"), DAYS)
    for content, said in [
        (None, "is not there"),
        (whole[:10], f"has 10 bytes, and is listed with {len(whole)}"),
        (whole[:-1] + b"?", f"has another {algorithm} than is listed"),
    ]:
        if content is not None:
            file.write_bytes(content)
        assert look() == {}
        assert look() == {}
        assert caplog.text.count(said) == 1
    file.write_bytes(whole)
    os.utime(file, ns=(1, 1))
    assert look() == {"2026-03-01": 3}


@pytest.mark.parametrize("listed", [{"size": 3}, {"path": "a", "size": "big"}, {"path": "s3://b/a", "size": 3}, 7])
def test_files_that_are_listed_otherwise_are_refused(tmp_path: Path, listed: Any) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"d": "2026-03-01", "rows": 3, "files": [listed]}))
    refusing(found(Manifests(tmp_path / "*.json", "d"), DAYS), "give its path|leave them out")


HOURS = Named("hour")


def manifest(directory: Path, name: str, host: str, rows: int, **more: Any) -> None:
    (directory / f"{name}.json").write_text(json.dumps({"hour": "07", "host": host, "rows": rows, **more}))


@pytest.mark.parametrize("parts", [3, ["h1", "h2", "h3"], {"h3", "h2", "h1"}, "hosts"])
def test_a_load_is_whole_when_all_its_parts_have_a_manifest(tmp_path: Path, parts: Any) -> None:
    look = found(Manifests(tmp_path / "*.json", "hour", part="host", parts=parts), HOURS)
    for number in (1, 2, 3):
        assert look() == {}
        manifest(tmp_path, f"of{number}", f"h{number}", number, hosts=3)
    manifest(tmp_path, "again", "h2", 2, hosts="3")
    assert look() == {"07": 6}
    assert look() == {}


def test_parts_may_share_a_manifest_and_have_no_rows(tmp_path: Path) -> None:
    entries = [{"hour": "07", "host": host, "rows": rows} for host, rows in (("h1", 2), ("h2", 0), ("h1", 3))]
    (tmp_path / "all.json").write_text(json.dumps(entries))
    assert found(Manifests(tmp_path / "*.json", "hour", part="host", parts=2), HOURS)() == {"07": 5}


def test_the_greatest_number_of_parts_that_a_manifest_names_is_waited_for(tmp_path: Path) -> None:
    """So a host that has been added is waited for as soon as one of the others knows."""
    look = found(Manifests(tmp_path / "*.json", "hour", part="host", parts="hosts"), HOURS)
    manifest(tmp_path, "h1", "h1", 1, hosts=2)
    manifest(tmp_path, "h2", "h2", 1, hosts=3)
    assert look() == {}
    manifest(tmp_path, "h3", "h3", 1, hosts=3)
    assert look() == {"07": 3}


def test_a_copy_may_name_more_parts_than_the_first(tmp_path: Path) -> None:
    look = found(Manifests(tmp_path / "*.json", "hour", part="host", parts="hosts"), HOURS)
    manifest(tmp_path, "h1", "h1", 1, hosts=2)
    manifest(tmp_path, "h1b", "h1", 1, hosts=3)
    manifest(tmp_path, "h2", "h2", 1, hosts=2)
    assert look() == {}
    manifest(tmp_path, "h3", "h3", 1, hosts=3)
    assert look() == {"07": 3}


def test_a_part_may_state_two_numbers_in_one_manifest(tmp_path: Path) -> None:
    """The greatest holds for its load alone, and the entries are added up."""
    entries = [("07", "h1", 2, 5), ("07", "h1", 3, 5), ("08", "h1", 1, 4), ("07", "h1", 2, 1)]
    fields = ("hour", "host", "hosts", "rows")
    (tmp_path / "h1.json").write_text(json.dumps([dict(zip(fields, each, strict=True)) for each in entries]))
    look = found(Manifests(tmp_path / "*.json", "hour", part="host", parts="hosts"), HOURS)
    manifest(tmp_path, "h2", "h2", 1, hosts=2)
    assert look() == {"08": 4}
    manifest(tmp_path, "h3", "h3", 2, hosts=2)
    assert look() == {"07": 14}


@pytest.mark.parametrize("number", ["many", [3], {"of": 3}, 2.7, 2.0, 0, -1, True, "²"])
def test_a_number_of_parts_that_is_none_is_refused(tmp_path: Path, number: Any) -> None:
    manifest(tmp_path, "a", "h1", 1, n=number)
    look = found(Manifests(tmp_path / "*.json", "hour", part="host", parts="n"), HOURS)
    refusing(look, "a.json: 'n' is .*: write the number of parts")


def test_parts_that_contradict_one_another_are_refused(tmp_path: Path) -> None:
    def front(parts: Any) -> Manifests:
        return Manifests(tmp_path / "*.json", "hour", part="host", parts=parts)

    manifest(tmp_path, "a", "h1", 1, n="many")
    refusing(found(front("n"), HOURS), "a.json: 'n' is 'many': write the number of parts")
    manifest(tmp_path, "b", "h1", 2, n=2)
    refusing(found(front(2), HOURS), r"a.json and .*b.json are both of part 'h1' of '07'")
    manifest(tmp_path, "b", "h1", 1, files=["x.parquet"])
    refusing(found(front(2), HOURS), "are both of part 'h1'")
    manifest(tmp_path, "b", "h4", 1)
    for names in (["h1", "h2"], {"h1", "h2"}):
        refusing(found(front(names), HOURS), r"b.json: part 'h4' is none of Manifests\(parts=")
    manifest(tmp_path, "c", "h5", 1)
    refusing(found(front(2), HOURS), r"has 3 parts, \['h1', 'h4', 'h5'\], and was to have 2: give parts= as many")
    for name in "abc":
        manifest(tmp_path, name, name, 1, n=2)
    refusing(found(front("n"), HOURS), "has 3 parts, .* and was to have 2: write as many into 'n' as there are")


def test_a_directory_of_each_part_has_a_marker(tmp_path: Path) -> None:
    look = found(SuccessMarkers(tmp_path, "day", part="host", parts=["a", "b"]), DAYS)
    load(tmp_path / "day=2026-03-01" / "host=a", "1", 2, marker=True)
    load(tmp_path / "day=2026-03-01" / "host=b", "1", 3)
    assert look() == {}
    (tmp_path / "day=2026-03-01" / "host=b" / "_SUCCESS").touch()
    assert look() == {"2026-03-01": 5}


def test_directories_of_one_part_are_no_copies(tmp_path: Path) -> None:
    """Spark reads the rows of both."""
    for hosts in (1, 2):
        load(tmp_path / f"day=2026-03-01/hosts={hosts}/host=a", "1", 2, marker=True)
    refusing(found(SuccessMarkers(tmp_path, "day", part="host", parts="hosts"), DAYS), "are both of part 'a' of")


def refusing(look: Callable[[], object], message: str) -> None:
    """Check that it is refused, and again: nothing of it is promised meanwhile."""
    for _ in range(2):
        with pytest.raises(UsageError, match=message):
            look()


def test_loads_that_promise_nothing_certain_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.json").write_text('{"d": "2026-03-01", "rows": 3}')
    refusing(found(Manifests(tmp_path / "*.json", "d"), DAYS), r"1.json and .*2.json are both of '2026-03-01")
    for name, content, message in [
        ("a.json", '{"rows": 3}', "has no 'd'"),
        ("b.json", '{"d": "2026-03-01"}', "neither 'rows' nor 'files'"),
        ("c.json", "[3]", "write an object with fields"),
        ("d.json", '{"d": "monday", "rows": 1}', "no time in ISO 8601"),
        ("e.json", '{"d": "2026-03-01", "rows": -1}', "0 or more"),
        ("t.json", '{"d": "2026-03-01", "rows": true}', "0 or more"),
        ("s.json", '{"d": "2026-03-01", "rows": "²"}', "0 or more"),
        ("f.json", '{"d": "2026-03-01", "files": "f.json"}', "neither Parquet nor ORC.*give read="),
        ("g.json", '{"d": "2026-03-01", "files": "gone.parquet"}', r"cannot be read.*gone.parquet"),
    ]:
        (tmp_path / name).write_text(content)
        refusing(found(Manifests(tmp_path / name, "d"), DAYS), message)
    for hour in (7, 8):
        load(tmp_path / "in" / f"at=2026-03-01T0{hour}:00:00Z", "1", 1, marker=True)
    refusing(found(SuccessMarkers(tmp_path / "in", "at"), DAYS), "both of .*windows that are as short")


def test_a_manifest_that_has_just_been_opened_is_not_there_yet(tmp_path: Path) -> None:
    look = found(Manifests(tmp_path / "*.json"), Named("load"))
    with open(tmp_path / "17.json", "w") as file:
        assert look() == {}
        file.write('{"rows": 1204}')
    assert look() == {"17": 1204}
    for name, content in [("18.json", "[]"), ("19.json", "\n"), ("20.csv", "rows\n")]:
        (tmp_path / name).write_text(content)
        one = Manifests(tmp_path / f"*{name}")
        refusing(found(one, Named("load")), r"has no entry.*\"rows\": 0")
    assert found(Manifests(tmp_path / "18.json", "load"), Named("load"))() == {}


def test_a_manifest_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    """A copy that keeps times, as ``cp -p`` does, is put in the place of the first."""
    for rows in (12, 13):
        (tmp_path / "next").write_text(f'{{"load": "17", "rows": {rows}}}')
        os.utime(tmp_path / "next", (1_000_000_000, 1_000_000_000))
        (tmp_path / "next").rename(tmp_path / "17.json")
        if rows == 12:
            look = found(Manifests(tmp_path / "*.json", "load", revise=True), Named("load"))
        assert look() == {"17": rows}


def test_a_place_that_is_gone_counts_no_longer(tmp_path: Path) -> None:
    """A corrected load has another manifest, or directory, in the place of the first."""
    (tmp_path / "17.json").write_text('{"load": "17", "rows": 3}')
    named = Named("load")
    look = found(Manifests(tmp_path / "*.json", "load", revise=True), named)
    assert look() == {"17": 3}
    (tmp_path / "17.json").rename(tmp_path / "17-old.txt")
    (tmp_path / "17-corrected.json").write_text('{"load": "17", "rows": 4}')
    assert look() == {"17": 4}
    (tmp_path / "17-corrected.json").unlink()
    assert look() == {}
    (tmp_path / "17-old.txt").rename(tmp_path / "17.json")
    assert look() == {"17": 3}
    load(tmp_path / "in" / "at=2026-03-01T07:00:00Z", "1", 3, marker=True)
    look = found(SuccessMarkers(tmp_path / "in", "at", revise=True), DAYS)
    assert look() == {"2026-03-01": 3}
    shutil.rmtree(tmp_path / "in" / "at=2026-03-01T07:00:00Z")
    load(tmp_path / "in" / "at=2026-03-01", "1", 5, marker=True)
    assert look() == {"2026-03-01": 5}


def test_manifests_may_be_named_as_uris_of_files(tmp_path: Path) -> None:
    load(tmp_path / "in put", "1", 3)
    (tmp_path / "a.json").write_text(
        json.dumps({"files": ["in put/1.parquet", (tmp_path / "in put" / "1.parquet").as_uri()]})
    )
    named = Named("load")
    assert found(Manifests(f"{tmp_path.as_uri()}/[a-c].json"), named)() == {"a": 6}
    refusing(lambda: found(Manifests("s3://bucket/*.json"), named), "s3://bucket.*has to be on a file system")
    (tmp_path / "a.json").write_text(json.dumps({"files": "s3://bucket/1.parquet"}))
    refusing(found(Manifests(tmp_path / "*.json"), named), "s3://bucket/1.parquet.*give read=")

    class Rows:
        def __init__(self, files: list[str]) -> None:
            assert files == ["s3://bucket/1.parquet"]

        def count(self) -> int:
            return 7

    read: Any = Rows
    assert found(Manifests(tmp_path / "*.json", read=read), named)() == {"a": 7}, "Spark has clients of its own"


def test_a_row_missing_from_a_control_table_for_a_while_is_kept() -> None:
    """A table may be truncated and loaded again while it is looked at."""
    listed: list[Sequence[Any]] = []

    class Connection:
        def cursor(self) -> Connection:
            return self

        def execute(self, sql: str) -> None:
            pass

        def fetchone(self) -> Sequence[Any]:
            return ("2026-03-01",)

        def fetchall(self) -> list[Sequence[Any]]:
            return list(listed)

        def rollback(self) -> None:
            pass

        def close(self) -> None:
            pass

    front: Any = ControlTable(Connection, "counts", through="time")
    nothing: Any = None
    front.bind(SourceRows("in", NoRows, DAYS, nothing, nothing, None))  # type: ignore[arg-type]
    living: Any = front.live(nothing)
    promised = []
    for rows in ([("2026-03-01", 3)], [], [("2026-03-01", 3)]):
        listed[:] = rows
        living.look(Folder("."), None, at_once=True)
        while due := living.due():
            promised += [each.elements for each in due if hasattr(each, "elements")]
            living.promised(due)
    assert promised == [3]


def test_a_control_table_is_read_after_its_time_of_completeness(tmp_path: Path) -> None:
    """A count that comes between the two statements is found, whether or not the time covers it."""
    statements: list[str] = []

    class Cursor:
        def execute(self, sql: str) -> None:
            statements.append(sql)

        def fetchone(self) -> Sequence[Any]:
            return (None,)

        def fetchall(self) -> list[Sequence[Any]]:
            return [("2026-03-01", "3")]

    class Connection:
        def cursor(self) -> Cursor:
            return Cursor()

        def rollback(self) -> None:
            statements.append("rollback")

        def close(self) -> None:
            statements.append("close")

    look = found(ControlTable(Connection, "counts", through="time"), DAYS)
    assert (look(), look()) == ({"2026-03-01": 3}, {})
    assert statements == ["time", "rollback", "counts", "close"] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SuccessMarkers("/in", "dt", marker="done"), "begins with _ or"),
        (lambda: Manifests("/in/manifests"), "pattern of files"),
        (lambda: ControlTable("dsn", "select 1"), "makes a connection"),  # type: ignore[arg-type]
        (lambda: SuccessMarkers("/in", "dt", refresh=0), "above zero"),
        (lambda: SuccessMarkers("/in", "dt", part="host"), "parts= together"),
        (lambda: Manifests("/in/*.json", "hour", part="host", parts=0), "parts= together"),
        (lambda: Manifests("/in/*.json", "hour", part="host", parts=["a", "a"]), "parts= together"),
        (lambda: Manifests("/in/*.json", "hour", part="host", parts=2.5), "parts= together"),  # type: ignore[arg-type]
        (lambda: Manifests("/in/*.json", "hour", part="host", parts=iter("ab")), "parts= together"),  # type: ignore[arg-type]
        (lambda: Manifests("/in/*.json", part="host", parts=2), "give when='field'"),
        (lambda: found(SuccessMarkers("/in", "dt", "shop"), DAYS), "this front has a scope, and the source has none"),
        (lambda: found(SuccessMarkers("/in", "dt"), NAMED), "the source has a scope, and this front has none"),
        (lambda: found(SuccessMarkers("s3://in", "dt"), DAYS), "file system"),
        (lambda: found(Manifests("/in/*.json"), DAYS), "give when="),
        (lambda: found(ControlTable(dict, "x", through="y"), NAMED), "leave through= out"),
    ],
)
def test_declarations_that_cannot_work_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
