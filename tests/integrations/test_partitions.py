"""`examples/mark_partitions.py`: complete days become partitions of a Hive metastore by Spark, and of AWS Glue.

Hive's metastore is a real one, in Derby. In Glue's place stands moto, a mock of its interface (`make integrations`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import client, job, shared_server, spec
from tests.client.processes import Server
from tests.integrations.conftest import INTEGRATIONS
from tracker.client import TrackerClient

__all__ = ["client", "job", "shared_server"]

ROOT = INTEGRATIONS.parent
GLUE = ROOT / ".cache" / "glue" / "bin" / "python"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Marks what has ended up to `LAST`; the program dies once between a mark and its acknowledgement, and begins again.
MARKING = """
import json, sys
from pathlib import Path
from examples.mark_partitions import in_glue, in_hive, mark_all
from tracker.client import TrackerClient

address, job, last, place = sys.argv[1:]

def marked(mark):
    died = []

    def once(ended):
        mark(ended)
        if not died or ended.scope == last:
            died.append(ended)
            raise KeyboardInterrupt

    with TrackerClient(address) as client:
        for _ in range(2):
            try:
                mark_all(client, job, "orders", once)
            except KeyboardInterrupt:
                pass
"""
HIVE = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").enableHiveSupport().getOrCreate()
rows = [("berlin", "2026-03-01", 3), ("berlin", "2026-03-02", 5), ("lima", "2026-03-01", 7)]
frame = spark.createDataFrame(rows, "shop string, day string, items int")
frame.write.partitionBy("shop", "day").parquet(place)  # the query that stays as it is
spark.sql("create database shop")
columns = "create external table shop.clean (items int) partitioned by (shop string, day string)"
spark.sql(f"{columns} stored as parquet location '{place}'")
marked(in_hive(spark, "shop.clean"))
found = [[*row] for row in spark.sql("select shop, day, items from shop.clean order by all").collect()]
shown = sorted(row.partition for row in spark.sql("show partitions shop.clean").collect())
print(json.dumps([found, shown]))
"""
MOTO = """
import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
secrets = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
glue = boto3.client("glue", endpoint_url=f"http://{host}:{port}", region_name="eu-central-1", **secrets)
glue.create_database(DatabaseInput={"Name": "shop"})
keys = [{"Name": name, "Type": "string"} for name in ("shop", "day")]
storage = {"Columns": [{"Name": "items", "Type": "int"}], "Location": place, "InputFormat": "parquet"}
table = {"Name": "clean", "PartitionKeys": keys, "StorageDescriptor": storage}
glue.create_table(DatabaseName="shop", TableInput=table)
marked(in_glue(glue, "shop.clean"))
found = glue.get_partitions(DatabaseName="shop", TableName="clean")["Partitions"]
assert {each["StorageDescriptor"]["InputFormat"] for each in found} == {"parquet"}
shown = [[*each["Values"], each["StorageDescriptor"]["Location"], each["Parameters"]] for each in found]
print(json.dumps(sorted(shown)))
server.stop()
"""


def end_days(client: TrackerClient, job: str) -> None:
    """End two days of berlin's, of which the second is lost, and one of lima's."""
    client.define_job(spec(job, segments={"orders": []}))
    with client.open_producer(job, "till", run="r1") as till:
        report = till.epoch()
        report.sent("orders", "berlin", name_of(2), 4711)
        report.close("berlin", name_of(1))
        report.report(commit=True)
        client.abandon(job, "berlin", name_of(2))
        report = till.epoch()
        report.close("lima", name_of(1))
        report.report(commit=True)


def name_of(day: int) -> str:
    """Return the name of a day's window."""
    return f"2026-03-{day:02d}T00:00:00Z/2026-03-{day + 1:02d}T00:00:00Z"


def marks(python: Path | str, program: str, address: str, job: str, directory: Path) -> Any:
    """Mark all days up to lima's. Return the program's findings in the metastore."""
    place = directory / "clean"
    done = subprocess.run(
        [python, "-c", MARKING + program, address, job, "lima", place],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def successes(directory: Path) -> list[str]:
    """Return the partitions that have `_SUCCESS`."""
    place = directory / "clean"
    return sorted(str(file.parent.relative_to(place)) for file in place.glob("*/*/_SUCCESS"))


@pytest.mark.spark
def test_a_hive_table_has_complete_days_and_no_others(
    shared_server: Server, client: TrackerClient, job: str, tmp_path: Path
) -> None:
    end_days(client, job)
    rows, shown = marks(sys.executable, HIVE, shared_server.address, job, tmp_path)
    assert rows == [["berlin", "2026-03-01", 3], ["lima", "2026-03-01", 7]]
    assert shown == ["shop=berlin/day=2026-03-01", "shop=lima/day=2026-03-01"] == successes(tmp_path)


@pytest.mark.skipif(not GLUE.exists(), reason=f"there is no {GLUE}: `make integrations` installs moto")
def test_a_glue_table_has_complete_days_and_how_they_ended(
    shared_server: Server, client: TrackerClient, job: str, tmp_path: Path
) -> None:
    end_days(client, job)
    found = marks(GLUE, MOTO, shared_server.address, job, tmp_path)
    place, how = tmp_path / "clean", {"reason": "COMPLETE", "elements": "0"}
    days = [[shop, "2026-03-01", f"{place}/shop={shop}/day=2026-03-01", how] for shop in ("berlin", "lima")]
    assert found == days
    assert successes(tmp_path) == ["shop=berlin/day=2026-03-01", "shop=lima/day=2026-03-01"]
