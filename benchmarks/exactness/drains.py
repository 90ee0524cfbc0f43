"""A drain while a source is idle: all rows that were read have to be in results, and the drain has to end.

A tenant's partition is silent, and has promised nothing. The job is to be stopped for good, so that another can go on
behind it: each engine is asked with what it has for that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.exactness.judge import judge
from benchmarks.exactness.queries import tumbling
from benchmarks.exactness.report import Fault
from benchmarks.exactness.stepwise import Collected, Feed
from benchmarks.exactness.tracked import Running, delayed
from benchmarks.exactness.watermarks import NATIVE
from benchmarks.exactness.workload import Plan, Site, Workload, make
from examples.flights.agent import TrackerProcess
from examples.flights.progress import Progress
from examples.flights.spark import local_session

FAULT = "an idle source at a drain"
_PLAN = Plan("drain", 30, (Site("north", (0,)), Site("west", (1,), closed=(14, 30))), slow=0, quiet=2)


def run(engines: Sequence[str], progress: Progress) -> list[Fault]:
    """Drain each engine that can be drained, or stop it with what it has."""
    found = []
    if "spark" in engines:
        progress.say(f"{FAULT}: Spark")
        found += [_spark(available_now=False), _spark(available_now=True)]
    if "ours" in engines:
        progress.say(f"{FAULT}: tracker")
        found.append(_ours())
    return found


def _spark(available_now: bool) -> Fault:
    workload, collected = make(_PLAN), Collected()
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        with local_session(directory) as spark:
            feed = Feed(directory)
            rows = feed.stream(spark).withWatermark("at", "5 minutes")
            writer = NATIVE["tumbling"](rows).writeStream.option("checkpointLocation", str(directory / "cp"))
            writer = writer.foreachBatch(collected.taker("tumbling"))
            for step in workload.steps:
                feed.publish(step)
            if available_now:
                writer.trigger(availableNow=True).start().awaitTermination()
            else:
                query = writer.start()
                query.processAllAvailable()
                query.stop()
    how = "`trigger(availableNow=True)`" if available_now else "`processAllAvailable` and `stop`"
    return _fault(f"Spark, {how}", workload, collected, "")


def _ours() -> Fault:
    workload, collected = make(_PLAN), Collected()
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        with TrackerProcess(directory / "tracker") as tracker, local_session(directory) as spark:
            feed = Feed(directory)
            running = Running(spark, tracker.address, feed, delayed("5 minutes"), workload)
            running.start("tumbling", str(directory / "cp"), collected)
            for step in workload.steps:
                feed.publish(step)
                running.settle()
            before = len(collected.runs["tumbling"].emitted)
            running.drain()
    return _fault(
        'Spark with the tracker, `Frontier("5 minutes")`, `tracking.drain()`',
        workload,
        collected,
        f"; {before} came before the drain, which was confirmed",
    )


def _fault(engine: str, workload: Workload, collected: Collected, more: str) -> Fault:
    verdict = judge(tumbling(workload.rows), collected.runs["tumbling"].emitted, workload.steps)
    found = f"{verdict.right} of {verdict.windows} windows right; {verdict.never} never came{more}"
    return Fault(FAULT, engine, verdict.exact, found)
