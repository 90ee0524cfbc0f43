"""What a query has left beside its results, read by its checkpoint: the query need not run."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from spark_client.errors import UsageError
from spark_client.release.early import early_rows
from spark_client.release.revisions import late_rows
from spark_client.release.single import kept_at
from spark_client.storage.directories import local_path, read_json
from spark_client.windows.substreams import Substreams


class Checkpoints:
    """Reads what queries have left in their checkpoints.

    Attributes:
        spark: the session.
    """

    spark: SparkSession

    def late(self, checkpoint: str, late_path: str | None = None) -> DataFrame:
        """Return what a query has set aside: late rows, and rows of no substream: `LATE_SCHEMA`, with ``revision``.

        Args:
            checkpoint: of the query, which need not run.
            late_path: the query's option, if it was given.

        Returns:
            One row for each late row (``kind`` ``row``), or for each result row that late rows would have made
            (``aggregate``); ``revision`` is null for what was not reopened. And one for each row that belongs to no
            substream (``bad``), with the reason: see `source`, on_bad_rows.
        """
        path = local_path(checkpoint, "checkpoint")
        return late_rows(self.spark, path, local_path(late_path or path / "tracker" / "late", "late_path"))

    def early(self, checkpoint: str, early_path: str | None = None, *, release: str = "") -> DataFrame:
        """Return the newest early results of a release that writes files: one row for each key of what is open yet.

        They are of the moment in which this is called: call it again for newer ones. A reader of both reads these
        first, then the final ones, and takes the final one of a key that is in both.

        Args:
            checkpoint: of the query, which need not run; it was declared with ``release(…, early=…)``.
            early_path: the query's option, if it was given.
            release: its name, if the query has several (`write_together`).

        Returns:
            Rows with the columns of the results; ``final`` is false, and ``as_of`` the last batch whose rows are in it.

        Raises:
            UsageError: there are none yet.

        >>> tracking.early("/data/cp").orderBy("shop").show()                              # doctest: +SKIP
        """
        path = local_path(checkpoint, "checkpoint")
        own = kept_at(path, release)
        query = read_json(path / "tracker" / "query.json")
        if query is None:
            raise UsageError(f"{path} is no checkpoint of a tracked query that has been started")
        rule = Substreams.from_json(query["substreams"])
        return early_rows(self.spark, local_path(early_path or own / "early", "early_path"), own / "state", rule)
