"""Which sessions a batch's events end, and what of the others is carried on.

A step has ended when all stretches of time that have it have (`windows.sessions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import named
from spark_client.plan.releases import COMPLETENESS
from spark_client.release.epoch_ends import EpochEnds, completeness_of
from spark_client.release.parts import RowTally
from spark_client.release.sessions import ENDED, WHOLE, Sessions
from spark_client.release.shared_ends import SharedEnds
from spark_client.release.state import PartialState
from spark_client.windows.substreams import Substream

_BY_DRAIN: Final = "_by_drain"
_BEFORE: Final = "_before"


class SessionEnds(SharedEnds):
    """What has ended of a release's sessions.

    Args:
        sessions: the release's aggregation.
        state: the release's.
        segment: whose ends release.
    """

    def __init__(self, sessions: Sessions, state: PartialState, segment: str) -> None:
        super().__init__(sessions.rule, state, segment)
        self._sessions = sessions
        self._carried: tuple[Path, dict[Substream, RowTally]] | None = None

    def _choose(
        self,
        ends: EpochEnds,
        own: Mapping[Substream, list[str]],
        before: Mapping[Substream, tuple[bool, bool]],  # noqa: ARG002
    ) -> None:
        ends.steps = {step: parts for step, parts in own.items() if step in ends.gone}
        newest: dict[str, int] = {}  # by scope: the end of its newest step that is over
        for step in ends.steps:
            newest[step.scope] = max(newest.get(step.scope, _end(step)), _end(step))
        # What begins later than a gap after all that is over joins none of it.
        ends.beside = {
            step: parts
            for step, parts in own.items()
            if step not in ends.gone and step.scope in newest and _end(step) <= newest[step.scope] + self._rule.gap
        }

    @contextmanager
    def results(self, ends: EpochEnds, epoch: int, spark: SparkSession) -> Iterator[DataFrame | None]:
        """Yield the merged rows of the sessions that are over; what of others is carried on is written before."""
        self._carried = None  # of a drain that failed
        if not ends.steps:
            yield None
            return
        chained = self._sessions.chained(self._steps(ends, spark), {each: F.max(each) for each in (_BY_DRAIN, _BEFORE)})
        if self._sessions.plan.completeness:
            chained = chained.withColumn(f"_{COMPLETENESS}", _completeness())
        chained = chained.persist()  # it is read twice
        try:
            columns = map(named, self._sessions.plan.part_schema.fieldNames())
            part = self._state.write_carried(epoch, chained.where(~F.col(WHOLE)).select(*columns))
            groups, _ = self._sessions.rollup(part, [], labels=False)
            self._carried = part, {step: RowTally(int(values["_rows"])) for step, values in groups}
            whole = chained.where(WHOLE)
            yield None if whole.isEmpty() else whole
        finally:
            chained.unpersist()

    def _steps(self, ends: EpochEnds, spark: SparkSession) -> DataFrame:
        """Return the merged rows of steps that have ended, and of those that may join them."""
        asked = self._sessions.plan.completeness
        alike: dict[tuple[bool, bool, bool], dict[Substream, list[str]]] = {}
        for step, own in ends.steps.items():
            flags = [self._state.ended[each] for each in self._tracked[step]] if asked else []
            by_drain, before = any(drain for drain, _ in flags), any(after for _, after in flags)
            alike.setdefault((True, by_drain, before), {})[step] = own
        if ends.beside:
            alike[False, False, False] = ends.beside
        rows = [
            self._sessions.merge(self._sessions.selected(spark, self._state.selections(steps)))
            .withColumn(ENDED, F.lit(ended))
            .withColumn(_BY_DRAIN, F.lit(by_drain))
            .withColumn(_BEFORE, F.lit(before))
            for (ended, by_drain, before), steps in alike.items()
        ]
        return reduce(DataFrame.unionByName, rows)

    def _keep(self, ends: EpochEnds) -> None:
        if self._carried is not None:
            part, rows = self._carried
            self._carried = None
            self._state.carry(part, rows)
            ends.released_steps -= sum(tally.rows for tally in rows.values())


def _completeness() -> Column:
    """Return what of a session a result is of: by the steps that it has."""
    value = F.lit(completeness_of(continues=False, by_drain=False))
    for before, by_drain in ((False, True), (True, False), (True, True)):  # the last that holds counts
        holds = F.lit(True)
        for flag, name in ((before, _BEFORE), (by_drain, _BY_DRAIN)):
            holds = holds & F.col(name) if flag else holds
        value = F.when(holds, F.lit(completeness_of(before, by_drain))).otherwise(value)
    return value


def _end(step: Substream) -> int:
    assert step.end_time is not None
    return step.end_time
