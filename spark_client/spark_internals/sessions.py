"""Sessions of Spark: of which kind one is, a copy with settings of its own, and what another thread inherits of one.

Relies on ``SparkSession.cloneSession`` of the JVM, which Spark's streams use themselves: the copy has the settings, the
temporary views and the functions that the session has now, and later ones of each concern only itself. Fails closed:
what is done between batches fails. Since Spark 3.5.
"""

from __future__ import annotations

import atexit
import os
import re
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

import pyspark
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from spark_client.errors import UsageError

_Result = TypeVar("_Result")


def is_remote(spark: Any) -> bool:
    """Return whether a session is one of Spark Connect, which has no JVM beside it."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def check_release(what: str, least: tuple[int, ...], advice: str) -> None:
    """Refuse what an older Spark than this one lacks.

    Args:
        least: the numbers of the first release that has it.
        advice: a sentence at the end of the message: what to do until then.
    """
    if tuple(map(int, re.findall(r"\d+", pyspark.__version__)))[: len(least)] < least:
        raise UsageError(f"{what} needs Spark {'.'.join(map(str, least))}, and this is {pyspark.__version__}. {advice}")


# Of Spark Connect: relies on ``SparkSession.cloneSession``, on ``DataFrame._plan`` being data of no session, on the
# constructor of such a DataFrame, and on ``SparkConnectClient._channel``, ``close`` and ``_cleanup_ml_cache``. Batches
# see the settings of the session that started their query, and change them, so each query has a session of its own.
# Fails closed: a query does not start. Since Spark 4.1.


def own_session(spark: SparkSession) -> SparkSession:
    """Return a copy of a session, as Spark makes one for each query."""
    if is_remote(spark):
        copy: Any = spark.cloneSession()  # type: ignore[attr-defined]
        # A session that is collected closes its client, which ends threads that all sessions share: in one of them, as
        # here may be, it waits for itself, and all calls for it. And a channel that is first closed when Python ends
        # waits for threads that do not run any more.
        copy.client.close = copy.client._channel.close
        weakref.finalize(copy, copy.client._channel.close)
        # Each client asks its server for something when Python ends, and for ten minutes where there is no server.
        atexit.unregister(getattr(copy.client, "_cleanup_ml_cache", None))  # type: ignore[arg-type]
        return cast(SparkSession, copy)
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def moved(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Return rows of a session of Spark Connect in a copy of that session."""
    return type(rows)(rows._plan, spark)


def end_process(status: int) -> NoReturn:
    """End this process at once: threads of Spark Connect's client would keep it while a call has no answer."""
    os._exit(status)


def in_session(spark: SparkSession, target: Callable[[], _Result]) -> Callable[[], _Result]:
    """Return a function that another thread calls with the job group, and what else this thread has set."""
    given = target if spark.version < "4" else spark
    decorated: Any = inheritable_thread_target(given)  # before 4.0 it takes the function itself
    return cast(Callable[[], _Result], decorated if given is target else decorated(target))
