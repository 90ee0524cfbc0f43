"""Where merged rows become results: as they are, or by a user's function, whose first answer stands.

A function may be called again when a batch is repeated, and answer otherwise. So what it has made is published in the
checkpoint first, under the batch's number, and results are written from there: every attempt writes the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from spark_client.columns import named
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Output
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.batches import Counted
from spark_client.plan.resultfunctions import ResultFunction
from spark_client.release.aggregation import Aggregation
from spark_client.release.grouped import REPAIR
from spark_client.release.making import added, made_by
from spark_client.spark_internals.error_texts import has_text, sentence_in
from spark_client.storage.directories import parquet_of, publish, remove, sweep, write_parquet
from spark_client.windows.substreams import Substream

_SHOWN: Final = 3  #: substreams that an error names


class Results:
    """Writes the results of one release.

    Args:
        aggregation: the release's.
        output: where results go.
        path: a directory in the checkpoint, for what a function has made.
        sent_on: whether they go into a channel.
    """

    def __init__(self, aggregation: Aggregation, output: Output, path: Path, sent_on: bool) -> None:
        self._aggregation = aggregation
        self._plan = aggregation.plan
        self._output = output
        self._path = path
        self._sent_on = sent_on

    def write(
        self, merged: DataFrame, ended: Iterable[tuple[Substream, int]], run: Run, epoch: int, counts: bool
    ) -> tuple[Counted, dict[tuple[Substream, int], int]]:
        """Write the results of an epoch, or find them written.

        Args:
            merged: the merged rows, with ``_revision`` and ``_completeness`` where results have them.
            ended: of what they are: the substreams, with the numbers of their revisions.
            run: the query's.
            epoch: of the batch.
            counts: whether results have to be counted.

        Returns:
            What was sent on; and how many results there are by substream and revision, if that is asked for.

        Raises:
            TrackingError: the function has failed.
        """
        release = self._aggregation
        if self._plan.function is None:
            results = (
                release.results(merged, added(self._plan)) if not self._sent_on else release.tracked(merged, run.job)
            )
            counted = merged
        else:
            counted = self._made(self._plan.function, merged, sorted(ended, key=str), epoch)
            results = counted.select(*map(named, self._plan.columns))
        sent = self._output.write(results, run.batch(epoch))
        return sent, release.results_by_substream(counted) if counts else {}

    def published(self, epoch: int) -> None:
        """The state after an epoch is published: what was made for earlier ones is not needed any more."""
        for entry in self._path.glob("epoch=*") if self._path.is_dir() else ():
            if abs(int(entry.name.partition("=")[2])) < abs(epoch) - 2:
                remove(entry)

    def sweep(self) -> None:
        """Remove what drivers that were killed have left half written."""
        sweep(self._path)

    def _made(
        self, function: ResultFunction, merged: DataFrame, ended: list[tuple[Substream, int]], epoch: int
    ) -> DataFrame:
        """Return what the function makes of an epoch's rows, or has made."""
        target = self._path / f"epoch={epoch}"
        try:
            made = made_by(self._aggregation, function, merged, ended)
            publish(target, write_parquet(made))
        except (TrackingError, UsageError):
            raise
        except Exception as error:
            if sentence_in(error) is not None or has_text(error, "InterruptedException"):  # the query is being stopped
                raise
            text = " ".join(str(error).partition("\n")[0].split())
            listed = ", ".join(f"{each.name!r} of the scope {each.scope!r}" for each, _ in ended[:_SHOWN])
            more = f" and {len(ended) - _SHOWN} more" if len(ended) > _SHOWN else ""
            raise TrackingError(
                f"the function {function.name} failed for {listed}{more}: {type(error).__name__}: {text}. {REPAIR}"
            ) from error
        return parquet_of(merged.sparkSession, made.schema.toNullable()).parquet(str(target))
