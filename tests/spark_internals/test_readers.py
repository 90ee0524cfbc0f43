"""The life of a reader that is written in Python, and in which order Spark calls it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.spark_internals.readers import AvailableNow, LastingReader, source_name

pytest.importorskip("pyspark.sql.datasource", reason="sources in Python came with Spark 4.0")
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

pytestmark = pytest.mark.spark

TELLS_ITS_END = pyspark.__version__ >= "4.2"  #: whether a run with availableNow asks sources in Python where it ends


class Numbers(DataSource):
    """The numbers below one that stands in a file; each is a batch. Writes down how its reader is called."""

    @classmethod
    def name(cls) -> str:
        return "tests-numbers"

    def schema(self) -> str:
        return "number long"

    def simpleStreamReader(self, schema: T.StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
        return _Reader(Path(self.options["home"]), self.options["called"])


class _Reader(LastingReader):
    def __init__(self, home: Path, called: str) -> None:
        self._home = home
        self._called = called
        self._made = uuid.uuid4().hex
        self._end: int | None = None

    def _note(self, call: str, *offsets: dict[str, int]) -> None:
        said = {"source": self._called, "by": self._made, "call": call, "at": [each["next"] for each in offsets]}
        with open(self._home / "calls", "a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")

    def _there(self) -> int:
        return int((self._home / "there").read_text())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._note("prepare")
        self._end = self._there()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._note("initial")
        return {"next": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        self._note("read", start)
        if start["next"] >= (self._there() if self._end is None else self._end):
            return iter([]), start
        return iter([(start["next"],)]), {"next": start["next"] + 1}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        self._note("between", start, end)
        return iter([(number,) for number in range(start["next"], end["next"])])

    def commit(self, end: dict[str, Any]) -> None:
        self._note("commit", end)


@dataclass
class Job:
    """A query over numbers, with one checkpoint.

    Attributes:
        taken: the numbers of each batch, by batch.
        fails: the batch that fails.
    """

    spark: SparkSession
    home: Path
    taken: dict[int, list[int]]
    fails: int | None = None

    def put(self, there: int) -> None:
        """Make the numbers below this one available."""
        (self.home / "there").write_text(str(there))

    def stream(self, called: str = "a") -> DataFrame:
        self.spark.dataSource.register(Numbers)
        reader = self.spark.readStream.format(Numbers.name())
        return reader.options(home=str(self.home), called=called).load()

    def start(self, rows: DataFrame, **trigger: Any) -> StreamingQuery:
        def take(rows: DataFrame, epoch: int) -> None:
            self.taken[epoch] = sorted(each.number for each in rows.collect())
            if epoch == self.fails:
                self.fails = None
                raise RuntimeError("once")

        writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(self.home / "cp"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self) -> list[dict[str, Any]]:
        """Take what is there, and stop. Return how the reader was called."""
        query = self.start(self.stream())
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return self.calls()

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls since the last look."""
        calls = self.home / "calls"
        said = [json.loads(line) for line in calls.read_text().splitlines()]
        calls.unlink()
        return said


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path, {})


@pytest.mark.thorough
def test_one_reader_serves_a_query_until_it_stops(job: Job) -> None:
    job.put(2)
    query = job.start(job.stream())
    query.processAllAvailable()
    job.put(3)
    query.processAllAvailable()
    query.stop()
    calls = job.calls()
    assert len({each["by"] for each in calls}) == 1
    assert job.taken == {0: [0], 1: [1], 2: [2]}
    assert {each["at"][0] for each in calls if each["call"] == "commit"} >= {1, 2}
    job.put(4)
    assert not {each["by"] for each in job.run()} & {each["by"] for each in calls}, "another start has another reader"


@pytest.mark.thorough
def test_a_query_goes_on_where_its_last_batch_ended(job: Job) -> None:
    job.put(2)
    job.run()
    job.taken.clear()
    job.put(4)
    calls = job.run()
    assert job.taken == {2: [2], 3: [3]}
    assert min(each["at"][0] for each in calls if each["call"] == "read") == 2


@pytest.mark.thorough
def test_a_batch_that_failed_is_read_between_its_own_offsets(job: Job) -> None:
    job.put(1)
    job.fails = 1
    job.run()
    job.put(2)
    with pytest.raises(StreamingQueryException, match="once"):
        job.run()
    assert job.taken == {0: [0], 1: [1]}
    job.calls()
    job.taken.clear()
    job.put(5)
    calls = job.run()
    assert [each["at"] for each in calls if each["call"] == "between"].count([1, 2]) >= 1
    assert job.taken == {1: [1], 2: [2], 3: [3], 4: [4]}


def test_a_run_with_available_now_ends_where_the_source_says(job: Job) -> None:
    job.put(3)
    query = job.start(job.stream(), availableNow=True)
    query.awaitTermination()
    calls = [each["call"] for each in job.calls()]
    assert AvailableNow.__module__.startswith("pyspark.") == TELLS_ITS_END
    if TELLS_ITS_END:
        assert calls.count("prepare") == 1
        assert calls.index("prepare") < calls.index("read")
        assert job.taken == {0: [0], 1: [1], 2: [2]}
    else:
        assert "prepare" not in calls
        assert job.taken == {0: [0]}, "before Spark 4.2 it is one batch"


@pytest.mark.thorough
def test_sources_are_asked_in_the_plans_order(job: Job) -> None:
    job.put(1)
    both = job.stream("first").unionByName(job.stream("second"))
    query = job.start(both, availableNow=True)
    query.awaitTermination()
    reads = [each["source"] for each in job.calls() if each["call"] == "read"]
    assert reads[:2] == ["first", "second"]
    assert reads[0::2] == ["first"] * len(reads[0::2])
    assert job.taken[0] == [0, 0]


@pytest.mark.parametrize("name", ["tests-numbers", "Tests-Numbers"])
def test_a_stream_keeps_the_source_that_it_was_loaded_from(job: Job, name: str) -> None:
    """Two channels may have one name: in two jobs of one session, or but for capitals, which Spark does not tell."""

    class Another(Numbers):
        @classmethod
        def name(cls) -> str:
            return name

        def simpleStreamReader(self, schema: T.StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
            raise AssertionError("it was registered later")

    job.put(1)
    rows = job.stream()
    job.spark.dataSource.register(Another)
    job.start(rows, availableNow=True).awaitTermination()
    assert job.taken == {0: [0]}


def named(about: str) -> type[Numbers]:
    """Return the same reader under a name that is about something."""

    class Named(Numbers):
        @classmethod
        def name(cls) -> str:
            return source_name("tests-numbers", about)

    return Named


NAMES = ["clean", "Clean", "a/b", "org.apache.spark.sql", "file:///tmp", "parquet", "ü", "a b", "x" * 300, "", "kafka"]


@pytest.mark.thorough
def test_a_source_can_be_about_whatever_name(spark: SparkSession, tmp_path: Path) -> None:
    for about in NAMES:
        spark.dataSource.register(named(about))
        loaded = spark.readStream.format(named(about).name()).options(home=str(tmp_path), called="a").load()
        assert (loaded.columns, loaded.isStreaming) == (["number"], True)
    names = [source_name("tests-numbers", name) for name in NAMES]
    assert len(set(names)) == len(NAMES)
    # Releases of Spark differ in what else they take for a name.
    assert all(re.fullmatch(r"tests-numbers-[A-Za-z0-9_-]{1,100}", name) for name in names)
