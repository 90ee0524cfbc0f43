"""Which of Spark's stateful operators a streaming DataFrame has over some of its rows.

Relies on ``DataFrame._jdf`` and on the analyzed plan behind it: the names of its nodes, ``SubqueryAlias.alias``, the
keys of a ``Deduplicate``, and on the metadata that Spark gives to windows of a session and to columns under a watermark
(``SessionWindow.marker``, ``EventTimeWatermark.delayKey``). Fails open: where Spark does not answer, or calls an
operator otherwise, none is found. Since Spark 4.0.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from spark_client.spark_internals.plans import each_of

_SESSION: Final = "spark.sessionWindow"
_UNDER_WATERMARK: Final = "spark.watermarkDelayMs"
_WITH_STATE: Final = ("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState")


def that_takes_single_rows(df: DataFrame, alias: str) -> str | None:
    """Return what keeps, or drops, single rows of event time, and not whole windows of them; None: nothing does.

    Args:
        df: a streaming DataFrame.
        alias: of rows that it is made of; what is made of an aggregation of theirs does not count.

    Returns:
        How the first such operator is called in PySpark.

    >>> rows = spark.readStream.format("rate").load().withWatermark("timestamp", "0 seconds")          # doctest: +SKIP
    >>> sessions = rows.alias("mine").groupBy(F.session_window("timestamp", "5 minutes")).count()      # doctest: +SKIP
    >>> that_takes_single_rows(sessions, "mine")                                                       # doctest: +SKIP
    'session_window'
    """
    try:
        return _found(df._jdf.queryExecution().analyzed(), alias)[0]
    except (AttributeError, Py4JError):  # it is no public interface of Spark
        return None


def _found(node: Any, alias: str) -> tuple[str | None, bool]:
    """Return the operator, if there is one; and whether the node's rows are the alias's, one by one."""
    name = str(node.nodeName())
    if name == "SubqueryAlias" and str(node.alias()) == alias:
        return None, True
    below = [_found(child, alias) for child in each_of(node.children())]
    for operator, _ in below:
        if operator is not None:
            return operator, False
    single = any(rows for _, rows in below)
    operator = _called(node, name) if single else None
    return operator, single and name != "Aggregate"


def _called(node: Any, name: str) -> str | None:
    if name == "Aggregate":
        return "session_window" if _marked(node.output(), _SESSION) else None
    if name == "Join":
        return "join" if all(child.isStreaming() for child in each_of(node.children())) else None
    if name == "Deduplicate":
        return "dropDuplicates" if _marked(node.keys(), _UNDER_WATERMARK) else None
    if name == "DeduplicateWithinWatermark":
        return "dropDuplicatesWithinWatermark"
    return "a state of your own" if name.startswith(_WITH_STATE) else None


def _marked(attributes: Any, key: str) -> bool:
    return any(attribute.metadata().contains(key) for attribute in each_of(attributes))
