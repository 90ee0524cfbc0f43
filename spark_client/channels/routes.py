"""Routes: the rows of one query, dealt out to several channels, each row to one of them or to none.

Where a row goes is decided once: the rows of an epoch are kept on disk with their routes before any of them is sent.
So work that would not come out the same again, such as a call to another system that failed, sends each row one way
only, also when the driver dies between two of the channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.channels.sending import ChannelOutput
from spark_client.counting.written import files
from spark_client.plan.fronts import Group
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.outputs import BatchId, Counted
from spark_client.storage.directories import parquet_of, publish, remove, sweep, write_parquet

_ROUTE: Final = "_tracker_route"


class RoutedOutput:
    """Several channels as the output of a query.

    Args:
        routes: conditions, each with the channel for rows that meet it and none before it.
        path: where an epoch's rows are kept until the next ones are sent.
    """

    concurrent = False
    reads_all = True

    def __init__(self, routes: Sequence[tuple[Column, ChannelOutput]], path: Path) -> None:
        self._routes = routes
        self._path = path

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        epoch = batch.epoch
        route: Column = F.lit(None).cast("int")
        for number, (condition, _) in reversed(list(enumerate(self._routes))):
            route = F.when(condition, F.lit(number)).otherwise(route)
        dealt = rows.withColumn(_ROUTE, route)
        for _, output in self._routes:
            dealt = output.carried(dealt)  # what is dealt out here stands
        target = self._path / f"{epoch:012d}"

        def write(path: str) -> None:
            write_parquet(dealt)(path)
            written = parquet_of(rows.sparkSession, dealt.schema).parquet(path)
            for number, (_, output) in enumerate(self._routes):
                output.check(written.where(F.col(_ROUTE) == number))

        if not publish(target, write):
            dealt.write.format("noop").mode("overwrite").save()  # what counts and observes rows waits for them
        kept = parquet_of(rows.sparkSession, dealt.schema).parquet(str(target))
        taken = set(pc.unique(files(target).to_table(columns=[_ROUTE])[_ROUTE]).to_pylist())
        sent: dict[str, list[Group]] = {}
        for number, (_, output) in enumerate(self._routes):
            if number in taken:  # a loop would go on for ever with epochs that have no rows
                sent.update(output.write(kept.where(F.col(_ROUTE) == number).drop(_ROUTE), batch))
        for old in self._path.iterdir():
            if old.name.isdigit() and int(old.name) < epoch:
                remove(old)
        return sent

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return (self._path / f"{epoch:012d}").is_dir()

    def sweep(self, query: str) -> None:
        sweep(self._path)
        for _, output in self._routes:
            output.sweep(query)
