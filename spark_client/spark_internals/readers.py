"""Sources in Python as Spark sees them: names, calls, lifetimes, and where an `availableNow` run ends.

Relies on ``_SimpleStreamReaderWrapper`` and ``PythonStreamingSourceRunner``, beyond what is documented of
``SimpleDataSourceStreamReader``:

- One reader, in one process of its own, serves a query from its start until it stops, so it can keep what it knows. If
  that were otherwise, its calls would cost more, and a run with ``availableNow`` might take what came meanwhile.
- A query that goes on from a checkpoint begins to read where its last batch ended: ``initialOffset`` is asked, more
  than once, only where there is no batch yet. If that were otherwise, rows would be read twice.
- A batch is planned from the sources in the order in which the plan has them. If that were otherwise, a run with
  ``availableNow`` might end before what it has ended is released; the next start releases it.
- Iterators of rows are copied, so they have to be of lists.

Fails open: nothing at hand shows a reader that it is called otherwise. Since Spark 4.0.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql import SparkSession

from spark_client.spark_internals.sessions import check_release

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader

    class AvailableNow:
        """A source that can say where a run with ``availableNow`` ends."""

        def prepareForTriggerAvailableNow(self) -> None: ...  # noqa: N802
else:
    try:
        from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader
    except ImportError:  # Spark 3.5 has no sources in Python: who registers one is refused
        DataSource = DataSourceReader = InputPartition = SimpleDataSourceStreamReader = type("Missing", (), {})
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:  # before Spark 4.2 there is no such thing for sources in Python

        class AvailableNow:
            """A source that cannot say that: Spark takes everything in one batch."""


__all__ = ["DataSource", "DataSourceReader", "InputPartition", "SimpleDataSourceStreamReader"]

#: True if Spark asks sources in Python where such a run ends; else it makes one batch of what the first read gives.
ASKS_WHERE_IT_ENDS: Final = pyspark.__version__ >= "4.2"


def register_source(spark: SparkSession, source: type[DataSource], what: str) -> None:
    """Register a source in Python.

    Args:
        what: it is for, in words.
    """
    check_release(f"{what}, a source in Python,", (4, 0), "Upgrade pyspark, and the cluster")
    spark.dataSource.register(source)


class LastingReader(SimpleDataSourceStreamReader, AvailableNow):
    """A reader that Spark makes once for a run of a query, and calls until the run has ended."""


# Spark cuts the backlog of such a run into batches only if all sources of the query can tell where it ends.
#
# Relies on ``SupportsTriggerAvailableNow`` of ``pyspark.sql.streaming.datasource``, and on Spark asking a simple
# reader that has it before the first read (``python_streaming_source_runner``). Fails open: Spark takes everything in
# one batch, as it does before 4.2. Since Spark 4.2.


# Relies on what Spark does with the name that ``format(…)`` is given (``DataSource.lookupDataSource``): one with
# signs such as ``.`` or ``/`` it may take for a class, a package or a path. Spark 4.0.5 and 4.3.0 take any name that
# is registered, and nothing promises it. Fails closed: under a name that Spark takes for something else, the query
# does not start. Since Spark 4.0.

#: Names that Spark takes as they are.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def source_name(kind: str, name: str) -> str:
    """Return the name to register a source under: plain, whatever the source is about.

    Args:
        kind: what the names of all such sources begin with; plain itself.

    >>> source_name("tracker-epochs", "clean")
    'tracker-epochs-clean'
    >>> len(source_name("tracker-epochs", "a/b.c"))
    79
    """
    plain = _PLAIN.fullmatch(name)
    return f"{kind}-{name if plain else hashlib.sha256(name.encode()).hexdigest()}"
