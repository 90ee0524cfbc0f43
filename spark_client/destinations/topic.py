"""A Kafka topic as a sink: written at least once, under keys that copies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import check_present, named
from spark_client.destinations.sink import check_replaced
from spark_client.errors import check_some
from spark_client.plan import jsonrows
from spark_client.plan.streams import Step
from spark_client.spark_internals import kafka


class Topic:
    """A Kafka topic as a sink: one record for each result, at least once, under a key that copies share.

    Args:
        topic: that has to be there.
        servers: the brokers' addresses, ``host:port,host:port``.
        key: the columns that name a result for ever: of a release the scope, ``window`` (or the substream's column) and
            the keys.
        options: of Spark's Kafka sink.
        rows: makes the records' rows of the results. None: the results as they are.

    A record's key is the key's columns as JSON, its value the row as JSON, and the header ``tracker`` has the query and
    the epoch. Results are final and there is one for each key, so whoever reads keeps one record of each key: a
    compacted topic does it by itself.

    >>> daily.writeStream.sink(Topic("daily", "localhost:9092", ["origin", "window", "carrier"]))   # doctest: +SKIP
    """

    reads_all = True

    def __init__(
        self,
        topic: str,
        servers: str,
        key: Sequence[str],
        options: Mapping[str, str] | None = None,
        rows: Step | None = None,
    ) -> None:
        check_some(f"key= of a sink of topic {topic!r}", key, "column, so that it names a result for ever")
        self._topic = topic
        self._servers = servers
        self._key = list(key)
        self._options = dict(options or {})
        self._shape = rows

    def check(self, rows: DataFrame) -> None:
        """Refuse rows without the columns of the key; called with none when the query starts.

        Raises:
            UsageError: a column is missing, or the session's settings would change what is written.
        """
        jsonrows.check_session(rows.sparkSession, f"topic {self._topic!r}", self._shaped(rows).schema)

    def _shaped(self, results: DataFrame) -> DataFrame:
        rows = results if self._shape is None else self._shape(results)
        check_present(self._key, rows.columns, "key")
        return rows

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        """Write the rows of an epoch; again the same records if it is repeated."""
        advice = f"Topic({self._topic!r}, …, rows=…) makes something else of them"
        rows = jsonrows.carried(self._shaped(rows), f"topic {self._topic!r}", advice)
        origin = F.to_json(F.struct(F.lit(query).alias("query"), F.lit(epoch).alias("epoch")))
        headers = F.array(kafka.header(kafka.HEADER, origin)).alias("headers")
        key = F.to_json(F.struct(*map(named, self._key)), {**jsonrows.OPTIONS, "ignoreNullFields": "false"}).alias(
            "key"
        )
        records = rows.select(key, jsonrows.to_json(rows.columns).alias("value"), headers)
        kafka.write(records, self._topic, self._servers, self._options)

    def check_early(self, rows: DataFrame) -> None:
        """Refuse early results that the final ones would not replace."""
        check_replaced(f"topic {self._topic!r}", self._shaped(rows).columns, self._key)

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        """Write early results under the keys of the final ones. Of one key the record counts whose ``final`` is true,
        else the one with the largest ``as_of``: a driver that was superseded may write one after those."""
        self.write(rows, query, as_of)
