"""A channel as the output of a query."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame

from spark_client.channels.channel import Channel, DoubledLabelsError
from spark_client.counting.driver import in_files
from spark_client.counting.probes import ExecutorProbe
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.outputs import BatchId, Counted, SetAside


class ChannelOutput:
    """A channel to another query.

    Args:
        channel: it.
        ordinal: columns that tell apart the children of one row.
        probe: makes the executors' probe of (query, run, batch); None: the driver counts.
        quarantine: where rows go that share a label with another, if the channel takes one of each only; None: such an
            epoch fails.
    """

    concurrent = True
    reads_all = True

    def __init__(
        self,
        channel: Channel,
        ordinal: tuple[str, ...],
        probe: Callable[[BatchId], ExecutorProbe] | None,
        quarantine: SetAside | None = None,
    ) -> None:
        self._channel = channel
        self._ordinal = ordinal
        self._probe = probe
        self._quarantine = quarantine

    def check(self, rows: DataFrame) -> None:
        """Looks at rows that are to be sent, before it is settled that they are.

        Args:
            rows: them.

        Raises:
            TrackingError: they cannot be sent, nor be set aside.
        """
        if self._quarantine is None:
            self._channel.check_children(rows, self._ordinal)

    def carried(self, rows: DataFrame) -> DataFrame:
        """The same rows; whoever reads one that the channel would alter fails.

        Args:
            rows: of which some are to be sent.
        """
        return self._channel.carried(rows)

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        # What counts is what can be read, whichever attempt wrote it: so it is counted after it was published.
        channel = self._channel
        try:
            path = channel.write(rows, batch.query, batch.epoch, self._ordinal, layout)
        except DoubledLabelsError:
            if self._quarantine is None:
                raise
            rows = (
                rows.persist()
            )  # both parts have to be of the same rows, even if work on them does not come out alike
            try:
                one_each, surplus = channel.surplus(rows, self._ordinal)
                self._quarantine.put_doubled(batch.epoch, channel.segment, surplus)
                path = channel.write(one_each, batch.query, batch.epoch, self._ordinal, None)
            finally:
                rows.unpersist()
        published = partial(channel.in_files, rows.sparkSession, [path])
        if self._probe is None:
            return {channel.segment: in_files(path, channel.layout, published)}
        self._probe(batch).on(published()).write.format("noop").mode("overwrite").save()
        return {}

    def begun(self, query: str, epoch: int) -> bool:
        return self._channel.begun(query, epoch)

    def sweep(self, query: str) -> None:
        self._channel.sweep(query)
