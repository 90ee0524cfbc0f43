"""Properties of Spark's plans: what they show of rows, their stateful operators, watermarks and state stores.

Relies on ``DataFrame._jdf`` and on the plans behind it (``QueryExecution``, ``LogicalPlan``): the names of their nodes,
the numbers of their attributes, and an ``Exchange`` in the text of the plan where rows are exchanged. Fails closed:
where Spark does not answer, nothing is taken for certain: rows are read or counted once more, or a key is refused. A
new kind of node is taken for one that may read in part. Since Spark 4.0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import utils
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.errors import NOT_SHOWN
from spark_client.spark_internals.sessions import is_remote

#: They read all that they are given, whatever else is in the plan.
_WHOLE = frozenset(
    {"Project", "Filter", "SubqueryAlias", "Generate", "Expand", "Repartition", "RepartitionByExpression"}
)


def passed_on(before: DataFrame, after: DataFrame, names: Iterable[str]) -> bool:
    """Return whether rows are certainly those of another DataFrame, with some columns as they were there.

    Spark numbers its attributes: what is computed, even if it is under an old name, has a number of its own. So it is
    certain if the numbers are the same, and nothing but projections and filters has been at work.

    >>> passed_on(rows, rows.where("amount > 9").withColumn("amount", F.col("amount") + 1), ["ts"])    # doctest: +SKIP
    True
    >>> passed_on(rows, rows.withColumn("ts", F.col("ts") + F.expr("interval 1 hour")), ["ts"])        # doctest: +SKIP
    False
    """
    try:
        old, new = (rows._jdf.queryExecution().analyzed() for rows in (before, after))
        attributes = set(_attributes(old)).intersection(_attributes(new))
        *nodes, _ = _nodes(new)
    except NOT_SHOWN:
        return False
    return set(names) <= {name.rpartition("#")[0] for name in attributes} and set(nodes) <= {"Project", "Filter"}


def _attributes(plan: object) -> list[str]:
    """Return names with numbers, as in ``ts#25``."""
    return str(plan.output().mkString("\n")).split("\n")  # type: ignore[attr-defined]


def reads_whole(before: DataFrame, after: DataFrame) -> bool:
    """Return whether a reader of all of some rows certainly reads all of those that they were made of.

    A limit reads some of them, and so can a join: Spark stops reading one side as soon as it finds that the other one
    is empty. Projections and filters read all, unless Spark proves beforehand that nothing can pass.

    >>> reads_whole(rows, rows.where("amount > 9").withColumn("more", F.explode("items")))         # doctest: +SKIP
    True
    >>> reads_whole(rows, rows.limit(1000))                                                        # doctest: +SKIP
    False
    """
    try:
        old, node = (rows._jdf.queryExecution().analyzed() for rows in (before, after))
        while not node.fastEquals(old):
            children = node.children()
            if children.size() != 1 or str(node.nodeName()) not in _WHOLE:
                return False
            node = children.head()
        old, new = (rows._jdf.queryExecution().optimizedPlan() for rows in (before, after))
        kept, left = ([name for name in _nodes(plan) if name not in _WHOLE] for plan in (old, new))
    except NOT_SHOWN:
        return False
    return kept == left and "Join" not in kept  # a filter can turn an outer join into an inner one


def is_plain(df: DataFrame, value: Column | str) -> bool:
    """Return whether a value is a column of some rows, as it stands there, and no expression."""
    if isinstance(value, str) and "." not in value and value in df.schema.names:
        return True
    try:
        taken, own = (frame._jdf.queryExecution().analyzed().outputSet() for frame in (df.select(value), df))
        return bool(taken.subsetOf(own))
    except NOT_SHOWN:
        return False


def has_lambda(df: DataFrame, value: Column | str) -> bool:
    """Return whether a value has a function of variables in it, such as ``item -> item + 1``.

    >>> has_lambda(rows, F.transform("items", lambda item: item + 1))                              # doctest: +SKIP
    True
    >>> has_lambda(rows, F.upper("a lambda"))                                                      # doctest: +SKIP
    False
    """
    return _has(df, value, "LambdaFunction")


def has_literal(df: DataFrame, value: Column | str) -> bool:
    """Return whether a value has a literal in it: ``F.lit("items")`` is written as the column of that name is.

    >>> has_literal(rows, F.max(F.lit("items")))                                                   # doctest: +SKIP
    True
    """
    return _has(df, value, "Literal")


def _has(df: DataFrame, value: Column | str, kind: str) -> bool:
    try:
        return kind in _of_expressions(df.select(value)._jdf.queryExecution().analyzed().expressions())
    except NOT_SHOWN:
        return not {kind, _ANY}.isdisjoint(_of_message(df, value))


def _of_expressions(expressions: Any) -> set[str]:
    """Return the names of expressions, and of those within them."""
    found: set[str] = set()
    for expression in each_of(expressions):
        found |= {str(expression.nodeName())} | _of_expressions(expression.children())
    return found


# A column of Spark Connect is data, and its message shows what it is made of, before names are resolved.
#
# Relies on ``Column.to_plan`` and on the names of the messages in ``expressions.proto``. Fails closed: a column that
# shows nothing may have anything in it. Since Spark 4.1.

_ANY: Final = "ExpressionString"  #: an expression that is a text


def _of_message(df: DataFrame, value: Column | str) -> set[str]:
    """Return the names of expressions in a column of Spark Connect."""
    try:
        spark: Any = df.sparkSession
        column: Any = F.col(value) if isinstance(value, str) else value
        return set(_messages(column.to_plan(spark.client))) if is_remote(spark) else {_ANY}
    except NOT_SHOWN:
        return {_ANY}


def _messages(message: Any) -> Iterator[str]:
    yield message.DESCRIPTOR.name
    for _, value in message.ListFields():
        several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        for each in value if several else [value]:
            if hasattr(each, "DESCRIPTOR"):
                yield from _messages(each)


def paths_read(stream: DataFrame) -> list[str]:
    """Return the paths that the sources of files of a stream were given; none where Spark does not answer."""
    try:
        nodes = _walk(stream._jdf.queryExecution().analyzed())
        given = [node.dataSource().options().get("path") for node in nodes if node.nodeName() == "StreamingRelation"]
        return [str(path.get()) for path in given if path.isDefined()]
    except NOT_SHOWN:
        return []


def options_read(stream: DataFrame) -> dict[str, str]:
    """Return the options of a stream's sources, by names in small letters; none where Spark does not answer."""
    found: dict[str, str] = {}
    try:
        for node in _walk(stream._jdf.queryExecution().analyzed()):
            if node.nodeName() == "StreamingRelation":
                options = node.dataSource().options()
                found |= {str(key).lower(): str(options.apply(key)) for key in each_of(options.keys().toSeq())}
            elif node.nodeName() == "StreamingRelationV2":
                found |= {str(key).lower(): str(value) for key, value in dict(node.extraOptions()).items()}
    except NOT_SHOWN:
        pass
    return found


def _nodes(plan: Any) -> Iterator[str]:
    """Return the names of a plan's nodes, from its root to its last leaf."""
    return (str(node.nodeName()) for node in _walk(plan))


def _walk(plan: Any) -> Iterator[Any]:
    """Yield a plan's nodes, from its root to its last leaf."""
    yield plan
    for child in each_of(plan.children()):
        yield from _walk(child)


def each_of(sequence: Any) -> Iterator[Any]:
    """Return what is in a sequence of Scala."""
    return (sequence.apply(place) for place in range(sequence.size()))


# Relies on ``DataFrame._jdf`` and on the analyzed plan behind it: the names of its nodes, ``SubqueryAlias.alias``,
# the keys of a ``Deduplicate``, and on the metadata that Spark gives to windows of a session and to columns under a
# watermark (``SessionWindow.marker``, ``EventTimeWatermark.delayKey``). Fails open: where Spark does not answer, or
# calls an operator otherwise, none is found. Since Spark 4.0.

_SESSION: Final = "spark.sessionWindow"
_UNDER_WATERMARK: Final = "spark.watermarkDelayMs"
_WITH_STATE: Final = ("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState")


def that_takes_single_rows(df: DataFrame, alias: str) -> str | None:
    """Return what keeps, or drops, single rows of event time, and not whole windows of them; None: nothing does.

    Args:
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
    except NOT_SHOWN:
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


# Two streams are put beside each other, and the watermark of the first is that of both. The rows that carry it are
# taken out again before any operator sees them, by a filter that has to stay above the watermark.
#
# Relies on three things. The output of a union has the metadata of its first child, the watermark's among them
# (``Union.output``, ``EventTimeWatermark.delayKey``). The optimizer pushes no filter below a watermark that is not
# deterministic (``PushPredicateThroughNonJoin``), and does not find out beforehand that ``spark_partition_id() < 0``
# never holds. And the watermark's operator sees each row that is below it (``EventTimeWatermarkExec``). Fails closed:
# without the first, Spark refuses the query, whose results are appended; without the others the watermark stands still,
# and nothing that waits for it comes out. Since Spark 4.0.

_MARK: Final = "_tracker_mark"


def under_watermark_of(marks: DataFrame, data: DataFrame, time: str) -> DataFrame:
    """Return the rows of `data`, under a watermark that is at the newest time in `marks`.

    Args:
        marks: a stream with the columns of `data`.
        data: a stream without a watermark of its own.
        time: the column of event time, quoted if need be.
    """
    moving = marks.withColumn(_MARK, F.lit(True)).withWatermark(time, "0 seconds")
    both = moving.unionByName(data.withColumn(_MARK, F.lit(False)))
    return both.where(~F.col(_MARK) | (F.spark_partition_id() < 0)).drop(_MARK)


# Relies on the name of the class that ``spark.sql.streaming.stateStore.providerClass`` has for RocksDB. Fails closed:
# with another name the state is refused. Since Spark 4.1.

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def provider_of(spark: SparkSession) -> str:
    """Return the class of a session's state store."""
    return str(spark.conf.get(PROVIDER))


def is_rocksdb(spark: SparkSession) -> bool:
    """Return whether a session keeps state in RocksDB."""
    return provider_of(spark).rpartition(".")[2] == ROCKSDB.rpartition(".")[2]


# Relies on ``pyspark.errors.utils._enable_debugging_cache``, in which PySpark keeps whether the session's setting
# ``spark.python.sql.dataFrameDebugging.enabled`` is on. Fails open: without it all is as before, only slower. Since
# Spark 4.1.

_NOTING: Final = "_enable_debugging_cache"
_CHANGING: Final = threading.Lock()
_within: list[Any] = []  # what each caller that is inside has found


@contextmanager
def without_call_sites() -> Iterator[None]:
    """Have PySpark not note the line at which each column is made, which is most of what making one costs.

    The note is for a user, whose columns are made outside. It is one for the process, so be inside for a short time.

    >>> with without_call_sites():                                                                 # doctest: +SKIP
    ...     rows.groupBy(*keys).agg(*parts)
    """
    with _CHANGING:
        _within.append(_within[0] if _within else getattr(utils, _NOTING, None))
        setattr(utils, _NOTING, False)
    try:
        yield
    finally:
        with _CHANGING:
            found = _within.pop()
            if not _within:
                setattr(utils, _NOTING, found)
