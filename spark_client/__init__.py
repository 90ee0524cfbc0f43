"""PySpark client of the substream tracker: release a substream's results when it has ended, exactly and once.

>>> from spark_client import Marks, Tracking                                              # doctest: +SKIP
>>> tracking = Tracking(spark, job="flights")                                             # doctest: +SKIP
>>> flights = tracking.source(                                                            # doctest: +SKIP
...     raw, "flights", scope="origin", window=("sched_dep", "1 day"), front=Marks("is_last"))
>>> daily = tracking.release(                                                             # doctest: +SKIP
...     flights, ["carrier"], aggs={"flights": F.count("*"), "delay": F.avg("dep_delay")})
>>> daily.writeStream.option("checkpointLocation", "cp").start("daily")                   # doctest: +SKIP

It imports `tracker.client`, for a dry run `tracker.replay`, and nothing else of the tracker: where Spark runs, no
server is installed. Exported names are loaded when they are first used: Spark starts a Python process for each reader
of a source and for tasks, and those need few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_client import aggregates, debezium
    from spark_client.aggregates.aggregate import Aggregate
    from spark_client.api.keyed import KeyedResults, KeyedWriter
    from spark_client.api.multi_output import SeveralWriter
    from spark_client.api.other_jobs import wait_for_end, wait_for_results
    from spark_client.api.released import Released
    from spark_client.api.session import Tracking
    from spark_client.api.snapshots import Snapshot, Snapshots
    from spark_client.api.streams import TrackedStream
    from spark_client.api.writer import NativeWriter, TrackedWriter
    from spark_client.columns import TRACKER
    from spark_client.datasource.events import TrackerDataSource, register
    from spark_client.datasource.streams import EVENT_SCHEMA, SUBSTREAM_SCHEMA
    from spark_client.destinations.channel import Channel
    from spark_client.destinations.completeness import complete, completeness
    from spark_client.destinations.delta import DeltaTable
    from spark_client.destinations.file_channel import FileChannel
    from spark_client.destinations.iceberg import IcebergTable
    from spark_client.destinations.kafka_channel import KafkaChannel
    from spark_client.destinations.lake_channel import LakeChannel
    from spark_client.destinations.sink import Sink
    from spark_client.destinations.table import Table, Tables, epochs_table
    from spark_client.destinations.table_channel import TableChannel, channel_tables
    from spark_client.destinations.topic import Topic
    from spark_client.errors import TrackingError, UsageError
    from spark_client.fronts.control_table import ControlTable
    from spark_client.fronts.end_offsets import EndOffsets, end_offsets
    from spark_client.fronts.front import Front
    from spark_client.fronts.frontier import BoundedOutOfOrderness as Frontier
    from spark_client.fronts.manifests import Manifests
    from spark_client.fronts.marks import Marks
    from spark_client.fronts.results_of import ResultsOf
    from spark_client.fronts.schedule import Counts, Schedule
    from spark_client.fronts.success_markers import SuccessMarkers
    from spark_client.plan.keyed import SubstreamEnd, SubstreamKey, SubstreamProcessor
    from spark_client.plan.labels import child_label, source_label
    from spark_client.plan.releases import FinishedGroup
    from spark_client.release.ledger import LEDGER_SCHEMA, ledger
    from spark_client.release.quarantine import LATE_SCHEMA
    from spark_client.release.receipts import RECEIPT_SCHEMA
    from spark_client.release.revisions import Revision
    from spark_client.shadow import ShadowedJob, draw_shadow_report, replay, shadow_report
    from spark_client.windows.calendars import calendar
    from spark_client.windows.nested import nested
    from spark_client.windows.sessions import session
    from spark_client.windows.sliding import sliding
    from spark_client.windows.substreams import Substream, Substreams

__all__ = [
    "EVENT_SCHEMA",
    "LATE_SCHEMA",
    "LEDGER_SCHEMA",
    "RECEIPT_SCHEMA",
    "SUBSTREAM_SCHEMA",
    "TRACKER",
    "Aggregate",
    "Channel",
    "ControlTable",
    "Counts",
    "DeltaTable",
    "EndOffsets",
    "FileChannel",
    "FinishedGroup",
    "Front",
    "Frontier",
    "IcebergTable",
    "KafkaChannel",
    "KeyedResults",
    "KeyedWriter",
    "LakeChannel",
    "Manifests",
    "Marks",
    "NativeWriter",
    "Released",
    "ResultsOf",
    "Revision",
    "Schedule",
    "SeveralWriter",
    "ShadowedJob",
    "Sink",
    "Snapshot",
    "Snapshots",
    "Substream",
    "SubstreamEnd",
    "SubstreamKey",
    "SubstreamProcessor",
    "Substreams",
    "SuccessMarkers",
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
    "calendar",
    "channel_tables",
    "child_label",
    "complete",
    "completeness",
    "debezium",
    "draw_shadow_report",
    "end_offsets",
    "epochs_table",
    "ledger",
    "nested",
    "register",
    "replay",
    "session",
    "shadow_report",
    "sliding",
    "source_label",
    "wait_for_end",
    "wait_for_results",
]

#: Where each of them is, and what it is called there if not the same.
_ORIGINS: Final = {
    "Aggregate": "aggregates.aggregate",
    "Channel": "destinations.channel",
    "ControlTable": "fronts.control_table",
    "complete": "destinations.completeness",
    "completeness": "destinations.completeness",
    "Counts": "fronts.schedule",
    "DeltaTable": "destinations.delta",
    "EndOffsets": "fronts.end_offsets",
    "EVENT_SCHEMA": "datasource.streams",
    "FileChannel": "destinations.file_channel",
    "FinishedGroup": "plan.releases",
    "Front": "fronts.front",
    "Frontier": "fronts.frontier:BoundedOutOfOrderness",
    "IcebergTable": "destinations.iceberg",
    "KafkaChannel": "destinations.kafka_channel",
    "LakeChannel": "destinations.lake_channel",
    "KeyedResults": "api.keyed",
    "KeyedWriter": "api.keyed",
    "LATE_SCHEMA": "release.quarantine",
    "LEDGER_SCHEMA": "release.ledger",
    "Manifests": "fronts.manifests",
    "Marks": "fronts.marks",
    "NativeWriter": "api.writer",
    "RECEIPT_SCHEMA": "release.receipts",
    "Released": "api.released",
    "ResultsOf": "fronts.results_of",
    "Revision": "release.revisions",
    "SUBSTREAM_SCHEMA": "datasource.streams",
    "Schedule": "fronts.schedule",
    "SeveralWriter": "api.multi_output",
    "ShadowedJob": "shadow",
    "Sink": "destinations.sink",
    "Snapshot": "api.snapshots",
    "Snapshots": "api.snapshots",
    "Substream": "windows.substreams",
    "SubstreamEnd": "plan.keyed",
    "SubstreamKey": "plan.keyed",
    "SubstreamProcessor": "plan.keyed",
    "Substreams": "windows.substreams",
    "TRACKER": "columns",
    "SuccessMarkers": "fronts.success_markers",
    "Table": "destinations.table",
    "TableChannel": "destinations.table_channel",
    "Tables": "destinations.table",
    "Topic": "destinations.topic",
    "TrackedStream": "api.streams",
    "TrackedWriter": "api.writer",
    "TrackerDataSource": "datasource.events",
    "Tracking": "api.session",
    "TrackingError": "errors",
    "UsageError": "errors",
    "channel_tables": "destinations.table_channel",
    "calendar": "windows.calendars",
    "child_label": "plan.labels",
    "draw_shadow_report": "shadow",
    "end_offsets": "fronts.end_offsets",
    "epochs_table": "destinations.table",
    "ledger": "release.ledger",
    "nested": "windows.nested",
    "register": "datasource.events",
    "replay": "shadow",
    "session": "windows.sessions",
    "shadow_report": "shadow",
    "sliding": "windows.sliding",
    "source_label": "plan.labels",
    "aggregates": "aggregates:",
    "debezium": "debezium:",
    "wait_for_end": "api.other_jobs",
    "wait_for_results": "api.other_jobs",
}


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module 'spark_client' has no attribute {name!r}")
    module, renamed, origin = _ORIGINS[name].partition(":")
    found = import_module(f"spark_client.{module}")
    value = globals()[name] = found if renamed and not origin else getattr(found, origin or name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
