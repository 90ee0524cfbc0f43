"""Kafka as a source, in a query that reads a batch again.

Since 4.1 Spark's connector fails a query after such a batch: it reports how far the query is behind without having
asked the broker (SPARK-55271). The batch is committed by then, and a second start goes on. A query that stops between
two batches has often logged the next one, so tracked queries would meet this at every other start.

Relies on ``SharedState.activeStreamingQueries``, ``StreamExecution.uniqueSources`` and ``availableOffsets``, and on
``KafkaMicroBatchStream.latestOffset`` keeping the broker's answer for that report. Fails open: where they are
missing, a query on such a connector fails once, as it does untracked. Since Spark 4.1.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from spark_client.spark_internals.errors import NOT_SHOWN

_log = logging.getLogger("spark_client")


def ask_for_latest_offsets(spark: SparkSession, query: str) -> None:
    """Let the Kafka sources of a query learn their latest offsets, in the query's first batch.

    Args:
        spark: any session of the query's Spark.
        query: its id; it runs.
    """
    try:
        jvm = spark._jvm
        identifier = jvm.java.util.UUID.fromString(query)  # type: ignore[union-attr]
        execution = spark._jsparkSession.sharedState().activeStreamingQueries().get(identifier)
        sources = execution.uniqueSources().keysIterator()
        while sources.hasNext():
            source = sources.next()
            if source.getClass().getSimpleName() == "KafkaMicroBatchStream":
                everything = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()  # type: ignore[union-attr]
                reached = execution.availableOffsets().get(source).get()
                source.latestOffset(source.deserializeOffset(reached.json()), everything)
    except (*NOT_SHOWN, TypeError) as error:
        _log.debug("query %s: its sources cannot be asked for their latest offsets: %s", query, error)
