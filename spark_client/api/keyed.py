"""The results of a user's own keyed state, as users hold them, and their output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.api.queryoptions import spelled
from spark_client.api.readers import Readable
from spark_client.api.refusals import check_exact
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import Starter, TrackedWriter
from spark_client.columns import TRACKER
from spark_client.destinations.channel import Channel
from spark_client.errors import UsageError
from spark_client.plan.keyed import KeyedPlan, declare
from spark_client.spark_internals.plans import PROVIDER, ROCKSDB, is_rocksdb, provider_of
from spark_client.spark_internals.sessions import check_release
from spark_client.windows.substreams import Ability


class KeyedResults:
    """Results made of a processor's state: see `Tracking.transform_with_state`.

    Attributes:
        stream: whose rows the state is made of.
        keyed: what is declared of it.
    """

    def __init__(self, stream: TrackedStream, keyed: KeyedPlan) -> None:
        self.stream = stream
        self.keyed = keyed

    def __repr__(self) -> str:
        return f"KeyedResults(segment={self.stream.segment!r}, columns={self.columns})"

    @property
    def columns(self) -> list[str]:
        """Of the results: the scope, ``window`` or the substream's name, and those of the schema."""
        return schema_of(self.keyed, self.stream.readable).fieldNames()

    @property
    def writeStream(self) -> KeyedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        return KeyedWriter(self.stream.tracking, self.stream.readable, self.keyed)


class KeyedWriter(TrackedWriter):
    """Writer of the results of keyed state to files, a `sink` or a function; it starts the query.

    As `TrackedWriter` of a release, whose options `checkpointLocation`, `queryName` and `late_path` it has.
    """

    writes_files = True

    def __init__(self, tracking: Starter, rows: Readable, keyed: KeyedPlan) -> None:
        super().__init__(tracking, rows)
        self.keyed = keyed

    def option(self, key: str, value: Any) -> KeyedWriter:
        """Set one option: of a release's, all but those that are about its own state."""
        if spelled(key) in ("compact_from", "seal"):
            raise UsageError(f"option({key!r}) has no effect on keyed state, which Spark keeps: leave it out")
        super().option(key, value)
        return self

    @property
    def schema(self) -> T.StructType:
        return schema_of(self.keyed, self.rows)

    def _send(self, routes: list[tuple[Channel, Column | None]], ordinal: str | Sequence[str]) -> NoReturn:  # noqa: ARG002
        raise UsageError(
            "results of keyed state go to files, a sink or a function: in a channel those of one substream could not "
            "be told apart"
        )


def schema_of(keyed: KeyedPlan, rows: Readable) -> T.StructType:
    """Return the schema of the results of keyed state of some rows."""
    tracked = F.col(TRACKER)
    own = keyed.rule.result_columns(tracked["scope"], tracked[keyed.rule.key_field])
    return T.StructType([*rows.df.select(*own).schema.fields, *keyed.made.fields])


def declared(stream: TrackedStream, processor: Any, schema: T.StructType | str) -> KeyedResults:
    """Declare keyed state."""
    source = stream.readable.plan.input
    until = (
        "It has transformWithState for rows in Python. Until you upgrade, keep the rows and make the results at the "
        "end: tracking.release(stream, columns=[…]).applyInPandas(…)"
    )
    check_release("transform_with_state", (4, 1), until)
    source.rule.require(Ability.KEYED, f"transform_with_state of {stream.segment!r}")
    check_provider(stream.readable.df.sparkSession)
    check_exact(stream.readable.plan, "transform_with_state")
    return KeyedResults(stream, declare(stream.readable.plan, stream.readable.df, processor, schema))


def check_provider(spark: SparkSession) -> None:
    """Refuse a session whose state store is not RocksDB's, the only one that has keyed state."""
    if not is_rocksdb(spark):
        raise UsageError(
            f"transform_with_state: Spark keeps such state in RocksDB only, and {PROVIDER} is {provider_of(spark)}. "
            f"Set it, before the query's first start: spark.conf.set({PROVIDER!r}, {ROCKSDB!r})"
        )
