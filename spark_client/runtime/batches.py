"""Queries whose batches this package processes: they send rows on, or release results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import Column, DataFrame

from spark_client.advice import explained
from spark_client.counting.batch_input import BatchInput
from spark_client.counting.manifest import Manifest
from spark_client.counting.probes import ExecutorProbe, add_groups
from spark_client.counting.runs import Run
from spark_client.plan.outputs import BatchId, Output
from spark_client.plan.streams import Stream
from spark_client.release.quarantine import Quarantine
from spark_client.release.query import ReleaseQuery
from spark_client.runtime.failures import shortened
from spark_client.runtime.gate import Stopped
from spark_client.runtime.queries import TrackedQuery
from spark_client.spark_internals.checkpoints import query_id

#: What batches are run with, in the copy of the session that Spark makes for a query.
_CONF = {
    "spark.sql.adaptive.enabled": "true",  # few files for few rows
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # with statistics, so that reading can skip
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",  # who counts what was written reads it without Spark
}


class BatchQuery(TrackedQuery):
    """A query whose batches are processed by this package: it sends rows on, or releases results.

    Args:
        stream: that it reads.
        output: where rows go.
        release: what releases results there; None: rows are passed on as they are.
        sends: whether `output` sends rows on.
        labels: whether rows need labels.
        probe: makes the executors' probe of a batch; None: the driver counts.
        manifest: told whose reports are kept; None: the driver counts.
        seals: whether the query seals its batches.
        aggregates: that are observed on the stream: as `observed_of` gives them.
        quarantine: where rows go that belong to no substream.
    """

    def __init__(
        self,
        stream: Stream,
        checkpoint: Path,
        open_run: Callable[[str, str, int], Run],
        output: Output,
        release: ReleaseQuery | None,
        sends: bool,
        probe: Callable[[BatchId], ExecutorProbe] | None,
        manifest: Manifest | None,
        seals: bool,
        aggregates: Mapping[str, Column] | None,
        quarantine: Quarantine,
    ) -> None:
        super().__init__([stream], checkpoint, open_run)
        self._stream = stream
        self._output = output
        self.release = release
        self._sends = sends
        self._probe = probe
        self._manifest = manifest
        self._seals = seals
        self._aggregates = aggregates
        self._quarantine = quarantine
        self._swept = False

    @property
    def outlives_its_sources(self) -> bool:
        return self.release is not None or not self.fronts

    def _committed(self, run: Run) -> None:
        super()._committed(run)
        if self.release is not None and run.last_epoch is not None:
            self.release.committed(run.last_epoch)

    def release_resources(self) -> None:
        if self.release is not None:
            self.release.close()

    def begun(self, epoch: int) -> bool:
        if self.release is not None:
            return self.release.begun(epoch)
        query = query_id(self.checkpoint)
        return query is not None and self._output.begun(query, epoch)

    def process(self, batch: DataFrame, epoch: int) -> None:
        """The body of `foreachBatch`."""
        try:
            self._process(batch, epoch)
        except Stopped:
            raise
        except Exception as error:
            self.failed = error
            if (short := shortened(error)) is not error:
                raise short from None  # Spark shows the whole chain, with the sentence at its end
            raise

    def _process(self, batch: DataFrame, epoch: int) -> None:
        run = self.run
        with self.gate.passed(epoch):
            if run.failure is not None:
                raise explained(run.failure)
            if not self._swept:
                self._sweep(run)
            if epoch:
                run.await_committed(epoch - 1)  # else Spark would not have begun this one
            spark = batch.sparkSession
            for key, value in _CONF.items():
                spark.conf.set(key, value)
            manifest = self._manifest
            if manifest is not None:
                manifest.begin()
            name = run.batch(epoch)
            probe = None if self._probe is None else self._probe(name)
            rows = self._stream.input.rows(batch, run.query, epoch)
            batch_input = None
            if rows is not None:
                releases = self.release is not None
                labels = self._sends and not releases
                xors = self.release is not None and self.release.xors
                batch_input = BatchInput(
                    self._stream,
                    rows,
                    self._stream.input.all_rows(batch),
                    name,
                    probe,
                    labels,
                    rides=releases,
                    xors=xors,
                    aggregates=self._aggregates,
                    running=lambda: self.query,
                    reads_all=releases or self._output.reads_all,
                    reported=None if probe is None or manifest is None else partial(manifest.has, probe.place),
                )
            try:
                if self.release is not None:
                    self.release.process(batch_input, run, epoch, spark)
                elif batch_input is not None:
                    self._forward(batch_input, run, epoch)
            except Exception as error:
                explanation = error if batch_input is None else batch_input.explained(error)
                if explanation is error:
                    raise
                raise explanation from None
            if manifest is not None and self._seals:
                run.seal(epoch, manifest.units)
            self.gate.done(epoch)

    def _sweep(self, run: Run) -> None:
        """Removes what drivers that were killed have left half written, unless this one has been superseded itself."""
        if run.is_current():
            self._output.sweep(run.query)
            self._quarantine.sweep()
            if self.release is not None:
                self.release.sweep(run.query)
        self._swept = True

    def _forward(self, batch_input: BatchInput, run: Run, epoch: int) -> None:
        sent = self._output.write(batch_input.rows, run.batch(epoch), batch_input.layout)
        report = run.report(epoch)
        for segment, groups in sent.items():
            add_groups(report, segment, "sent", groups)
        batch_input.read_the_rest()
        batch_input.set_aside(self._quarantine)
        batch_input.add_to(report, batch_input.count() if batch_input.must_count else None)
        run.send(report, epoch)
