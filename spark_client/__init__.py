"""PySpark client of the substream tracker: release a substream's results when it has ended, exactly and once.

>>> from spark_client import Marks, Tracking                                              # doctest: +SKIP
>>> tracking = Tracking(spark, job="flights")                                             # doctest: +SKIP
>>> flights = tracking.source(                                                            # doctest: +SKIP
...     raw, "flights", scope="origin", window=("sched_dep", "1 day"), front=Marks("is_last"))
>>> daily = tracking.release(                                                             # doctest: +SKIP
...     flights, ["carrier"], aggs={"flights": F.count("*"), "delay": F.avg("dep_delay")})
>>> daily.writeStream.option("checkpointLocation", "cp").start("daily")                   # doctest: +SKIP

It imports `tracker.client` and nothing else of the tracker: where Spark runs, no server is installed.
"""

from __future__ import annotations

from spark_client import aggregates
from spark_client.api.released import Released
from spark_client.api.session import Tracking
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import NativeWriter, TrackedWriter
from spark_client.channels.channel import Channel
from spark_client.channels.database import TableChannel, channel_tables
from spark_client.channels.files import FileChannel
from spark_client.channels.kafka import KafkaChannel, Topic
from spark_client.datasource.events import TrackerDataSource, register
from spark_client.datasource.rows import EVENT_SCHEMA, SUBSTREAM_SCHEMA
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.aggregates import Aggregate
from spark_client.plan.fronts import BoundedOutOfOrderness as Frontier
from spark_client.plan.fronts import Front, Marks
from spark_client.plan.labels import child_label, source_label
from spark_client.plan.outputs import Sink
from spark_client.plan.schedule import Counts, Schedule
from spark_client.plan.substreams import TRACKER, Substream, Substreams
from spark_client.release.quarantine import LATE_SCHEMA
from spark_client.release.receipts import RECEIPT_SCHEMA
from spark_client.release.revisions import Revision
from spark_client.sinks.tables import Table, Tables, epochs_table

__all__ = [
    "EVENT_SCHEMA",
    "LATE_SCHEMA",
    "RECEIPT_SCHEMA",
    "SUBSTREAM_SCHEMA",
    "TRACKER",
    "Aggregate",
    "Channel",
    "Counts",
    "FileChannel",
    "Front",
    "Frontier",
    "KafkaChannel",
    "Marks",
    "NativeWriter",
    "Released",
    "Revision",
    "Schedule",
    "Sink",
    "Substream",
    "Substreams",
    "Table",
    "TableChannel",
    "Tables",
    "Topic",
    "TrackedStream",
    "TrackedWriter",
    "TrackerDataSource",
    "Tracking",
    "TrackingError",
    "UsageError",
    "aggregates",
    "channel_tables",
    "child_label",
    "epochs_table",
    "register",
    "source_label",
]
