"""Snapshots: the state of a job that was handed over, taken out, changed, and gone on from.

Each test of an upgrade ends with the results of all deployments against those of one batch over all rows.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import (
    Frontier,
    Marks,
    Released,
    Snapshot,
    Snapshots,
    Tracking,
    TrackingError,
    UsageError,
    aggregates,
    nested,
    session,
)
from spark_client.counting.runs import Run
from spark_client.release import state_export
from spark_client.release.single import SingleRelease
from spark_client.storage.directories import PARQUET, as_batches_write
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark

Figures = Callable[[], dict[str, Any]]


def first() -> dict[str, Any]:
    return {"rows": F.count("*"), "amount": F.sum("amount"), "mean": F.avg("amount"), "parts": F.collect_set("part")}


class Job:
    """The job in → clean → release: its deployments hand over, and the release may be another one each time."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path) -> None:
        self.spark, self.address, self.job, self.feed, self.path = spark, tracker.address, job, feed, path
        self.snapshots = Snapshots(path / "snapshots")

    def declared(
        self, deployment: str, keys: tuple[str, ...], figures: Figures, **options: Any
    ) -> tuple[Tracking, Released, Any]:
        tracking = Tracking(self.spark, self.job, self.address, deployment)
        rows = tracking.source(
            self.feed.stream(self.spark),
            "in",
            scope="tenant",
            window=options.get("window", ("ts", "1 hour")),
            identity=["row_id"],
            front=Marks("is_last"),
            counted=True,
        )
        channel = tracking.channel("clean", str(self.path / "clean"))
        sending = rows.writeStream.channel(channel).option("checkpointLocation", self.path / "cp1")
        return tracking, tracking.release(tracking.receive(channel), list(keys), aggs=figures()), sending

    def start(
        self,
        deployment: str,
        checkpoint: str,
        keys: tuple[str, ...] = ("kind",),
        figures: Figures = first,
        before: Callable[[Released], object] = lambda _: None,
    ) -> Tracking:
        tracking, released, sending = self.declared(deployment, keys, figures)
        before(released)
        sending.start()
        writer = released.writeStream.option("checkpointLocation", self.path / checkpoint).receipts(self.path / "bills")
        writer.start(self.path / f"out-{deployment}")
        return tracking

    def first_half(self) -> Tracking:
        """Run a deployment that releases something, keeps three substreams, and hands over."""
        tracking = self.start("1", "cp2")
        self.feed.put(row(1, 1, part=1), row(2, 2, kind="y", part=2), row(3, 70, amount=3), row(4, 3, "b"))
        self.feed.put(row(5, 4, "b", last=True), row(6, 5, part=3), row(7, 80, "c", amount=9))
        tracking.process_all_available()
        tracking.hand_over(timeout=600)
        return tracking

    def second_half(self, tracking: Tracking) -> None:
        self.feed.put(row(11, 6, part=1), row(12, 75, kind="y"), row(13, 130, "d"))
        self.feed.put(row(14, 7, last=True), row(15, 76, last=True), row(16, 81, "c", last=True))
        self.feed.put(row(17, 131, "d", last=True))
        tracking.process_all_available()
        tracking.stop()

    def batch(self, *keys: str) -> Any:
        return self.feed.batch(self.spark).groupBy("tenant", F.window("ts", "1 hour"), *keys)

    def results(self, deployment: str, *columns: str) -> list[tuple[Any, ...]]:
        return rows_of(self.path / f"out-{deployment}", self.spark, *columns)


@pytest.fixture
def it(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Job:
    return Job(spark, tracker, job, feed, tmp_path)


def second() -> dict[str, Any]:
    """Return a mean kept as its sum and count, a sum over another type, one new aggregate, and one that goes."""
    return {
        "n": F.count("*"),
        "amount": aggregates.sum(F.col("amount").cast("decimal(20,0)")),
        "mean": aggregates.sum(F.col("amount").cast("double")) / aggregates.count("amount"),
        "parts": aggregates.count_distinct("part"),
        "least": F.min("amount"),
    }


def coarser(state: DataFrame) -> DataFrame:
    return state.select(
        "_substream",
        "tenant",
        "window",
        F.col("rows").alias("n"),
        F.expr("shiftleft(amount.part_0, 32) | amount.part_1").cast("decimal(30,0)").alias("amount"),
        "mean",
        "parts",
        F.lit(None).cast("long").alias("least"),
    )


@pytest.mark.thorough
def test_an_upgrade_beyond_a_hand_over_goes_by_export_and_import(it: Job) -> None:
    tracking = it.first_half()
    snapshot = it.snapshots.export(tracking)
    assert [q["substreams"] for q in snapshot.manifest["queries"]] == [3]
    # The tracker's open substreams and the state are of one moment: rows that arrived, rows that are kept.
    arrived = snapshot.substreams(it.spark).where("segment = 'clean'").groupBy().sum("received", "sent").first()
    assert arrived == (5, 5)
    tracking.stop()

    def change(released: Released) -> None:
        changed = r"keys was \{'kind': 'string'\}, is \{\}; new aggregates are .*'least' \(.*min\(amount\)"
        with pytest.raises(UsageError, match=changed):
            snapshot.restore(released, it.path / "cp3")
        assert snapshot.restore(released, it.path / "cp3", mapping=coarser)
        assert not snapshot.restore(released, it.path / "cp3", mapping=coarser)  # once is enough

    it.second_half(it.start("2", "cp3", (), second, change))
    columns = ("tenant", "window.start", "n", "amount", "mean", "parts")
    wanted = it.batch().agg(
        F.count("*").alias("n"),
        F.sum("amount").cast("decimal(30,0)").alias("amount"),
        F.avg("amount").alias("mean"),
        F.count_distinct("part").alias("parts"),
    )
    later = {each[:2] for each in it.results("2", *columns)}
    assert len(later) == 4
    assert it.results("2", *columns) == sorted(
        each for each in map(tuple, wanted.select(*columns).collect()) if each[:2] in later
    )
    assert [each[0] for each in it.results("1", "tenant")] == ["b"]  # released once, by the first deployment
    bills = it.spark.read.parquet(str(it.path / "bills")).groupBy("scope", "end_time").agg(F.count("*"), F.sum("rows"))
    assert sorted((each[0], *each[2:]) for each in bills.collect()) == [
        ("a", 1, 3),
        ("a", 1, 5),
        ("b", 1, 2),
        ("c", 1, 2),
        ("d", 1, 2),
    ]


@pytest.mark.slow
def test_an_unchanged_release_needs_no_mapping(it: Job) -> None:
    tracking = it.first_half()
    snapshot = it.snapshots.export(tracking)
    tracking.stop()

    def fewer() -> dict[str, Any]:
        return {"average": F.avg("amount"), "rows": F.count("*")}

    it.second_half(it.start("2", "cp3", figures=fewer, before=lambda new: snapshot.restore(new, it.path / "cp3")))
    columns = ("tenant", "window.start", "kind", "rows", "average")
    wanted = it.batch("kind").agg(F.count("*").alias("rows"), F.avg("amount").alias("average")).where("tenant <> 'b'")
    assert it.results("2", *columns) == sorted(map(tuple, wanted.select(*columns).collect()))

    _, released, _ = it.declared("2", ("kind",), first)
    with pytest.raises(TrackingError, match=r"is query .* after batch \d+, and the tracker has committed batch \d+"):
        snapshot.restore(released, it.path / "cp4")
    assert not (it.path / "cp4").exists()
    with pytest.raises(TrackingError, match="EPOCH_REWOUND"):
        it.start("2", "cp2")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mapping", "dropping", "message"),
    [
        (lambda state: state.drop("_substream"), None, "the column '_substream' is missing, which tells whose state"),
        (lambda state: state.drop("rows"), None, "the column 'rows' is missing"),
        (lambda state: state.withColumn("mean", F.lit(1)), None, "'mean' is int, and the release keeps a struct of"),
        (lambda state: state.withColumn("kind", F.lit(1)), None, "'kind' is int, and the release has string"),
        (lambda state: state.where("tenant = 'c'"), None, "left out the rows of '2024-01-01T00:00:00Z/"),
        (lambda state: state, "tenant = 'nobody'", None),
        (lambda state: state.where("tenant = 'c'"), "tenant = 'a'", None),
        (
            lambda state: state.withColumn("_substream", F.expr("struct('new' as scope, _substream.key as key)")),
            None,
            "substreams that the state does not have: .* of the scope 'new'",
        ),
        (lambda _: None, None, "the result of mapping is None: give a function"),
    ],
)
def test_what_a_mapping_makes_is_checked_before_anything_is_made(
    taken: tuple[Job, Snapshot], mapping: Any, dropping: str | None, message: str | None
) -> None:
    it, snapshot = taken
    _, released, _ = it.declared("2", ("kind",), first)
    target = it.path / "checked"
    if message is None:
        assert snapshot.restore(released, target, mapping=mapping, dropping=dropping)
        shutil.rmtree(target)
        return
    with pytest.raises(UsageError, match=message):
        snapshot.restore(released, target, mapping=mapping, dropping=dropping)
    assert not target.exists()
    assert list(it.path.glob("_checked*")) == []


@pytest.fixture(scope="module")
def taken(spark: SparkSession, tracker: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Snapshot]:
    """Return a job that was handed over, and its snapshot: for tests that change neither."""
    path = tmp_path_factory.mktemp("taken")
    it = Job(spark, tracker, "taken", Feed(path / "raw"), path)
    tracking = it.first_half()
    snapshot = it.snapshots.export(tracking)
    tracking.stop()
    return it, snapshot


@pytest.mark.thorough
def test_other_substreams_another_job_or_a_place_that_is_taken_are_refused(taken: tuple[Job, Snapshot]) -> None:
    it, snapshot = taken
    _, released, _ = it.declared("2", ("kind",), first)
    with pytest.raises(UsageError, match="exists, and was not made of this snapshot"):
        snapshot.restore(released, it.path / "cp2")
    with pytest.raises(UsageError, match=r"has .*cp2 \(of 'clean'\): give of="):
        snapshot.restore(released, it.path / "cp3", of="elsewhere")


@pytest.mark.thorough
def test_a_table_of_it_is_whole_or_an_error(taken: tuple[Job, Snapshot], tmp_path: Path) -> None:
    it, snapshot = taken
    state = snapshot.state(it.spark)
    assert state.columns == ["_substream", "tenant", "window", "kind", "rows", "amount", "mean", "parts"]
    so_far = it.feed.batch(it.spark).where("tenant <> 'b'")
    assert state.groupBy().sum("rows").first() == (so_far.count(),)
    copy = tmp_path / "snapshots"
    shutil.copytree(it.path / "snapshots", copy)
    file = next((copy / snapshot.name / "queries" / "0" / "state").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TrackingError, match=r"is damaged: its file queries/0/state/.* is not what was written"):
        Snapshots(copy).newest().state(it.spark)
    file.unlink()
    with pytest.raises(TrackingError, match=r"is damaged: its file queries/0/state/.* is missing"):
        Snapshots(copy).newest().state(it.spark)
    newer = Snapshot(replace(snapshot._stored, manifest={**snapshot.manifest, "form": 2}))
    with pytest.raises(UsageError, match="was made by another version of this package"):
        newer.state(it.spark)


@pytest.mark.thorough
def test_a_running_job_is_paused_for_a_cut_and_goes_on(it: Job) -> None:
    """Rows keep coming meanwhile. The cut is a prefix of the source's batches, and the state is all of it."""
    tracking = it.start("1", "cp2")
    it.feed.put(row(1, 1), row(2, 2, "b", last=True))
    tracking.process_all_available()
    ids = count(100)
    for _ in range(6):  # each file is a batch of the source
        it.feed.put(*[row(next(ids), 5, tenant) for tenant in "acde"])
    soon(lambda: tracking.client.job(it.job).open_substreams == 4)
    taken = [it.snapshots.export(tracking, timeout=300)]
    it.feed.put(*[row(next(ids), 5, tenant) for tenant in "acde"])
    taken.append(it.snapshots.export(tracking, timeout=300))
    sizes = []
    for snapshot in taken:
        state = snapshot.state(it.spark).groupBy("tenant").sum("rows").collect()
        open_ones = snapshot.substreams(it.spark)
        arrived = open_ones.where("segment = 'clean'").select("scope", "received").collect()
        read = open_ones.where("segment = 'in'").select("scope", "received").collect()
        assert sorted(map(tuple, state)) == sorted(map(tuple, arrived)) == sorted(map(tuple, read))
        rows = dict(map(tuple, state))
        assert rows["a"] - 1 == rows["c"] == rows["d"] == rows["e"]  # whole batches of the source
        sizes.append(rows["c"])
    assert 0 < sizes[0] <= sizes[1]
    it.feed.put(*[row(next(ids), 6, tenant, last=True) for tenant in "acde"])
    tracking.process_all_available()
    tracking.stop()
    wanted = it.batch("kind").agg(F.count("*").alias("rows")).select("tenant", "rows")
    assert it.results("1", "tenant", "rows") == sorted(map(tuple, wanted.collect()))
    with pytest.raises(UsageError, match=r"has not been handed over, and does not run here"):
        it.snapshots.export(tracking)
    _, released, _ = it.declared("1", ("kind",), first)
    with pytest.raises(TrackingError, match="what has ended since would be released twice"):
        taken[1].restore(released, it.path / "cp3")
    with pytest.raises(UsageError, match="there is no complete snapshot in"):
        Snapshots(it.path / "nothing").newest()


@pytest.mark.slow
def test_a_pause_that_takes_too_long_ends_and_the_sources_go_on(it: Job) -> None:
    tracking, released, sending = it.declared("1", ("kind",), first)
    sending.start()
    it.feed.put(row(1, 1))
    tracking.process_all_available()
    with pytest.raises(UsageError, match=r"no release was started here"):
        it.snapshots.export(tracking)
    with pytest.raises(TimeoutError, match="did not come to rest in time, and goes on"):  # nobody receives the row
        it.snapshots.export(tracking, [it.path / "cp2"], timeout=0)
    released.writeStream.option("checkpointLocation", it.path / "cp2").start(it.path / "out-1")
    it.feed.put(row(2, 2, last=True))
    tracking.process_all_available()
    tracking.stop()
    assert it.results("1", "rows") == [(2,)]


@pytest.mark.thorough
def test_two_exports_at_once_follow_each_other(it: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first has paused the job, rows come, and a second one does not let them in."""
    tracking = it.start("1", "cp2")
    it.feed.put(row(1, 1), row(2, 2, "b"))
    tracking.process_all_available()
    settings = {key: it.spark.conf.get(key, None) for key in PARQUET}
    export, pausing, going_on = state_export.export, threading.Event(), threading.Event()

    def slowly(*args: Any) -> Any:
        if not pausing.is_set():
            pausing.set()
            assert going_on.wait(300)
        return export(*args)

    monkeypatch.setattr(state_export, "export", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(it.snapshots.export, tracking, timeout=300)
        assert pausing.wait(300)
        it.feed.put(row(3, 3), row(4, 4, "b"))
        try:
            with pytest.raises(TimeoutError, match="another export of this job has paused its queries"):
                it.snapshots.export(tracking, timeout=0)
            assert all(query.gate.paused for query in tracking.queries)
        finally:
            going_on.set()
        snapshot = first.result(300)
    state = snapshot.state(it.spark).groupBy("tenant").sum("rows").collect()
    arrived = snapshot.substreams(it.spark).where("segment = 'clean'").select("scope", "received").collect()
    assert sorted(map(tuple, state)) == sorted(map(tuple, arrived)) == [("a", 1), ("b", 1)]
    assert {key: it.spark.conf.get(key, None) for key in PARQUET} == settings
    tracking.process_all_available()
    assert it.snapshots.export(tracking, timeout=300).state(it.spark).groupBy().sum("rows").first() == (4,)
    tracking.stop()


def test_threads_that_write_as_batches_do_leave_the_session_as_it_was() -> None:
    """The second begins before the first has ended, and ends after it."""
    session, began, goes_on = Session(), threading.Event(), threading.Event()

    def second() -> None:
        with as_batches_write(cast(SparkSession, session)):
            began.set()
            goes_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with as_batches_write(cast(SparkSession, session)):
            writing = pool.submit(second)
            began.wait(0.2)  # in vain, as long as one waits for the other
        goes_on.set()
        writing.result(60)
    assert session.conf == {}


class Session:
    """A session's settings, and no Spark."""

    class Conf(dict[str, str]):
        set = dict.__setitem__
        unset = dict.__delitem__

    def __init__(self) -> None:
        self.conf = self.Conf()


# ---------------------------------------------------------------- batches that were interrupted


def dying_in(epoch: int) -> Callable[..., Any]:
    send = Run.send

    def die(self: Run, report: Any, number: int) -> Any:
        if number == epoch:
            raise RuntimeError(f"killed in batch {number}")
        return send(self, report, number)

    return die


@pytest.mark.slow
def test_an_interrupted_source_batch_is_completed_before_the_pause(it: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch's elements are in the channel, and not yet reported: nobody could be at rest without it."""
    tracking = it.start("1", "cp2")
    it.feed.put(row(1, 1))
    tracking.process_all_available()
    with monkeypatch.context() as dying:
        dying.setattr(Run, "send", dying_in(1))
        it.feed.put(row(2, 2), row(3, 3, "b"))
        senders = [query for query in tracking.queries if query.only_sources]
        soon(lambda: any("killed in batch" in str(query.failure()) for query in senders))
        tracking.stop()
    tracking = it.start("1", "cp2")
    snapshot = it.snapshots.export(tracking, timeout=60)
    assert snapshot.state(it.spark).groupBy().sum("rows").first() == (3,)
    tracking.stop()


@pytest.mark.slow
def test_a_batch_that_began_to_release_uncommitted_has_no_snapshot(it: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that reads its source. The rows that such a batch has released are out, and the state still has
    them."""

    def start(deployment: str) -> Tracking:
        tracking, hourly = windows_of(it, deployment, "1 hour")
        other = tracking.source(others.stream(it.spark), "other", substream="tenant")
        start_windows(it, deployment, hourly, "cp1")
        aside = tracking.release(other, aggs={"rows": F.count("*")})
        aside.writeStream.option("checkpointLocation", it.path / "aside").start(it.path / "out-aside")
        return tracking

    others = Feed(it.path / "others")
    tracking = start("1")
    it.feed.put(row(1, 1), row(2, 61))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    snapshot = it.snapshots.export(tracking, [it.path / "cp1"])
    tracking.stop()

    def die(self: SingleRelease, *_: Any) -> None:
        if self.plan.keys:
            raise RuntimeError("killed when its results were out")

    with monkeypatch.context() as dying:
        dying.setattr(SingleRelease, "show_early", die)
        it.feed.put(row(3, 2, last=True))
        tracking = start("2")
        soon(lambda: any(query.failure() for query in tracking.queries))
        with pytest.raises(TrackingError, match="killed when its results were out"):
            it.snapshots.export(tracking, [it.path / "cp1"], timeout=60)
        tracking.stop()
    with pytest.raises(TrackingError, match=r"has begun to release, and was not committed: its results may be out"):
        state_export.export(it.spark, Folder(it.path / "cp1"), it.path / "content")
    _, hourly = windows_of(it, "3", "1 hour")
    with pytest.raises(TrackingError, match=r"was started again and has begun a batch after snapshot-000001"):
        snapshot.restore(hourly, it.path / "cp2")
    assert len(it.snapshots.all()) == 1
    tracking = start("2")
    later = it.snapshots.export(tracking, [it.path / "cp1"], timeout=60)
    assert later.manifest["queries"][0]["epoch"] > snapshot.manifest["queries"][0]["epoch"]
    tracking.process_all_available()
    tracking.stop()
    assert it.results("2", "tenant", "window.start", "rows") == [("a", datetime(2024, 1, 1), 2)]


# ---------------------------------------------------------------- processes that die


@pytest.mark.thorough
def test_an_export_killed_in_any_step_leaves_none_and_is_repeated(it: Job) -> None:
    tracking = it.first_half()
    it.snapshots.export(tracking)
    driver = Driver(it.path / "snapshots")
    with driver.living():
        it.snapshots.export(tracking)
    steps = driver.steps
    for place in sorted({0, 1, len(steps) // 2, len(steps) - 2, len(steps) - 1}):
        known = [each.name for each in it.snapshots.all()]
        with driver.living(place), pytest.raises(KilledError):
            it.snapshots.export(tracking)
        assert [each.name for each in it.snapshots.all()] == known, steps[place]
    again = Snapshots(it.path / "snapshots", keep=2).export(tracking)
    assert it.snapshots.newest().name == again.name
    assert len(it.snapshots.all()) == len(list((it.path / "snapshots").iterdir())) == 2
    tracking.stop()


@pytest.mark.thorough
def test_an_import_killed_in_any_step_leaves_nothing_and_is_repeated(it: Job) -> None:
    tracking = it.first_half()
    snapshot = it.snapshots.export(tracking)
    tracking.stop()
    driver = Driver(it.path)

    def change(released: Released) -> None:
        with driver.living():
            snapshot.restore(released, it.path / "cp3", mapping=coarser)
        steps = driver.steps
        shutil.rmtree(it.path / "cp3")
        published = max(number for number, step in enumerate(steps) if step.startswith("os.rename"))
        for place in sorted({2, published // 2, published}):
            with driver.living(place), pytest.raises(KilledError):
                snapshot.restore(released, it.path / "cp3", mapping=coarser)
            assert not (it.path / "cp3").exists(), steps[place]
        assert snapshot.restore(released, it.path / "cp3", mapping=coarser)
        assert list(it.path.glob("_cp3*")) == []

    it.second_half(it.start("2", "cp3", (), second, change))
    wanted = it.batch().agg(F.count("*"), F.sum("amount")).where("tenant <> 'b'")
    assert sorted(each[1:] for each in it.results("2", "tenant", "n", "amount")) == sorted(
        tuple(each[2:]) for each in wanted.collect()
    )


# ---------------------------------------------------------------- places and formats


@pytest.mark.thorough
def test_the_newest_are_kept_and_a_half_written_one_is_not_taken(taken: tuple[Job, Snapshot], tmp_path: Path) -> None:
    it, snapshot = taken
    place = tmp_path / "snapshots"
    for number in (1, 2, 3, 4):
        name = f"snapshot-{number:06d}-0000000{number}"
        shutil.copytree(it.path / "snapshots" / snapshot.name, place / name)
    (place / "snapshot-000003-00000003" / "_SUCCESS").unlink()
    (place / "snapshot-000004-00000004" / "manifest.json").write_text("{}")
    (place / "other").mkdir()
    snapshots = Snapshots(place, keep=2)
    assert [each.name[:15] for each in snapshots.all()] == ["snapshot-000002", "snapshot-000001"]
    assert snapshots.newest().manifest["job"] == "taken"
    for bad in (0, -1, True, "2"):
        with pytest.raises(UsageError, match="give a whole number, 1 or more"):
            Snapshots(place, keep=bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give 'parquet' or 'delta'"):
        Snapshots(place, format="orc")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"storage_options are for a URL"):
        Snapshots(place, storage_options={"key": "x"})
    with pytest.raises(UsageError, match="fsspec cannot open it"):
        Snapshots("nosuchstore://bucket/x")


@pytest.mark.thorough
def test_another_process_exports_to_a_store_that_fsspec_knows(taken: tuple[Job, Snapshot], tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    it, _ = taken
    tracking, released, _ = it.declared("1", ("kind",), first)  # it starts nothing
    snapshots = Snapshots(f"memory://{tmp_path.name}/snapshots", keep=1)
    with pytest.raises(UsageError, match=r"no release was started here .* give checkpoints="):
        snapshots.export(tracking)
    snapshots.export(tracking, [it.path / "cp2"])
    snapshot = snapshots.export(tracking, [it.path / "cp2"])
    assert [each.name for each in snapshots.all()] == [snapshot.name]
    assert snapshots.newest().restore(released, tmp_path / "cp")
    wanted = it.batch("kind").agg(F.count("*").alias("rows")).where("tenant <> 'b'").select("tenant", "kind", "rows")
    state = released.state(tmp_path / "cp").select("tenant", "kind", "rows")
    assert sorted(map(tuple, state.collect())) == sorted(map(tuple, wanted.collect()))


def test_as_delta_its_tables_are_read_by_others_and_restored_alike(taken: tuple[Job, Snapshot], tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    it, _ = taken
    tracking, released, _ = it.declared("1", ("kind",), first)
    snapshot = Snapshots(tmp_path / "snapshots", format="delta").export(tracking, [it.path / "cp2"])
    table = deltalake.DeltaTable(str(tmp_path / "snapshots" / snapshot.name / "queries" / "0" / "state"))
    assert table.version() == 0
    assert sum(table.to_pyarrow_table()["rows"].to_pylist()) == 5
    assert deltalake.DeltaTable(str(tmp_path / "snapshots" / snapshot.name / "substreams")).version() == 0
    assert snapshot.restore(released, tmp_path / "cp")
    assert released.state(tmp_path / "cp").groupBy().sum("rows").first() == (5,)


# ---------------------------------------------------------------- other windows


def windows_of(it: Job, deployment: str, length: str) -> tuple[Tracking, Released]:
    """Return a release that reads its source itself, and drops some rows on the way."""
    tracking = Tracking(it.spark, it.job, it.address, deployment)
    rows = tracking.source(
        it.feed.stream(it.spark), "in", scope="tenant", window=("ts", length), front=Marks("is_last"), counted=True
    )
    rows = rows.where("kind <> 'z'")
    return tracking, tracking.release(rows, ["kind"], aggs={"rows": F.count("*")}, revisions=True)


def start_windows(it: Job, deployment: str, released: Released, checkpoint: str) -> None:
    writer = released.writeStream.option("checkpointLocation", it.path / checkpoint).receipts(it.path / "bills")
    writer.start(it.path / f"out-{deployment}")


@pytest.mark.thorough
def test_open_hours_become_days_and_the_tracker_ends_the_days(it: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking, hourly = windows_of(it, "1", "1 hour")
    start_windows(it, "1", hourly, "cp1")
    it.feed.put(row(1, 1), row(2, 61), row(3, 62, kind="y"), row(4, 1, "b"), row(5, 63, "b"), row(6, 64, "d", "z"))
    it.feed.put(row(7, 2, "b", last=True), row(8, 23 * 60, "a"), row(9, 25 * 60, "a"))
    tracking.process_all_available()
    it.feed.put(row(10, 3, "b"))  # late for its hour
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    snapshot = it.snapshots.export(tracking)
    assert tracking.client.job(it.job).open_substreams == 6
    tracking.stop()

    tracking, daily = windows_of(it, "2", "1 day")
    with pytest.raises(UsageError, match=r"substreams was .* Give mapping="):
        snapshot.restore(daily, it.path / "cp2")
    _, odd = windows_of(it, "2", "90 minutes")
    with pytest.raises(UsageError, match=r"is open, and does not lie within one window of the new rule"):
        snapshot.restore(odd, it.path / "cp2", mapping=lambda state: state)
    # Killed when the tracker has moved them, and before the checkpoint is there.
    with monkeypatch.context() as dying:
        dying.setattr("spark_client.release.state_import.Version.file", property(lambda _: 1 / 0))
        with pytest.raises(ZeroDivisionError):
            snapshot.restore(daily, it.path / "cp2", mapping=lambda state: state)
    assert not (it.path / "cp2").exists()
    assert snapshot.restore(daily, it.path / "cp2", mapping=lambda state: state)
    days = sorted((each.scope, each.name[:10], each.in_flight) for each in tracking.client.substreams(it.job))
    assert days == [("a", "2024-01-01", 0), ("a", "2024-01-02", 0), ("b", "2024-01-01", 0), ("d", "2024-01-01", 0)]
    start_windows(it, "2", daily, "cp2")
    it.feed.put(row(11, 5, last=True), row(12, 65, "b", last=True), row(13, 66, "d", last=True))
    it.feed.put(row(14, 26 * 60, "a", last=True))
    tracking.process_all_available()
    assert tracking.client.job(it.job).open_substreams == 0
    with pytest.raises(UsageError, match=r"of windows that the query does not cut any more"):
        tracking.reopen(str(it.path / "cp2"))
    assert tracking.late(str(it.path / "cp2")).count() == 1
    tracking.stop()
    assert it.results("1", "tenant", "window.start", "kind", "rows") == [("b", datetime(2024, 1, 1), "x", 2)]
    ended = "tenant = 'b' and ts < '2024-01-01 01:00'"
    rest = it.feed.batch(it.spark).where(f"kind <> 'z' and not ({ended})")  # the late row is of that hour
    wanted = rest.groupBy("tenant", F.window("ts", "1 day"), "kind").agg(F.count("*").alias("rows"))
    columns = ("tenant", "window.start", "kind", "rows")
    assert it.results("2", *columns) == sorted(map(tuple, wanted.select(*columns).collect()))
    bills = it.spark.read.parquet(str(it.path / "bills")).where("deployment = '2'").select("scope", "rows", "elements")
    assert sorted(map(tuple, bills.collect())) == [("a", 2, 2), ("a", 5, 5), ("b", 2, 2), ("d", 2, 2)]


@pytest.mark.thorough
def test_the_windows_of_another_source_go_on_as_they_are(it: Job) -> None:
    """Orders become daily; clicks, of other tenants, stay hourly and take in rows of the hours that are open."""
    clicks = Feed(it.path / "clicks")

    def start(deployment: str, length: str, checkpoint: str, before: Callable[[Released], object]) -> Tracking:
        tracking, ordered = windows_of(it, deployment, length)
        rows = tracking.source(
            clicks.stream(it.spark), "clicks", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        clicked = tracking.release(rows, aggs={"rows": F.count("*")})
        before(ordered)
        start_windows(it, deployment, ordered, checkpoint)
        clicked.writeStream.option("checkpointLocation", it.path / "clicked").start(it.path / "out-clicks")
        return tracking

    tracking = start("1", "1 hour", "cp1", lambda _: None)
    it.feed.put(row(1, 1), row(2, 61))
    clicks.put(row(3, 1, "b"), row(4, 62, "b"))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    snapshot = it.snapshots.export(tracking)
    tracking.stop()

    def restore(released: Released) -> None:
        assert snapshot.restore(released, it.path / "cp2", of="in", mapping=lambda state: state)

    tracking = start("2", "1 day", "cp2", restore)
    clicks.put(row(13, 2, "b"), row(14, 3, "b", last=True), row(15, 63, "b", last=True))
    it.feed.put(row(11, 5, last=True))
    tracking.process_all_available()
    assert tracking.client.job(it.job).late_reports == 0
    tracking.stop()
    for name, rows, length in (("out-2", it.feed, "1 day"), ("out-clicks", clicks, "1 hour")):
        wanted = rows.batch(it.spark).groupBy("tenant", F.window("ts", length)).agg(F.count("*").alias("rows"))
        columns = ("tenant", "window.start", "rows")
        assert rows_of(it.path / name, it.spark, *columns) == sorted(map(tuple, wanted.select(*columns).collect()))


@pytest.mark.slow
def test_windows_change_only_where_nothing_stands_between_and_nothing_runs(it: Job) -> None:
    tracking, hourly = windows_of(it, "1", "1 hour")
    start_windows(it, "1", hourly, "cp1")
    it.feed.put(row(1, 1))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    snapshot = it.snapshots.export(tracking)
    tracking.stop()
    tracking, daily = windows_of(it, "2", "1 day")
    tracking.define()
    with (
        tracking.client.open_producer(it.job, "other", "run"),
        pytest.raises(TrackingError, match=r"has to be moved before any query .* and these run: other"),
    ):
        snapshot.restore(daily, it.path / "cp2", mapping=lambda state: state)
    tracking = Tracking(it.spark, it.job, it.address, "2")
    named = tracking.source(it.feed.stream(it.spark), "in2", substream="tenant", identity=["row_id"])
    with pytest.raises(UsageError, match="segment was in, is in2"):
        snapshot.restore(tracking.release(named, aggs={"n": F.count("*")}), it.path / "cp3", of="in")


def test_windows_of_rows_that_come_through_a_channel_do_not_change(taken: tuple[Job, Snapshot]) -> None:
    it, snapshot = taken
    tracking = Tracking(it.spark, it.job, it.address, "2")
    rows = tracking.source(it.feed.stream(it.spark), "in", scope="tenant", window=("ts", "1 day"), identity=["row_id"])
    channel = tracking.channel("clean", str(it.path / "other"))
    rows.writeStream.channel(channel)
    daily = tracking.release(tracking.receive(channel), ["kind"], aggs=first())
    with pytest.raises(UsageError, match="The rows come through a channel, whose sender has cut them into the old"):
        snapshot.restore(daily, it.path / "cp9", mapping=lambda state: state)


# ---------------------------------------------------------------- every aggregate


def every() -> dict[str, Any]:
    """Return an aggregate of each form in which one is kept."""
    price, at = F.col("amount").cast("decimal(12,2)"), F.col("ts")
    return {
        "n": aggregates.count(),
        "odd": aggregates.count_if(F.col("amount") % 2 == 1),
        "whole": aggregates.sum("amount"),
        "exact": aggregates.sum(price),
        "double": aggregates.sum(F.col("amount").cast("double")),
        "mean": aggregates.avg("amount"),
        "exact_mean": aggregates.avg(price),
        "least": aggregates.min("kind"),
        "latest": aggregates.max(at),
        "all_small": aggregates.bool_and(F.col("amount") < 50),
        "xor": aggregates.bit_xor("amount"),
        "last": aggregates.max_by(F.struct("row_id", "kind"), "row_id"),
        "distinct": aggregates.count_distinct("part", "kind"),
        "about": aggregates.approx_count_distinct("part"),
        "spread": aggregates.combine(lambda v: F.round(v, 6), aggregates.var_pop("amount")),
        "share": aggregates.sum("amount").where("kind = 'x'") / aggregates.count(),
    }


#: The same, by Spark's own functions.
EVERY = """
    count(1) as n, count_if(amount % 2 = 1) as odd, sum(amount) as whole, sum(cast(amount as decimal(12,2))) as exact,
    sum(cast(amount as double)) as double, avg(amount) as mean, avg(cast(amount as decimal(12,2))) as exact_mean,
    min(kind) as least, max(ts) as latest, bool_and(amount < 50) as all_small, bit_xor(amount) as xor,
    max_by(struct(row_id, kind), row_id) as last, count(distinct part, kind) as distinct,
    count(distinct part) as about, round(var_pop(amount), 6) as spread,
    sum(if(kind = 'x', amount, null)) / count(1) as share
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_rows_before_and_after_an_upgrade_equal_a_batch(it: Job, seed: int) -> None:
    chance = random.Random(seed)

    def some(first: int, number: int) -> list[Any]:
        return [
            row(
                first + each,
                chance.randrange(60),
                chance.choice("abc"),
                chance.choice(["x", "y", "ü`"]),
                chance.randrange(100),
                part=chance.randrange(5),
            )
            for each in range(number)
        ]

    finer = chance.choice([("kind", "part"), ("part",), ("kind",)])
    kept = chance.choice([(), finer[:1]])
    tracking = it.start("1", "cp2", finer, every)
    for number in range(chance.randrange(1, 4)):
        it.feed.put(*some(100 * number, 20))
        tracking.process_all_available()
    tracking.hand_over(timeout=600)
    snapshot = it.snapshots.export(tracking)
    tracking.stop()

    def mapping(state: DataFrame) -> DataFrame:
        whole = F.expr("shiftleft(whole.part_0, 32) | whole.part_1")  # a sum may be given as its value
        return state.drop(*set(finer) - set(kept)).withColumn("whole", whole)

    def change(released: Released) -> None:
        before = released.stream.readable.df.sparkSession.conf.get("spark.sql.parquet.outputTimestampType")
        assert snapshot.restore(released, it.path / "cp3", mapping=mapping)
        assert it.spark.conf.get("spark.sql.parquet.outputTimestampType") == before

    tracking = it.start("2", "cp3", kept, every, change)
    it.feed.put(*some(1000, 20))
    it.feed.put(*[row(2000 + number, 59, tenant, last=True) for number, tenant in enumerate("abc")])
    tracking.process_all_available()
    tracking.stop()
    columns = ["tenant", *kept, *every()]
    it.feed.batch(it.spark).createOrReplaceTempView("rows")
    keys = ", ".join(["tenant", *kept])
    wanted = it.spark.sql(f"select {keys}, {EVERY} from rows group by {keys}").select(*columns)
    assert sorted(it.results("2", *columns), key=str) == sorted(map(tuple, wanted.collect()), key=str)


@pytest.mark.slow
def test_rows_that_are_kept_are_exported_and_gone_on_with_as_rows(it: Job) -> None:
    def kept(deployment: str, columns: list[Any]) -> tuple[Tracking, Released]:
        tracking = Tracking(it.spark, it.job, it.address, deployment)
        rows = tracking.source(
            it.feed.stream(it.spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        return tracking, tracking.release(rows, ["kind"], columns=columns)

    tracking, released = kept("1", ["row_id", "amount"])
    released.writeStream.option("checkpointLocation", it.path / "cp1").start(it.path / "out-1")
    it.feed.put(row(1, 1), row(2, 2, kind="y", amount=4), row(3, 3, "b"))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    snapshot = it.snapshots.export(tracking)
    tracking.stop()
    tracking, released = kept("2", ["row_id", "value"])
    with pytest.raises(UsageError, match="new aggregates are 'value'"):
        snapshot.restore(released, it.path / "cp2")
    snapshot.restore(released, it.path / "cp2", mapping=lambda state: state.withColumn("value", F.expr("amount / 7D")))
    released.writeStream.option("checkpointLocation", it.path / "cp2").start(it.path / "out-2")
    it.feed.put(row(4, 5, last=True), row(5, 6, "b", last=True))
    tracking.process_all_available()
    tracking.stop()
    wanted = it.feed.batch(it.spark).select("tenant", "kind", "row_id", "value")
    assert it.results("2", "tenant", "kind", "row_id", "value") == sorted(map(tuple, wanted.collect()))


def sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy("tenant", F.session_window("ts", "1 hour").alias("window"), "kind").agg(
        F.count("*").alias("rows")
    )


def levels(rows: DataFrame) -> DataFrame:
    hours, days = (
        rows.groupBy("tenant", F.window("ts", length).alias("window"), "kind").agg(F.count("*").alias("rows"))
        for length in ("1 hour", "1 day")
    )
    return hours.unionByName(days)


@pytest.mark.thorough
@pytest.mark.parametrize(("window", "batch"), [(session("1 hour"), sessions), (nested("1 hour", "1 day"), levels)])
def test_windows_that_share_rows_go_on_from_an_export(it: Job, window: Any, batch: Callable[..., DataFrame]) -> None:
    def declared(deployment: str) -> tuple[Tracking, Released]:
        tracking = Tracking(it.spark, it.job, it.address, deployment)
        source = tracking.source(
            it.feed.stream(it.spark), "in", scope="tenant", window=("ts", window), front=Frontier("0 seconds")
        )
        return tracking, tracking.release(source, ["kind"], aggs={"rows": F.count("*")})

    def start(released: Released, number: int) -> None:
        writer = released.writeStream.option("checkpointLocation", it.path / f"cp{number}")
        writer.start(it.path / f"out-{number}")

    tracking, released = declared("1")
    start(released, 1)
    it.feed.put(row(1, 1), row(2, 50), row(3, 20, kind="y"))
    it.feed.put(row(4, 130, "b"), row(5, 75))  # the first hour is over, and its day is not
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    snapshot = it.snapshots.export(tracking)
    assert "_substream" in snapshot.state(it.spark).columns
    tracking.stop()
    tracking, released = declared("2")
    assert snapshot.restore(released, it.path / "cp2", mapping=lambda state: state.where("true"))
    start(released, 2)
    it.feed.put(row(6, 131), row(7, 185, "b"))
    tracking.process_all_available()
    tracking.drain(timeout=600)
    tracking.stop()
    columns = ("tenant", "window.start", "window.end", "kind", "rows")
    known = sorted(tuple(each) for each in batch(it.feed.batch(it.spark)).select(*columns).collect())
    assert sorted(it.results("1", *columns) + it.results("2", *columns)) == known
