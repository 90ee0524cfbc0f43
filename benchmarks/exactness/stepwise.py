"""Spark, step by step: a step's rows become a file, and every query does all that it can before the next one appears.

So a result comes in the step that brought it out, however slow the machine is. Both engines on Spark are run by this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.exactness.engine import Run, Show
from benchmarks.exactness.judge import Emitted
from benchmarks.exactness.queries import GAP, LENGTH, SLIDE, Key
from benchmarks.exactness.workload import Step, Workload

_SCHEMA = (
    "number long, tenant string, part int, kind string, at timestamp, "
    "auction long, person long, price long, last boolean"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

BIDS = "kind = 'bid'"
IDENTITY = ["tenant", "number"]  #: names a row
TUMBLING = f"{LENGTH} milliseconds"
SLIDING = f"{SLIDE} milliseconds"
GAPS = f"{GAP} milliseconds"

Take = Callable[[DataFrame, int], None]  #: a function of `foreachBatch`


class Feed:
    """The workload's rows as files that appear one by one."""

    def __init__(self, directory: Path, exist: bool = False) -> None:
        """Keep the steps below the directory of a run.

        Args:
            exist: go on with files that are there; a step that has appeared stays as it is.
        """
        self.path = directory / "rows"
        self.path.mkdir(exist_ok=exist)

    def publish(self, step: Step) -> None:
        """Let a step's rows appear."""
        path = self.path / f"{step.number:05}.json"
        if not step.rows or path.exists():
            return
        lines = [
            json.dumps({**asdict(row), "at": time_of(row.at).isoformat(timespec="milliseconds"), "arrives": None})
            for row in step.rows
        ]
        hidden = self.path.with_name("hidden")
        hidden.write_text("".join(f"{line}\n" for line in lines))
        hidden.rename(path)

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a stream."""
        return spark.readStream.schema(_SCHEMA).json(str(self.path))


def time_of(milliseconds: int) -> datetime:
    """Return a time of the workload."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


class Collected:
    """Results of queries, with the step that each came in."""

    def __init__(self) -> None:
        """Set the clock before the first step."""
        self.step = 0
        self.runs: dict[str, Run] = {}

    def taker(self, query: str) -> Take:
        """Return a function of `foreachBatch` that takes a query's results; columns as `shaped` makes them.

        A further column is the result's completeness, as a release states it.
        """
        self.runs.setdefault(query, Run())
        return lambda rows, _: self.take(query, rows.collect())

    def take(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Take results of a query, with the columns of `taker`."""
        for tenant, entity, begin, end, bids, volume, highest, *more in rows:
            marked = bool(more) and more[0] != "whole"
            key = Key(tenant, entity, begin, end)
            self.runs[query].emitted.append(Emitted(self.step, key, (bids, volume, highest), marked))


def figures() -> dict[str, Column]:
    """Return the values of a result."""
    return {"bids": F.count("*"), "volume": F.sum("price"), "highest": F.max("price")}


def shaped(rows: DataFrame, entity: str | None, *more: str) -> DataFrame:
    """Return results with the columns that `Collected` takes.

    Args:
        rows: with `tenant`, `window` and the figures.
        entity: the column of the entity; None: all of the tenant.
        more: further columns that are kept.
    """
    return rows.select(
        "tenant",
        (F.col(entity) if entity else F.lit(0)).alias("entity"),
        F.unix_millis("window.start").alias("begin"),
        F.unix_millis("window.end").alias("end"),
        *figures(),
        *more,
    )


class Session(Protocol):
    """Queries that run."""

    def before(self, step: Step) -> None:
        """Do what is to be done when a step's rows have appeared: state what is known of them."""
        ...

    def settle(self) -> None:
        """Do all that can be done."""
        ...

    def close(self) -> Mapping[str, int | None]:
        """Stop, and return how many late rows each query has kept."""
        ...


def play(workload: Workload, feed: Feed, session: Session, collected: Collected, show: Show) -> Mapping[str, Run]:
    """Publish step by step; results are in `collected`."""
    try:
        for step in workload.steps:
            collected.step = step.number
            show(f"step {step.number + 1} of {len(workload.steps)}")
            feed.publish(step)
            session.before(step)
            session.settle()
    except BaseException:
        with suppress(Exception):
            session.close()
        raise
    for query, aside in session.close().items():
        collected.runs[query].aside = aside
    return collected.runs
