"""Cost of tracking on Spark, and of releasing by it against Spark's own watermark: `--help` lists the options.

Three comparisons, each within one run of this program, taken in turns so that the machine's moods hit all alike:

- release: an aggregation that is released (the tracker's way: substream by substream, and the tracker as Spark's
  watermark) against Spark's own ``withWatermark`` aggregation in append mode. All read the same files.
- job: two queries joined by a channel of files, tracked, against the same two queries without tracking.
  Tracked in three ways: followed and counted by the driver (the default), sealed, and counted by executors and sealed.
- start: seconds from ``start()`` of such an aggregation until its first batch is committed; and from the moment at
  which a window's last row is there until its result is: to Spark's watermark, a row of a later window comes with that.

Figures of the first two are rows per second over all that Spark does after each query's first batch, which starts the
workers up: the batches of rows, and those that only release.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.figures import written
from examples.lake.services import environment
from examples.lake.services import settings as lake
from examples.services import jars
from examples.services.s3 import S3
from spark_client import Frontier, Marks, Tracking
from spark_client.runtime.queryplan import CountingMode

_TRIGGER = "500 milliseconds"
_MINUTES = 10  # that end in a run of `start`, the first of them with the first batch
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main() -> None:
    """Run the comparisons that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows a batch")
    parser.add_argument("--batches", type=int, default=13, help="batches a run, the first not counted")
    parser.add_argument("--keys", type=int, default=1_000, help="keys in each of the ten substreams of a batch")
    parser.add_argument("--runs", type=int, default=3, help="runs of each way, in turns")
    parser.add_argument("--only", choices=["release", "job", "start"], help="one comparison")
    parser.add_argument("--store", action="store_true", help="in a store of objects, a process on this machine")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
        bench = Bench(Path(directory), given.rows, given.batches, given.keys, given.store)
        try:
            measured = bench.run(given.runs, given.only)
        finally:
            bench.close()
    print(json.dumps(measured, indent=2) if given.json else table(measured))


class Bench:
    """One Spark session, one tracker, and the rows that all ways read; checkpoints, channels and results on a disk, or
    in a store of objects."""

    def __init__(self, path: Path, rows: int, batches: int, keys: int, in_store: bool = False) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self._path = path
        self._store = S3(path / "s3") if in_store else None
        self._place = "s3a://state/bench" if in_store else str(path)
        settings: dict[str, Any] = {}
        if self._store is not None:
            self._store.start()
            os.environ.update(environment(self._store))
            settings = {"spark.jars": ",".join([jars.lake(), jars.s3a()])}
            settings |= lake(self._store.endpoint, path / "catalog.db")
        self._rows = rows
        self._batches = batches
        self._seconds = 0.0
        self._runs = 0
        self.spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", False)
            .config("spark.ui.showConsoleProgress", False)
            .config("spark.driver.memory", "3g")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
            .config(map=settings)
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("ERROR")
        self._tracker = subprocess.Popen(
            [sys.executable, "-m", "tracker.cli.main", "serve", "--listen", "127.0.0.1:0", "--journal", "memory"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._tracker.stdout is not None
        self.address = self._tracker.stdout.readline().split()[-1]
        for batch in range(batches):
            self._make(batch, keys)
        self._schema = self.spark.read.parquet(str(path / "raw" / "0")).schema

    def close(self) -> None:
        """Stop what was started."""
        self.spark.stop()
        self._tracker.terminate()
        if self._store is not None:
            self._store.kill()

    def run(self, runs: int, only: str | None) -> dict[str, Any]:
        """Run all ways in turns, `runs` times, after a turn that is not counted: it warms the JVM up."""
        ways: dict[str, dict[str, Callable[[str], None]]] = {
            "release": {
                "Spark's watermark": self.by_sparks_watermark,
                "tracker, substream by substream": self.by_release,
                "tracker as the watermark": self.by_exact_watermark,
            },
            "job": {
                "without tracking": self.untracked_job,
                "tracked": self.tracked_job,
                "tracked, sealed": partial(self.tracked_job, seal=True),
                "tracked by executors, sealed": partial(self.tracked_job, probe="executors", seal=True),
            },
        }
        measured: dict[str, Any] = {}
        for what, compared in ways.items():
            if only not in (None, what):
                continue
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in compared}
            for number in range(runs + 1):
                for way, start in compared.items():
                    turn = f"run {number} of {runs}" if number else "warming up"
                    print(f"{what}, {turn}: {way}", file=sys.stderr, flush=True)
                    taken = self._time(start)
                    if number:
                        times[way].append(taken)
            floor = times[next(iter(compared))]
            measured[what] = {
                way: {
                    "rows_per_second": round(self._rows / statistics.median(seconds for seconds, _ in taken)),
                    "ratio": statistics.median(_ratios(floor, taken, 0)),
                    "ratios": _ratios(floor, taken, 0),
                    "processor_ratio": statistics.median(_ratios(floor, taken, 1)),
                    "processor_ratios": _ratios(floor, taken, 1),
                }
                for way, taken in times.items()
            }
        if only in (None, "start"):
            measured["start"] = self._starts(runs)
        return measured

    def _starts(self, runs: int) -> dict[str, Any]:
        """Measure starts and delays in turns: the first turn is not counted."""
        begins: dict[str, Callable[[DataFrame, str], Callable[[], None]]] = {
            "Spark's watermark": self._begin_watermark,
            "tracker": self._begin_release,
        }
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in begins}
        for number in range(runs + 1):
            for way, begin in begins.items():
                print(f"start, run {number} of {runs}: {way}", file=sys.stderr, flush=True)
                self._runs += 1
                one = self._start(begin, self._path / f"run-{self._runs}")
                if number:
                    taken[way].append(one)
        floor = taken["Spark's watermark"]
        return {
            way: {
                "start_seconds": round(statistics.median(start for start, _ in figures), 3),
                "start_ratio": statistics.median(_ratios(figures, floor, 0)),
                "result_seconds": round(statistics.median(delay for _, delay in figures), 3),
                "result_ratio": statistics.median(_ratios(figures, floor, 1)),
            }
            for way, figures in taken.items()
        }

    def _start(self, begin: Callable[[DataFrame, str], Callable[[], None]], path: Path) -> tuple[float, float]:
        """Return seconds until the first batch is committed, and the median of those from a last row to its result."""
        raw = path / "raw"
        _put(raw, 0)
        began = time.monotonic()
        stop = begin(
            self.spark.readStream.schema("tenant string, ts timestamp, last boolean").json(str(raw)), str(path)
        )
        _await((path / "cp" / "commits" / "0").exists)
        started = time.monotonic() - began
        _await(partial(_has_results, path, 1))
        delays = []
        for minute in range(1, _MINUTES):
            began = time.monotonic()
            _put(raw, minute)
            _await(partial(_has_results, path, minute + 1))
            delays.append(time.monotonic() - began)
            time.sleep(0.3 + 0.1 * minute)  # until it is idle, and then for a part of a trigger
        stop()
        return started, statistics.median(delays)

    def _begin_watermark(self, rows: DataFrame, path: str) -> Callable[[], None]:
        grouped = rows.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 minute"), "tenant")
        writer = grouped.agg(F.count("*").alias("rows")).writeStream.format("parquet").option("path", f"{path}/out")
        query = writer.option("checkpointLocation", f"{path}/cp").trigger(processingTime=_TRIGGER).start()
        return query.stop

    def _begin_release(self, rows: DataFrame, path: str) -> Callable[[], None]:
        tracking = Tracking(self.spark, Path(path).name, self.address)
        source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 minute"), front=Marks("last"))
        writer = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
        writer.option("checkpointLocation", f"{path}/cp").trigger(processingTime=_TRIGGER).start(f"{path}/out")
        return tracking.stop

    # ---------------------------------------------------------------- ways

    def by_sparks_watermark(self, path: str) -> None:
        """Use Spark's own: `withWatermark` and an aggregation in append mode."""
        grouped = self._stream().withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 minute"), "tenant", "key")
        writer = grouped.agg(*_aggs()).writeStream
        writer = writer.format("parquet").option("path", f"{path}/out")
        self._wait(writer.option("checkpointLocation", f"{path}/cp").trigger(availableNow=True).start())

    def by_release(self, path: str) -> None:
        """Keep partial aggregates as state; release each substream by its own end."""
        tracking = Tracking(self.spark, Path(path).name, self.address)
        released = tracking.release(self._source(tracking, "in"), ["key"], aggs=_by_name())
        writer = released.writeStream.option("checkpointLocation", f"{path}/cp")
        self._run_to_the_end(tracking, lambda: writer.start(f"{path}/out"))

    def by_exact_watermark(self, path: str) -> None:
        """Use Spark's operator, moved by the tracker."""
        tracking = Tracking(self.spark, Path(path).name, self.address)
        source = self._source(tracking, "in")
        rows = tracking.with_watermark(source, "ts", "windows")
        grouped = rows.groupBy(F.window("ts", "1 minute"), "tenant", "key").agg(*_aggs())
        writer = tracking.write_stream(grouped, source).format("parquet").option("path", f"{path}/out")
        writer = writer.option("checkpointLocation", f"{path}/cp").outputMode("append")
        self._run_to_the_end(tracking, writer.start)

    def untracked_job(self, path: str) -> None:
        """Run the two queries, with the same files between them, and Spark's watermark in the second."""
        spark, clean = self.spark, f"{path}/clean"
        schema = _clean(self._stream()).schema

        def write(rows: DataFrame, epoch: int) -> None:
            _clean(rows).write.mode("overwrite").parquet(f"{clean}/{epoch:012d}")

        first = self._stream().writeStream.foreachBatch(write).option("checkpointLocation", f"{path}/cp1")
        self._wait(first.trigger(availableNow=True).start())
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(f"{clean}/[0-9]*")
        grouped = stream.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 minute"), "tenant", "key")
        second = grouped.agg(*_aggs()).writeStream.format("parquet").option("path", f"{path}/out")
        self._wait(second.option("checkpointLocation", f"{path}/cp2").trigger(availableNow=True).start())

    def tracked_job(self, path: str, probe: CountingMode = "driver", seal: bool = False) -> None:
        """Run the two queries, tracked: sent, received, released."""
        tracking = Tracking(self.spark, Path(path).name, self.address, probe=probe)
        channel = tracking.channel("clean", f"{path}/clean")
        first = self._source(tracking, "in").transform(_clean).writeStream.channel(channel)
        received = tracking.receive(channel, max_epochs_per_trigger=1)
        second = tracking.release(received, ["key"], aggs=_by_name()).writeStream
        first.option("checkpointLocation", f"{path}/cp1").option("seal", seal)
        second.option("checkpointLocation", f"{path}/cp2").option("seal", seal)
        self._run_to_the_end(tracking, first.start, lambda: second.start(f"{path}/out"))

    # ---------------------------------------------------------------- parts

    def _make(self, batch: int, keys: int) -> None:
        """Write a batch of rows: ten windows of a minute, `keys` keys in each, in two files."""
        number = F.col("id")
        rows = self.spark.range(batch * self._rows, (batch + 1) * self._rows, 1, 2).select(
            number.alias("row_id"),
            F.concat(F.lit("t"), F.pmod(F.xxhash64("id"), F.lit(2)).cast("string")).alias("tenant"),
            F.timestamp_seconds(
                F.lit(1_700_000_000 // 600 * 600 + batch * 300) + F.pmod(number * 7919, F.lit(300))
            ).alias("ts"),
            F.concat(F.lit("k"), F.pmod(F.xxhash64("id", F.lit(1)), F.lit(keys)).cast("string")).alias("key"),
            F.pmod(F.xxhash64("id", F.lit(2)), F.lit(1000)).alias("amount"),
            (F.pmod(F.xxhash64("id", F.lit(3)), F.lit(10_000)) / 100).alias("price"),
            F.sha2(number.cast("string"), 256).alias("note"),
        )
        rows.write.parquet(str(self._path / "raw" / str(batch)))

    def _stream(self) -> DataFrame:
        """Return the rows as a stream, one of their batches a micro-batch."""
        reader = self.spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 2)
        return reader.parquet(str(self._path / "raw" / "*"))

    def _source(self, tracking: Tracking, segment: str) -> Any:
        return tracking.source(
            self._stream(),
            segment,
            scope="tenant",
            window=("ts", "1 minute"),
            identity=["row_id"],
            front=Frontier("0 seconds"),
        )

    def _time(self, start: Callable[[str], None]) -> tuple[float, float]:
        """Measure seconds a batch of rows: all that Spark did after the first batch, of both queries if there are two.

        Also the seconds of processor time of the whole run, first batches included, which other people's work on the
        machine disturbs less.
        """
        self._runs += 1
        path = f"{self._place}/run-{self._runs}"
        self._seconds = 0.0
        before = processor_time()
        start(path)
        spent = processor_time() - before
        if self._store is None:
            shutil.rmtree(path, ignore_errors=True)
        return self._seconds / (self._batches - 1), spent

    def _wait(self, query: Any) -> None:
        query.awaitTermination()
        self._note(query)

    def _note(self, query: Any) -> None:
        progress = [p for p in query.recentProgress if p["batchId"] > 0 and "addBatch" in p["durationMs"]]
        self._seconds += sum(p["durationMs"]["triggerExecution"] for p in progress) / 1000

    def _run_to_the_end(self, tracking: Tracking, *starts: Callable[[], Any]) -> None:
        """Run one query after the other, as the untracked ones run, so that each has the machine to itself."""
        queries = []
        for start in starts:
            queries.append(start())
            tracking.process_all_available()
        for query in queries:
            self._note(query)
        tracking.stop()


def processor_time() -> float:
    """Return the seconds that this process and all that it has started have spent on the processor."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(int(fields[place]) for place in (11, 12, 13, 14))
    family = [os.getpid()]
    for process in family:
        family.extend(children.get(process, []))
    return sum(ticks.get(process, 0) for process in family) / os.sysconf("SC_CLK_TCK")


def _ratios(floor: list[tuple[float, float]], taken: list[tuple[float, float]], place: int) -> list[float]:
    """Return how much quicker each run was than the first way's run beside it."""
    return [round(base[place] / own[place], 2) for base, own in zip(floor, taken, strict=True)]


def _put(raw: Path, minute: int) -> None:
    """Write a file with the last row of a minute, which a marked row ends, and one of the next minute behind it."""
    moments = [(60 * minute, True), (60 * minute + 60, False)]
    rows = [
        {"tenant": "t", "ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_040 + at)), "last": last}
        for at, last in moments
    ]
    raw.mkdir(parents=True, exist_ok=True)
    hidden = raw / f".{minute}"
    hidden.write_text("\n".join(map(json.dumps, rows)))
    hidden.rename(raw / f"{minute}.json")


def _has_results(path: Path, number: int) -> bool:
    """Return whether so many files with rows are published: by Spark's writer in its log, by a release in folders."""
    out = path / "out"
    logged = [line for log in (out / "_spark_metadata").glob("[0-9]*") for line in log.read_text().split("\n")[1:]]
    named = [Path(json.loads(line)["path"].removeprefix("file://")) for line in logged if line]
    return sum(_has_rows(str(file)) for file in {*named, *out.glob("epoch=*/*.parquet")}) >= number


@cache
def _has_rows(file: str) -> bool:
    return bool(pq.read_metadata(file).num_rows)


def _await(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.02)  # the driver of a tracked query is this process


def _by_name() -> dict[str, Column]:
    return {"rows": F.count("*"), "amount": F.sum("amount"), "price": F.avg("price")}


def _aggs() -> list[Column]:
    return [value.alias(name) for name, value in _by_name().items()]


def _clean(rows: DataFrame) -> DataFrame:
    """Apply the first query: a filter, a derived column, a dropped one."""
    return rows.where("amount > 9").withColumn("note", F.upper(F.substring("note", 1, 16)))


def table(measured: dict[str, Any]) -> str:
    """Return the figures for people."""
    lines = []
    starts = measured.get("start", {})
    if starts:
        lines.append(f"{'start':36}{'start':>8}{'ratio':>7}{'result':>8}{'ratio':>7}   in seconds")
        for way, figures in starts.items():
            lines.append(
                f"  {way:34}{figures['start_seconds']:>8.2f}{figures['start_ratio']:>7.2f}"
                f"{figures['result_seconds']:>8.2f}{figures['result_ratio']:>7.2f}"
            )
    for what, ways in ((what, ways) for what, ways in measured.items() if what != "start"):
        lines.append(f"{what:36}{'rows':>10}{'ratio':>7}{'cpu':>6}   ratios of each run; of processor time")
        for way, figures in ways.items():
            each = [", ".join(f"{ratio:.2f}" for ratio in figures[name]) for name in ("ratios", "processor_ratios")]
            lines.append(
                f"  {way:34}{written(figures['rows_per_second'], '/s'):>10}"
                f"{figures['ratio']:>7.2f}{figures['processor_ratio']:>6.2f}"
                f"   {each[0]}; {each[1]}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)
