"""Kafka: a channel between queries, and a sink for results.

A record of the channel is a row: its value is the row as JSON; its key is the label that it travels under, so that
copies share a partition; its headers have, as JSON too, the substream that it belongs to, and the contents of the
sender's epoch that it is of. A record of a service (`tracker.kafka`) has a key of its own, and the label in a header.

Kafka is written at least once: a task that is retried, and an epoch that is replayed, write records again. The records
must then be the same. So an epoch's rows go to the channel's outbox first, a directory that is published once and
stands; they are counted as sent there, and written to Kafka from there, as often as need be. The receiver drops the
copies (`deduplication`).

Needs Spark's Kafka connector on the JVM's side; see docs/howto/channels.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, schema_of
from spark_client.counting.groups import files
from spark_client.destinations.channel import DoubledLabelsError, JsonChannel, Published
from spark_client.destinations.deduplication import SENDING, ReceivedOnce, Sending
from spark_client.plan import jsonrows
from spark_client.plan.layouts import DerivedLayout, RowLayout
from spark_client.spark_internals import kafka
from spark_client.storage.folder import Folder
from spark_client.windows.declaration import Window, declare

_EPOCH_HEADER: Final = "tracker-epoch"
_ISOLATION: Final = "kafka.isolation.level"
_SENT: Final = "_sent.json"
_FEW: Final = 4_000_000  #: rows up to which looking at their labels here costs less than a Spark job does

_LINEAGE: Final = T.StructType().add("scope", "string").add("name", "string").add("end", "long").add("label", "long")
_OURS: Final = (  # in small letters: Spark takes any
    "kafka.bootstrap.servers",
    "subscribe",
    "assign",
    "subscribepattern",
    "topic",
    "includeheaders",
    "startingoffsets",
)


class KafkaChannel(JsonChannel):
    """A Kafka topic as a channel, as `Tracking.kafka_channel` declares it. The topic is this channel's alone.

    Args:
        topic: that has to be there.
        servers: the brokers' addresses, ``host:port,host:port``.
        path: a folder of the channel's own, for its outbox and for what it remembers of what was received.
        deduplicate: whether the receiver drops copies.
        options: of Spark's Kafka source and sink: ``maxOffsetsPerTrigger``, ``kafka.security.protocol``, …

    Raises:
        UsageError: an option that the channel sets itself.
    """

    def __init__(
        self,
        segment: str,
        topic: str,
        servers: str,
        path: Folder,
        deduplicate: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(segment, path)
        self._keep_own("option", options or (), _OURS)
        self.topic = topic
        self.servers = servers
        self.exact = not deduplicate
        self._options = dict(options or {})
        self._received: dict[str, ReceivedOnce] = {}

    def of_service(
        self,
        spark: SparkSession,
        columns: T.StructType | str,
        *,
        scope: str | None = None,
        window: Window | None = None,
        substream: str | None = None,
    ) -> KafkaChannel:
        """Return this channel, whose rows a service sends: `tracker.kafka.Producer`.

        Args:
            spark: the session in which the channel is read.
            columns: of the JSON that the service sends as values; times are in UTC with microseconds.
            scope: the column that names the scope, if the service gives one.
            window: the windows of a time, which the service gives the end of: ``("at", "1 hour")``.
            substream: or the column that has the substream's name.

        Raises:
            UsageError: as `Tracking.source`; or the channel was described otherwise.

        >>> orders = tracking.kafka_channel("orders", "orders", servers, "/data/orders")      # doctest: +SKIP
        >>> orders.of_service(spark, "item string, day string", substream="day")              # doctest: +SKIP
        >>> daily = tracking.release(tracking.receive(orders), aggs={"items": F.count("*")})  # doctest: +SKIP
        """
        rows = spark.createDataFrame([], schema_of(columns, "of_service"))
        self.describe(rows.schema, declare(rows, scope, window, substream).rule)
        return self

    def __repr__(self) -> str:
        return f"KafkaChannel({self.segment!r}, {self.topic!r}, {self.servers!r})"

    # ---------------------------------------------------------------- sending

    def check(self, folder: Folder) -> None:
        spark = SparkSession.getActiveSession()
        assert spark is not None  # the program's: a batch runs in one that has it
        rows, _, labels = _labels_of(folder, lambda: self.in_files(spark, [folder]), self.layout)
        if labels < rows:
            raise self._doubled(rows, labels)

    def check_children(self, rows: DataFrame, ordinal: tuple[str, ...]) -> None:
        number, labels = rows.agg(F.count("*"), F.count_distinct(self.label_of_child(ordinal))).collect()[0]
        if labels < number:
            raise self._doubled(number, labels)

    def _doubled(self, rows: int, labels: int) -> DoubledLabelsError:
        return DoubledLabelsError(
            f"channel {self.segment!r}: {rows} rows have only {labels} different labels, so some would be taken for "
            "copies. The batch was not committed, and nothing of it was published. Start the query again, with the "
            "same checkpoint, after one of these repairs: if several rows are made of one, say what tells them apart "
            "with channel(…, ordinal=…); if the source's identity= does not name each row, give it more columns; if "
            "the source has rows twice, have the second ones set aside, source(…, on_bad_rows='quarantine')"
        )

    def write(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Published:
        published, sent = self.publish_epoch(rows, sender, epoch, ordinal, layout)
        sending = self._sending(published.folder, sent, sender, epoch)
        if sending is not None:
            kafka.write(self._records(sent, sending), self.topic, self.servers, self._options)
        self.tidy(sender, epoch)
        return published

    def _sending(self, target: Folder, published: DataFrame, sender: str, epoch: int) -> Sending | None:
        """Return what the epoch consists of, written down beside it; None: nothing."""
        described = target.read(_SENT)
        if described is None:
            rows, xor, labels = _labels_of(target, lambda: published, self.layout)
            if rows == 0:
                return None
            if labels < rows:  # an earlier release has published it
                raise self._doubled(rows, labels)
            after = max(map(int, self._with_rows(sender, epoch)), default=None)
            described = {"sender": sender, "epoch": epoch, "after": after, "rows": rows, "xor": xor}
            target.put(_SENT, described)
        return Sending(**described)

    def _records(self, published: DataFrame, sending: Sending) -> DataFrame:
        lineage = [
            F.col(f"{TRACKER}.scope").alias("scope"),
            F.col(f"{TRACKER}.name").alias("name"),
            F.unix_micros(f"{TRACKER}.end").alias("end"),
        ]
        headers = F.array(
            kafka.header(kafka.HEADER, F.to_json(F.struct(*lineage))),
            kafka.header(_EPOCH_HEADER, F.lit(sending.to_json())),
        )
        own = [name for name in published.columns if name != TRACKER]
        return published.select(
            F.col(f"{TRACKER}.label").cast("string").alias("key"),
            jsonrows.to_json(own).alias("value"),
            headers.alias("headers"),
        )

    def tidy(self, sender: str, epoch: int) -> None:
        """Remove what was sent and committed, but for the last epoch that had rows: the next one refers to it."""
        last = self._with_rows(sender, epoch)[-1:]
        for name in self.backlog(sender).before(epoch):
            if name not in last:
                (self._outbox(sender) / name).delete([_SENT])
                self.backlog(sender).discard(name)

    def _with_rows(self, sender: str, epoch: int) -> list[str]:
        """Return the names of earlier epochs in the outbox that had rows, in order."""
        outbox, earlier = self._outbox(sender), self.backlog(sender).before(epoch)
        return [name for name in earlier if (outbox / name).read(_SENT) is not None]

    # ---------------------------------------------------------------- receiving

    def stream(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        why = "a batch from Kafka is bounded by kafka_channel(…, options={'maxOffsetsPerTrigger': …}), not by epochs"
        self._refuse_bound(max_epochs, why)
        self.check_session(spark)
        return self._read(spark)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        if self.exact:
            return batch.drop(SENDING)
        received = self._received.setdefault(query, ReceivedOnce(self.path / "received" / query))
        return received.rows(batch, epoch)

    def native(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        return self.stream(spark, max_epochs).drop(SENDING)

    def shape(self, spark: SparkSession) -> DataFrame:
        return self.native(spark, None)  # which finds out whether there is a connector

    def _read(self, spark: SparkSession) -> DataFrame:
        options = {_ISOLATION: "read_committed", **self._options}  # services send in transactions
        reader = spark.readStream.format("kafka").options(**options).option("subscribe", self.topic)
        reader = reader.option("kafka.bootstrap.servers", self.servers).option("startingOffsets", "earliest")
        records = kafka.load(reader.option("includeHeaders", "true"))
        schema, _ = self.description()
        own = T.StructType([field for field in schema.fields if field.name != TRACKER])
        parsed = records.select(
            jsonrows.from_json(F.col("value").cast("string"), own).alias("row"),
            jsonrows.from_json(_value_of(0, kafka.HEADER), _LINEAGE).alias("lineage"),
            F.col("key").cast("string").try_cast("long").alias("key"),
            _value_of(1, _EPOCH_HEADER).alias(SENDING),
        )
        tracker = F.struct(
            F.col("lineage.scope").alias("scope"),
            F.col("lineage.name").alias("name"),
            F.timestamp_micros("lineage.end").alias("end"),
            F.coalesce("lineage.label", "key").alias("label"),  # a service's messages have keys of their own
        )
        return parsed.select("row.*", tracker.alias(TRACKER), SENDING)


def _value_of(place: int, name: str) -> Column:
    """Return a header of ours as text: others that handle records put theirs after it."""
    header = F.get("headers", F.lit(place))
    return F.when(header["key"] == F.lit(name), header["value"].cast("string"))


def _labels_of(folder: Folder, rows: Callable[[], DataFrame], layout: RowLayout) -> tuple[int, int, int]:
    """Return how many rows there are, the XOR of their labels, and how many different labels."""
    written = files(folder)
    if written.count_rows() > _FEW:
        label = F.col(f"{TRACKER}.label")
        found = rows().agg(F.count("*"), F.bit_xor(label), F.count_distinct(label)).collect()[0]
        return found[0], found[1], found[2]
    labels = written.to_table(columns={"label": layout.label})["label"].to_numpy()
    return len(labels), int(np.bitwise_xor.reduce(labels)) if len(labels) else 0, len(np.unique(labels))
