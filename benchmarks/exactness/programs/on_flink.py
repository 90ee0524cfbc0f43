"""The queries on Flink SQL, by PyFlink: Kafka's source, bounded out-of-orderness by partition, and window functions.

A program of Kafka's feeds it and reads its results back, in the real time of this machine: a step takes a second at
least, so that `idle-timeout` is in proportion. A step is over when all of its rows have passed through Flink and
watermarks have had time to follow.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

_STEP = 1.0  #: seconds that a step takes at least
_WATERMARKS = 50  #: milliseconds between two watermarks
_SETTLED = 0.3  #: seconds for watermarks to bring results out
_PATIENCE = 300.0  #: seconds for rows to pass

_EVENTS = """
CREATE TABLE events (
    number BIGINT, tenant STRING, kind STRING, `at` BIGINT, auction BIGINT, person BIGINT, price BIGINT,
    ts AS TO_TIMESTAMP_LTZ(`at`, 3),
    WATERMARK FOR ts AS ts - INTERVAL {interval}
) WITH (
    'connector' = 'kafka', 'topic' = '{events}', 'properties.bootstrap.servers' = '{servers}',
    'properties.group.id' = 'flink', 'scan.startup.mode' = 'earliest-offset', 'format' = 'json'
)
"""
_RESULTS = """
CREATE TABLE results (
    query STRING, tenant STRING, entity BIGINT, `begin` BIGINT, `end` BIGINT,
    bids BIGINT, volume BIGINT, highest BIGINT
) WITH (
    'connector' = 'kafka', 'topic' = '{results}', 'properties.bootstrap.servers' = '{servers}', 'format' = 'json'
)
"""
_MILLIS = (
    "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', {0}) AS BIGINT) * 1000 + EXTRACT(MILLISECOND FROM {0})"
)
_BEGIN, _END = _MILLIS.format("window_start"), _MILLIS.format("window_end")
_FIGURES = "COUNT(*), SUM(price), MAX(price)"
_QUERIES = {
    "tumbling": f"""
        SELECT 'tumbling', tenant, CAST(0 AS BIGINT), {_BEGIN}, {_END}, {_FIGURES}
        FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTES))
        GROUP BY tenant, window_start, window_end""",
    "sliding": f"""
        SELECT 'sliding', tenant, auction, {_BEGIN}, {_END}, {_FIGURES}
        FROM TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES))
        GROUP BY tenant, auction, window_start, window_end""",
    "session": f"""
        SELECT 'session', tenant, person, {_BEGIN}, {_END}, {_FIGURES}
        FROM TABLE(SESSION(TABLE bids PARTITION BY (tenant, person), DESCRIPTOR(ts), INTERVAL '10' MINUTES))
        GROUP BY tenant, person, window_start, window_end""",
    "join": f"""
        SELECT 'join', tenant, auction, {_BEGIN}, {_END}, {_FIGURES}
        FROM (
            SELECT b.tenant, b.auction, b.price, b.window_start, b.window_end
            FROM (SELECT * FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTES))) b
            JOIN (SELECT * FROM TABLE(TUMBLE(TABLE auctions, DESCRIPTOR(ts), INTERVAL '10' MINUTES))) a
            ON a.tenant = b.tenant AND a.auction = b.auction
                AND a.window_start = b.window_start AND a.window_end = b.window_end
        )
        GROUP BY tenant, auction, window_start, window_end""",
}


def begin(options: dict[str, Any]) -> Any:
    """Start all queries as one job, and return it."""
    settings = Configuration()
    settings.set_string("pipeline.jars", ";".join(f"file://{jar}" for jar in options["jars"]))
    settings.set_string("pipeline.auto-watermark-interval", f"{_WATERMARKS} ms")
    settings.set_string("parallelism.default", "1")
    settings.set_string("table.local-time-zone", "UTC")
    settings.set_string("taskmanager.memory.network.max", "128m")
    settings.set_string("taskmanager.numberOfTaskSlots", "1")
    if options["idle"]:
        settings.set_string("table.exec.source.idle-timeout", f"{round(options['idle'] * 1000)} ms")
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    )
    names = {key: options[key] for key in ("events", "results", "servers", "interval")}
    tables.execute_sql(_EVENTS.format(**names))
    tables.execute_sql(_RESULTS.format(**names))
    for kind in ("bid", "auction"):
        tables.execute_sql(f"CREATE TEMPORARY VIEW {kind}s AS SELECT * FROM events WHERE kind = '{kind}'")
    queries = tables.create_statement_set()
    for query in options["queries"]:
        queries.add_insert_sql(f"INSERT INTO results {_QUERIES[query]}")
    zero = "CAST(0 AS BIGINT)"
    queries.add_insert_sql(f"INSERT INTO results SELECT 'passed', tenant, {', '.join([zero] * 6)} FROM events")
    return queries.execute()


class Results:
    """Reader of what Flink writes."""

    def __init__(self, servers: str, topic: str, out: Path) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
        self._consumer.subscribe([topic])
        self._file = out.open("w", buffering=1)
        self.passed = 0

    def read(self, step: int, seconds: float) -> int:
        """Take what comes in a time. Return how much came."""
        until = time.monotonic() + seconds
        count = 0
        while (left := until - time.monotonic()) > 0:
            for message in self._consumer.consume(1000, min(left, 0.05)):
                if message.error():
                    continue
                result = json.loads(message.value() or b"")
                count += 1
                if result["query"] == "passed":
                    self.passed += 1
                else:
                    self._file.write(json.dumps({**result, "step": step}) + "\n")
        return count


def main() -> None:
    """Feed the workload, step by step."""
    workload = json.loads(Path(sys.argv[1]).read_text())
    options = json.loads(sys.argv[3])
    producer = Producer({"bootstrap.servers": options["servers"], "linger.ms": 0})
    results = Results(options["servers"], options["results"], Path(sys.argv[2]))
    job = begin(options).get_job_client()
    sent = 0
    for step in workload["steps"]:
        began = time.monotonic()
        for row in step["rows"]:
            producer.produce(options["events"], json.dumps(row), partition=row["part"], timestamp=row["at"])
            producer.poll(0)
        producer.flush()
        sent += len(step["rows"])
        while results.passed < sent:
            results.read(step["number"], 0.05)
            if time.monotonic() > began + _PATIENCE:
                raise SystemExit(f"of {sent} rows, {results.passed} have passed: {job.get_job_status().result()}")
        results.read(step["number"], max(_SETTLED, began + _STEP - time.monotonic()))
        while results.read(step["number"], 0.2):  # until nothing more comes
            pass
        print(f"step {step['number'] + 1} ({time.monotonic() - began:.1f} s)", flush=True)
    job.cancel().result()


if __name__ == "__main__":
    main()
