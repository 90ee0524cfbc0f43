"""Each complete day becomes a partition of a table that a metastore has: Hive's by Spark, or AWS Glue's.

A query writes `/data/clean/shop=…/day=…`, and an observer follows it. This program reads the ends of substreams by a
subscription. For each complete one it writes `_SUCCESS` into the partition's directory, and then adds the partition to
the table: whoever asks the metastore sees whole days only. All of that can be repeated, so a program that was killed
goes on with the day that it was at.

Run `python -m examples.mark_partitions TRACKER:PORT JOB SEGMENT DATABASE.TABLE hive|glue` beside the query.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tracker.client import Ended, Reason, TrackerClient

Mark = Callable[[Ended], None]


def in_hive(spark: Any, table: str) -> Mark:
    """Return what adds a partition to a table of the session's metastore, which holds it as a directory."""
    location = spark.sql(f"describe formatted {table}").where("col_name = 'Location'").first().data_type

    def mark(ended: Ended) -> None:
        partition = partition_of(ended)
        path = directory_of(location, partition)
        leave_success_file(path)
        values = ", ".join(f"{column} = '{value}'" for column, value in partition.items())
        spark.sql(f"alter table {table} add if not exists partition ({values}) location '{path}'")

    return mark


def in_glue(glue: Any, table: str) -> Mark:
    """Return what adds a partition to a table of AWS Glue, with how it ended in its parameters.

    Args:
        glue: `boto3.client("glue")`.
        table: its database, a dot, and its name.
    """
    database, _, name = table.partition(".")
    storage = glue.get_table(DatabaseName=database, Name=name)["Table"]["StorageDescriptor"]

    def mark(ended: Ended) -> None:
        partition = partition_of(ended)
        path = directory_of(storage["Location"], partition)
        leave_success_file(path)
        added = {
            "Values": [*partition.values()],
            "StorageDescriptor": {**storage, "Location": path},
            "Parameters": {"reason": str(ended.reason), "elements": str(ended.elements)},
        }
        with suppress(glue.exceptions.AlreadyExistsException):  # killed before the end was acknowledged
            glue.create_partition(DatabaseName=database, TableName=name, PartitionInput=added)

    return mark


def directory_of(table: str, partition: dict[str, str]) -> str:
    """Return where a partition is: `shop=berlin/day=2026-03-01` in the table's directory."""
    return "/".join([table.rstrip("/"), *(f"{column}={value}" for column, value in partition.items())])


def leave_success_file(place: str) -> None:
    """Write `_SUCCESS` into a directory. One in an object store takes `obstore`, or a rule of `tracker notify`."""
    path = place.removeprefix("file:")
    if "://" not in path:
        Path(path).mkdir(parents=True, exist_ok=True)
        Path(path, "_SUCCESS").touch()


def partition_of(ended: Ended) -> dict[str, str]:
    """Return the partition of a shop's day. Names come from reporters, and these get into SQL and paths."""
    day = ended.name.partition("/")[0][:10]  # a window's name is its start, a slash and its end
    for value in (ended.scope, day):
        if not value.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{value!r} is no value of a partition")
    return {"shop": ended.scope, "day": day}


def mark_all(client: TrackerClient, job: str, segment: str, mark: Mark) -> None:
    """Mark each complete day, for as long as the program runs."""
    with client.subscribe(job, "partitions", segments=[segment]) as ends:
        for event in ends:
            match event.kind:
                case Ended(reason=Reason.COMPLETE, by_drain=False):
                    mark(event.kind)
            ends.ack(event)


def main(address: str, job: str, segment: str, table: str, metastore: str) -> None:
    if metastore == "hive":
        from pyspark.sql import SparkSession

        mark = in_hive(SparkSession.builder.enableHiveSupport().getOrCreate(), table)
    else:
        import boto3

        mark = in_glue(boto3.client("glue"), table)
    with TrackerClient(address) as client:
        mark_all(client, job, segment, mark)


if __name__ == "__main__":
    main(*sys.argv[1:])
