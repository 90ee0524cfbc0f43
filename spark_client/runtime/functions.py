"""Queries whose batches are given to a function of this package, by Spark's `foreachBatch`."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_client.runtime.failures import shortened
from spark_client.runtime.gate import Stopped
from spark_client.runtime.metrics import QueryMetrics
from spark_client.runtime.queries import TrackedQuery
from spark_client.storage.directories import PARQUET

#: What batches are run with, in the copy of the session that Spark makes for a query.
_CONF: Final = {
    "spark.sql.adaptive.enabled": "true",  # few files for few rows
    **PARQUET,
}


class FunctionQuery(TrackedQuery):
    """A query whose batches are given to a function of this package.

    Attributes:
        metrics: counts the batches; None: nobody does.
    """

    metrics: QueryMetrics | None = None

    @property
    def function(self) -> Callable[[DataFrame, int], None]:
        """The function for `foreachBatch`; it works while somebody keeps this object.

        Spark keeps it for as long as it keeps its query. This object keeps Spark's query in turn, and the collectors of
        the JVM and of Python cannot see a circle through both. So the function does not keep this object; whoever
        follows the query does.
        """
        kept_by_others = weakref.ref(self)

        def process(batch: DataFrame, epoch: int) -> None:
            query = kept_by_others()
            if query is None:
                raise Stopped
            try:
                query.process(batch, epoch)
            except Stopped:
                raise
            except Exception as error:
                if (short := query.failure_of(error)) is not error:
                    raise short from None  # Spark shows the whole chain, with the sentence at its end
                raise

        return process

    def failure_of(self, error: Exception) -> Exception:
        """Note what has ended a batch, and return what Spark is to show of it."""
        self.failed = error
        if self.metrics is not None and self._run is not None:
            self.metrics.failed(self._run.query)
        return shortened(error)

    @abstractmethod
    def process(self, batch: DataFrame, epoch: int) -> None:
        """Process a batch."""

    @staticmethod
    def configure(spark: SparkSession) -> None:
        """Set what batches are run with.

        Args:
            spark: the copy of the session that Spark has made for the query.
        """
        for key, value in _CONF.items():
            spark.conf.set(key, value)
