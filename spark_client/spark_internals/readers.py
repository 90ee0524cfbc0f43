"""How Spark calls the readers of streams that are written in Python, and how long one lives.

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

from pyspark.sql.datasource import SimpleDataSourceStreamReader

from spark_client.spark_internals.available_now import AvailableNow


class LastingReader(SimpleDataSourceStreamReader, AvailableNow):
    """A reader that Spark makes once for a run of a query, and calls until the run has ended."""
