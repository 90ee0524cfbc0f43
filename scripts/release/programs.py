"""Programs that run in the environments of `python -m scripts.release.dist_check`, far from the source tree."""

from __future__ import annotations

#: A client that reports and sees the end; it prints how many elements there were.
REPORT = """
import sys
from tracker.client import JobSpec, TrackerClient, label
with TrackerClient(sys.argv[1]) as client:
    client.define_job(JobSpec(job=sys.argv[2], deployment="d1", segments={"work": []}))
    epoch = client.open_producer(sys.argv[2], producer="check", run="1").epoch()
    epoch.sent("work", "scope", "name", label("element"))
    epoch.received("work", "scope", "name", label("element"))
    epoch.close("scope", "name")
    epoch.report(commit=True)
    print(client.wait_for_end(sys.argv[2], "work", "scope", "name", timeout=60).elements)
"""

#: Which of some modules cannot be imported, and where the package is that can.
MODULES = """
import importlib.util, sys, tracker
print(tracker.__file__)
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""

#: A Spark job that counts rows of files and releases them once; it prints what it released.
SPARK = """
import json, os, pathlib, sys
from pyspark.sql import SparkSession, functions as F
from spark_client import Marks, Tracking
os.environ["PYSPARK_PYTHON"] = sys.executable
home = pathlib.Path.cwd()
(home / "orders").mkdir()
moments = {"2026-03-01 09:00": False, "2026-03-01 21:30": True}
rows = [{"shop": "berlin", "at": at, "last": last} for at, last in moments.items()]
(home / "orders" / "1.json").write_text(chr(10).join(map(json.dumps, rows)))
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.sql.shuffle.partitions", 1).config("spark.ui.enabled", "false").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
raw = spark.readStream.schema("shop string, at timestamp, last boolean").json(str(home / "orders"))
tracking = Tracking(spark, job="dist-spark", server=sys.argv[1])
orders = tracking.source(raw, "orders", scope="shop", window=("at", "1 day"), front=Marks("last"))
daily = tracking.release(orders, [], aggs={"orders": F.count("*")})
daily.writeStream.foreachBatch(
    lambda rows, epoch: print("released", [row.orders for row in rows.collect()], flush=True)
).option("checkpointLocation", str(home / "checkpoint")).start()
tracking.process_all_available()
tracking.drain(timeout=120)
tracking.stop()
spark.stop()
"""

#: A user's tests: one that is right, and one that is not.
TESTS = """
from tracker.client import JobSpec, label

def report(tracker):
    tracker.client.define_job(JobSpec(job="shop", deployment="d1", segments={"orders": []}))
    epoch = tracker.client.open_producer("shop", producer="till", run="1").epoch()
    epoch.sent("orders", "berlin", "monday", label("element"))
    epoch.close("berlin", "monday")
    epoch.report(commit=True)

def test_right(local_tracker):
    report(local_tracker)
    assert local_tracker.client.job("shop").open_substreams == 1

def test_wrong(local_tracker):
    report(local_tracker)
    local_tracker.assert_ended("shop", "orders", "berlin", "monday", timeout=0)
"""

#: By extra: what it is for, done once. Each prints ``1`` last.
USES = {
    "object-store": """
from tracker.store import open_store
store = open_store("memory:///")
print(int(store.create("a", b"") and not store.create("a", b"")))
""",
    "fast": """
import numpy as np
from tracker.core.compiled import CompiledAccounts
accounts = CompiledAccounts(1)
accounts.add(["scope"], ["name"], np.zeros(1, np.int64), 1)
print(len(accounts.rows_of(np.zeros(1, np.uint64))))
""",
    "notify": """
import subprocess, sys
done = subprocess.run([sys.executable, "-m", "tracker.cli.main", "notify", "none.toml"], capture_output=True, text=True)
print(int("none.toml" in done.stderr and "pip install" not in done.stderr))
""",
    "metrics": """
from prometheus_client import CollectorRegistry, generate_latest
from tracker.client import TrackerClient
registry = CollectorRegistry()
with TrackerClient("127.0.0.1:1", metrics=registry):
    print(int(b"tracker_client" in generate_latest(registry)))
""",
    "ledger": """
import pathlib, subprocess, sys
import pyarrow as pa, pyarrow.parquet as pq
pathlib.Path("receipts").mkdir()
pq.write_table(pa.table({"job": pa.array([], "string")}), "receipts/1.parquet")
done = subprocess.run([sys.executable, "-m", "tracker.cli.main", "ledger", "receipts"], capture_output=True, text=True)
print(done.stdout, done.stderr, int("pip install" not in done.stderr))
""",
    "replay": """
import datetime, pathlib, subprocess, sys
import pyarrow as pa, pyarrow.parquet as pq
now = datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc)
pq.write_table(pa.table({"ts": [now], "arrived_at": [now]}), "history.parquet")
command = "-m tracker.cli.main replay history.parquet --time ts --arrived arrived_at --promise counts"
done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True)
print(done.stdout, done.stderr, int("Take counts" in done.stdout))
""",
    "kafka": """
import confluent_kafka
from tracker.kafka import Consumer, Producer
print(int(callable(Consumer) and callable(Producer)))
""",
    "snapshots": """
from tracker.store.foreign import ForeignStore
import spark_client.api.snapshots
store = ForeignStore("memory://snapshots", {})
store.put("a", b"1")
print(store.get("a").decode())
""",
    "delta": """
import spark_client.api.snapshots as snapshots
print(int(callable(snapshots._delta())))
""",
    "lake": """
import pyiceberg.catalog.sql
from deltalake import CommitProperties, DeltaTable, Field, Schema
from spark_client import complete
note = '{"query": "q", "epoch": 0, "names": {"file-1": ["a"]}}'
schema = Schema([Field("n", "integer")])
table = DeltaTable.create("table", schema, commit_properties=CommitProperties({"userMetadata": note}))
print(int(complete(table, "a", "file-1") and not complete(table, "b", "file-1")))
""",
}
