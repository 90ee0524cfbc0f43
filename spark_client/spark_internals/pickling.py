"""Carries a plan to another process of the same Spark: a pickle in which columns are what the JVM makes of them.

A `Column` of classic PySpark is a handle to an object of one JVM, which Python cannot pickle. Its node is plain data,
though, and Java serializes it.

Relies on ``Column._jc.node()`` and the constructor of ``pyspark.sql.classic.column``, on the constructor of the JVM's
``org.apache.spark.sql.Column`` from a node, and on ``org.apache.spark.util.Utils`` (``serialize``, ``deserialize``).
Fails closed: what cannot be carried is refused when it is pickled, and bytes of another version when they are loaded.
Since Spark 4.0.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.cloudpickle import CloudPickler
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from spark_client.errors import UsageError


def dumps(plan: object) -> bytes:
    """Return a plan as bytes, for a process that runs the same version of Spark.

    Args:
        plan: values, columns, and functions of the user.

    Raises:
        UsageError: it has something of this session or process: a DataFrame, a connection, a lock.

    >>> loads(dumps(F.col("a") + 1))                                                       # doctest: +SKIP
    Column<'+(a, 1)'>
    """
    file = io.BytesIO()
    try:
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump((pyspark.__version__, plan))
    except (pickle.PicklingError, TypeError, Py4JError, PySparkException) as error:
        raise UsageError(
            f"the plan of a query cannot be carried to another process: {error}. Give functions that make what they "
            "need when they are called"
        ) from error
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Return the plan that `dumps` has made bytes of; its columns are of the JVM of the session that is active.

    Args:
        data: trusted bytes: loading them runs code.

    Raises:
        UsageError: they are of another version of Spark, or no session is active.
    """
    if SparkSession.getActiveSession() is None:
        raise UsageError("the columns of a plan are of a Spark session: create it before the plan is loaded")
    version, plan = pickle.loads(data)
    if version != pyspark.__version__:
        raise UsageError(f"the plan was made under Spark {version}, and this is {pyspark.__version__}: declare it here")
    return plan


#: The class of a DataFrame, as Java's serialization writes it.
_DATASET: Final = b"org.apache.spark.sql.classic.Dataset"


class _Pickler(CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ClassicColumn):
            handle: Any = obj._jc
            node = _jvm().org.apache.spark.util.Utils.serialize(handle.node())
            if _DATASET in node:  # of a subquery: Java would carry it, and the other session cannot read it
                raise pickle.PicklingError("a column has a subquery, whose DataFrame is of one session")
            return _column, (node,)
        if isinstance(obj, DataFrame | SparkSession):
            raise pickle.PicklingError(f"a step or an option has a {type(obj).__name__}, which is of one session")
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _column(node: bytes) -> Column:
    jvm = _jvm()
    return ClassicColumn(jvm.org.apache.spark.sql.Column(jvm.org.apache.spark.util.Utils.deserialize(node)))


def _jvm() -> Any:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    return spark._jvm
