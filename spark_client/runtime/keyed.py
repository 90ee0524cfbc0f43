"""Queries that keep a user's own state in Spark's state store: their batches are what has come of it."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import named
from spark_client.counting.batch import BatchResult
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Output
from spark_client.plan.batches import computed_once
from spark_client.plan.keyed import KeyedPlan
from spark_client.release.keyed import KEY, LATE, MADE, SCOPE
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine
from spark_client.runtime.queries import FunctionQuery, Read
from spark_client.runtime.queryplan import QueryPlan
from spark_client.spark_internals.checkpoints import query_id
from spark_client.windows.belonging import of_steps, tells_of_bad_rows
from spark_client.windows.substreams import Substream
from tracker.client import Outcome

_ROWS = "rows"


class KeyedQuery(FunctionQuery):
    """A query that keeps a user's own state. Tasks count its rows and make its promises.

    Args:
        read: the stream that it reads.
        open_run: opens a run at the tracker: (query id, run id, resume epoch).
        output: where its results go.
        quarantine: where late rows go.
    """

    has_operators = True
    outlives_its_sources = True

    def __init__(
        self,
        read: Read,
        plan: QueryPlan,
        keyed: KeyedPlan,
        open_run: Callable[[str, str, int], Run],
        output: Output,
        quarantine: Quarantine,
    ) -> None:
        super().__init__([read], plan.checkpoint, open_run, plan.received_beside)
        self._keyed = keyed
        self._output = output
        self._quarantine = quarantine

    def begun(self, epoch: int) -> bool:
        query = query_id(self.checkpoint)
        return query is not None and self._output.begun(query, epoch)

    def rest(self) -> None:
        """Let the query go on, as it has to act on what ends."""

    def carry_out(self, batch: DataFrame, run: Run, epoch: int) -> tuple[BatchResult | None, list[Outcome]]:
        run.expect(epoch)  # its tasks report
        try:
            return self._written(batch, run, epoch), []
        except Exception as error:
            if not tells_of_bad_rows(error):
                raise
            raise of_steps(self._keyed.stream.segment) from None

    def sweep(self, query: str) -> None:
        self._output.sweep(query)
        self._quarantine.sweep()

    def _written(self, batch: DataFrame, run: Run, epoch: int) -> BatchResult:
        # Once: what is written must be of the same run of the tasks as the state.
        with computed_once(batch) as kept:
            late = F.col(LATE).isNotNull()
            counted = kept.groupBy(late.alias(LATE), *[F.when(late, named(name)).alias(name) for name in (SCOPE, KEY)])
            numbers = counted.agg(F.count("*").alias(_ROWS)).collect()
            too_late = {
                self._keyed.rule.substream(row[SCOPE], row[KEY]): RowTally(row[_ROWS]) for row in numbers if row[LATE]
            }
            if too_late:
                self._set_aside(kept.where(late), too_late, epoch)
            if any(not row[LATE] for row in numbers):
                self._output.write(results(self._keyed, kept.where(~late)), run.batch(epoch))
        return BatchResult(set_aside={"late": sum(tally.rows for tally in too_late.values())})

    def _set_aside(self, rows: DataFrame, late: dict[Substream, RowTally], epoch: int) -> None:
        name, end = self._keyed.rule.name_and_end(_key(self._keyed))
        data = F.to_json(F.struct(f"{LATE}.*")).alias("data")
        table = rows.select(F.col(SCOPE).alias("scope"), name.alias("name"), end.alias("end_time"), data)
        self._quarantine.put(epoch, "row", table, table, late)


def results(keyed: KeyedPlan, rows: DataFrame) -> DataFrame:
    """Return the results among what has come of a batch, with the columns of their substreams."""
    own = keyed.rule.result_columns(F.col(SCOPE), _key(keyed))
    return rows.select(*own, *[F.col(MADE).getField(name).alias(name) for name in keyed.made.fieldNames()])


def _key(keyed: KeyedPlan) -> Column:
    return keyed.rule.stored(F.col(KEY))
