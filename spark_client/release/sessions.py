"""Sessions by gap: a release that aggregates by step, and makes sessions of the steps that have ended.

All rows of one key in a step are of one session, since a step is no longer than the gap. So a batch's rows become
partial rows by step and key as in any release, with the first and the last time beside. Sessions are chains of such
rows, none further than the gap from the next one. A chain of ended steps is a session, and over. Of one that reaches
into a step that has not ended, the ended steps are put together and carried on, so that a long session takes no more
room than a short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER, named
from spark_client.release.aggregation import Aggregation
from spark_client.windows import eventtime

ENDED: Final = "_ended"  #: whether the step of a partial row has
WHOLE: Final = "_whole"  #: whether a chain of them is a session that is over
_FIRST, _LAST = "_first", "_last"  #: of a partial row: the times of its rows, in microseconds
_CHAIN, _RUN = "_chain", "_run"


class Sessions(Aggregation):
    """Aggregates by step and key, with the first and the last time of each."""

    @cached_property
    def _partial(self) -> list[Column]:
        micros, end = eventtime.micros(named(self.rule.at), self.rule.time), F.unix_micros(F.col(f"{TRACKER}.end"))
        changed = F.lit(
            f"the column {self.rule.at!r} of a row is not what its source has tracked it by, and sessions are made of "
            "that time. Nothing of the batch was published: leave the column as it is, put what a step makes of it "
            "into another one, and start the query again with the same checkpoint"
        )
        inside = micros.between(end - F.lit(self.rule.length), end - F.lit(1))
        time = F.when(inside, micros).otherwise(F.raise_error(changed).cast("bigint"))
        return [*super()._partial, F.min(time).alias(_FIRST), F.max(time).alias(_LAST)]

    @cached_property
    def _merge(self) -> list[Column]:
        return [*super()._merge, F.min(_FIRST).alias(_FIRST), F.max(_LAST).alias(_LAST)]

    @cached_property
    def _own_result(self) -> list[Column]:
        rule = self.rule
        scope = [] if rule.scope is None else [F.col("_scope").cast(rule.scope_type).alias(rule.scope)]
        start, end = (eventtime.moment(at, rule.time) for at in (F.col(_FIRST), F.col(_LAST) + F.lit(rule.gap)))
        return [*scope, F.struct(start.alias("start"), end.alias("end")).alias("window"), *map(named, self.plan.keys)]

    def chained(self, steps: DataFrame, flags: Mapping[str, Column]) -> DataFrame:
        """Return what the steps that have ended make: sessions that are over, and what has to be carried on of others.

        Args:
            steps: merged partial rows, with a column `ENDED`; beside those that have ended, all that may join them.
            flags: aggregates of further columns, by name.

        Returns:
            Merged partial rows with a column `WHOLE`, and the flags. The key is that of the newest step.
        """
        keys = ["_scope", *self.plan.keys]
        partition = Window.partitionBy(*map(named, keys))
        ordered = partition.orderBy(_FIRST)
        joins = F.col(_FIRST) - F.lag(_LAST).over(ordered) <= F.lit(self.rule.gap)
        begins = F.when(F.coalesce(joins, F.lit(False)), 0).otherwise(1)
        waits = F.when(F.col(ENDED), 0).otherwise(1)
        chained = steps.withColumn(_CHAIN, begins).withColumn(_CHAIN, F.sum(_CHAIN).over(ordered))
        # What is carried on leaves the steps that have not ended where they are, on either side.
        chained = chained.withColumn(_RUN, F.sum(waits).over(ordered))
        of_chain = Window.partitionBy(*map(named, keys), F.col(_CHAIN))
        chained = chained.withColumn(WHOLE, F.min(ENDED).over(of_chain)).where(ENDED)
        newest = F.max("_key").alias("_key")
        more = [value.alias(name) for name, value in flags.items()]
        return chained.groupBy(*map(named, keys), _CHAIN, _RUN, WHOLE).agg(newest, *self._merge, *more)
