"""Programs that kill themselves with SIGKILL: an observer at one of its steps, and a query in a batch.

python -m tests.observe.killed observer STEP TRACKER JOB FEED CHECKPOINT OWN
python -m tests.observe.killed query BATCH FEED CHECKPOINT TABLE
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_client import Marks, Tracking
from spark_client.counting.runs import Run
from spark_client.runtime import observer as steps
from tests.spark.conftest import session
from tests.spark.feed import Feed

#: The steps of an observer, by what is done last: the other query's batch is noted, what Spark notes of its source is
#: copied, the own batch is planned, it is reported, Spark has committed it.
STEPS = ("noted", "copied", "planned", "reported", "committed")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(function: Callable[..., Any]) -> Callable[..., Any]:
    def last(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        die()

    return last


def dying_at(step: str) -> None:
    """Let this process die when it has taken a step."""
    if step == "committed":
        setattr(Run, step, die)
        return
    places: dict[str, tuple[Any, str]] = {
        "noted": (steps.Observer, "_put_note"),
        "copied": (steps, "copy_source"),
        "planned": (steps, "plan_batch"),
        "reported": (steps, "files_between"),
    }
    place, name = places[step]
    setattr(place, name, then_die(getattr(place, name)))


def observe(spark: SparkSession, step: str, server: str, job: str, feed: str, checkpoint: str, own: str) -> None:
    dying_at(step)
    tracking = Tracking(spark, job, server)
    rows = Feed(Path(feed)).stream(spark)
    source = tracking.source(rows, "rows", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    tracking.observe(source, checkpoint, own, every=0.05).awaitTermination()


def query(spark: SparkSession, batch: str, feed: str, checkpoint: str, table: str) -> None:
    def write(rows: DataFrame, epoch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{table}/{epoch}")
        if str(epoch) == batch:
            die()

    writer = Feed(Path(feed)).stream(spark).writeStream.foreachBatch(write)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"observer": observe, "query": query}
    programs[sys.argv[1]](session("killed"), *sys.argv[2:])
