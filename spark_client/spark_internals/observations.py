"""Observations of a source's rows on the way, by global aggregates that Spark computes while a batch reads them.

They are put on the stream itself. Within the batch Spark could not tell that the rows are in its own format already,
and would copy each of them first: a tenth of a second for a million rows.

Spark publishes them when a batch is over, and a front needs them before that, so `observed` asks the batch's plan.

Relies on ``StreamingQuery._jsq``, on ``StreamExecution.lastExecution`` being the batch in hand, and on
``QueryExecution.observedMetrics`` having no values until the rows were read. Fails closed: where they are not to be had
the answer is None, and the rows are aggregated again. Since Spark 4.0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.spark_internals.errors import NOT_SHOWN

_log = logging.getLogger("spark_client")


def observation_name(segment: str) -> str:
    """Return what Spark calls the aggregates of a source's rows, in a query's progress."""
    return f"tracker:{segment}"


def observe(rows: DataFrame, segment: str, aggregates: Mapping[str, Column] | None) -> DataFrame:
    """Return the same rows, with aggregates on their way.

    Args:
        aggregates: by name: numbers, texts or truth values, and null if there was no row; None: none are needed.
    """
    if not aggregates:
        return rows
    return rows.observe(observation_name(segment), *[value.alias(name) for name, value in aggregates.items()])


def observed(query: StreamingQuery | None, segment: str, names: list[str]) -> dict[str, Any] | None:
    """Return what was seen of the rows of the batch in hand, by actions that are over.

    Args:
        query: whose batch it is; None: not known yet.

    Returns:
        None: nothing was seen. Nobody has read the rows, or Spark does not say.
    """
    try:
        plan = query._jsq.streamingQuery().lastExecution()  # type: ignore[union-attr]
        row = plan.observedMetrics().apply(observation_name(segment))
        values = {name: row.getAs(name) for name in names}
    except (*NOT_SHOWN, TypeError) as error:
        _log.debug("segment %s: the batch's plan does not say what was observed: %s", segment, error)
        return None
    return values if any(value is not None for value in values.values()) else None
