"""Channels as the destination of a query: one, or several among which rows are dealt out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.counting.groups import files, in_files
from spark_client.counting.probes import TaskReports
from spark_client.destinations.channel import Channel, DoubledLabelsError, epoch_name
from spark_client.destinations.destination import Destination, Opening, Output
from spark_client.errors import check_faults
from spark_client.fronts.front import Group
from spark_client.plan.batches import BatchId, Counted, SetAside, computed_once
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import ReleasePlan
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.directories import parquet_of
from spark_client.storage.folder import Backlog, Folder
from spark_client.windows.substreams import Ability

_ROUTE: Final = "_tracker_route"


class ChannelDestination(Destination):
    """Channels to other queries.

    Args:
        routes: the channels; with several, each row goes into the first whose condition holds, or into none.
        ordinal: columns that tell apart the rows made of one row.
    """

    sends = True

    def __init__(self, routes: Sequence[tuple[Channel, Column | None]], ordinal: tuple[str, ...]) -> None:
        self.routes = routes
        self._ordinal = ordinal

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:  # noqa: ARG002
        for channel, _ in self.routes:
            channel.check_session(spark)

    def directories(self) -> Iterator[tuple[str, Folder]]:
        for channel, _ in self.routes:
            yield f"channel {channel.segment!r}", channel.path

    def open(self, opening: Opening) -> Output:
        def sending(channel: Channel) -> ChannelOutput:
            return ChannelOutput(channel, self._ordinal, opening.tasks, opening.aside)

        conditional = [(condition, sending(channel)) for channel, condition in self.routes if condition is not None]
        if conditional:
            return RoutedOutput(conditional, opening.checkpoint / "tracker" / "routed")
        ((channel, _),) = self.routes
        return sending(channel)


def check_results(release: ReleasePlan) -> None:
    """Refuse results that would not be told apart in a channel, or be elements of substreams that are over."""
    release.rule.require(Ability.CHANNEL, f"release of {release.stream.segment!r}")
    kept = "rows that a release keeps, and what a function makes of results,"
    elsewhere = "go to files, a sink or a function: in a channel"
    check_faults(
        f"release of {release.stream.segment!r}:",
        (release.kept or release.function, f"{kept} {elsewhere} nothing would tell results of one key apart"),
        (release.early is not None, f"results with early=… {elsewhere} early ones would be elements of their own"),
        (release.completeness, f"results with completeness=True {elsewhere} who receives asks for it"),
        (release.revisions, f"results with revisions=True {elsewhere} they would be of substreams that are over"),
    )


class ChannelOutput:
    """A channel to another query.

    Args:
        ordinal: columns that tell apart the children of one row.
        tasks: count and report what is sent; None: the driver does.
        quarantine: where rows go that share a label with another, if the channel takes one of each only; None: such an
            epoch fails.
    """

    concurrent = True
    reads_all = True
    completes = False

    def __init__(
        self,
        channel: Channel,
        ordinal: tuple[str, ...],
        tasks: TaskReports | None,
        quarantine: SetAside | None = None,
    ) -> None:
        self._channel = channel
        self._ordinal = ordinal
        self._tasks = tasks
        self._quarantine = quarantine

    def check(self, rows: DataFrame) -> None:
        """Look at rows that are to be sent, before it is settled that they are.

        Raises:
            TrackingError: they cannot be sent, nor be set aside.
        """
        if self._quarantine is None:
            self._channel.check_children(rows, self._ordinal)

    def carried(self, rows: DataFrame) -> DataFrame:
        """Return the same rows; whoever reads one that the channel would alter fails.

        Args:
            rows: of which some are to be sent.
        """
        return self._channel.carried(rows)

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        # Rows that can be read count, whichever attempt wrote them: so they are counted after they were published.
        channel = self._channel
        try:
            published = channel.write(rows, batch.query, batch.epoch, self._ordinal, layout)
        except DoubledLabelsError:
            if self._quarantine is None:
                raise
            # Both parts have to be of the same rows, even if work on them does not come out alike.
            with computed_once(rows) as kept:
                one_each, surplus = channel.surplus(kept, self._ordinal)
                self._quarantine.put_doubled(batch.epoch, channel.segment, surplus)
                published = channel.write(one_each, batch.query, batch.epoch, self._ordinal, None)
        sent = partial(channel.in_files, rows.sparkSession, [published.folder])
        if published.groups is not None:
            return {channel.segment: published.groups}
        if self._tasks is None:
            return {channel.segment: in_files(published.folder, channel.layout, sent)}
        self._tasks.report(sent(), batch, channel.segment, "sent")
        return {}

    def begun(self, query: str, epoch: int) -> bool:
        return self._channel.begun(query, epoch)

    def sweep(self, query: str) -> None:
        self._channel.sweep(query)


class RoutedOutput:
    """Several channels as the output of a query.

    Where a row goes is decided once: the rows of an epoch are kept on disk with their routes before any of them is
    sent. So work that would not come out the same again, such as a call to another system that failed, sends each row
    one way only, also when the driver dies between two of the channels.

    Args:
        routes: conditions, each with the channel for rows that meet it and none before it.
        folder: where an epoch's rows are kept until the next ones are sent.
    """

    concurrent = False
    reads_all = True
    completes = False

    def __init__(self, routes: Sequence[tuple[Column, ChannelOutput]], folder: Folder) -> None:
        self._routes = routes
        self._folder = folder
        self._backlog = Backlog(folder)

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        epoch = batch.epoch
        route: Column = F.lit(None).cast("int")
        for number, (condition, _) in reversed(list(enumerate(self._routes))):
            route = F.when(condition, F.lit(number)).otherwise(route)
        dealt = rows.withColumn(_ROUTE, route)
        for _, output in self._routes:
            dealt = output.carried(dealt)  # what is dealt out here stands

        def of_route(folder: Folder, number: int) -> DataFrame:
            found = parquet_of(rows.sparkSession, dealt.schema).parquet(str(folder))
            return found.where(F.col(_ROUTE) == number).drop(_ROUTE)

        def check(folder: Folder) -> None:
            for number, (_, output) in enumerate(self._routes):
                output.check(of_route(folder, number))

        seen = Parquet(dealt, _routes_in).publish(self._folder, epoch_name(epoch), check)
        target = self._folder / epoch_name(epoch)
        self._backlog.add(target.name)
        if seen is None:
            seen = [_routes_in(files(target).to_table(columns=[_ROUTE]))]
        taken = {route for each in seen for route in json.loads(each)}
        sent: dict[str, list[Group]] = {}
        for number, (_, output) in enumerate(self._routes):
            if number in taken:  # a loop would go on for ever with epochs that have no rows
                sent.update(output.write(of_route(target, number), batch))
        for old in self._backlog.before(epoch):
            self._backlog.discard(old)
        return sent

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return self._folder.is_published(epoch_name(epoch))

    def sweep(self, query: str) -> None:
        self._backlog.sweep()
        for _, output in self._routes:
            output.sweep(query)


def _routes_in(rows: pa.Table) -> str:
    return json.dumps(pc.unique(rows[_ROUTE]).to_pylist())
