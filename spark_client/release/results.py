"""Results of merged rows: as they are, or by a user's function, whose first answer stands.

A function may be called again when a batch is repeated, and answer otherwise. So what it has made is published in the
checkpoint first, under the batch's number, and results are written from there: every attempt writes the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import named
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Output
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.batches import Counted
from spark_client.plan.releases import REVISION, ReleasePlan
from spark_client.plan.resultfunctions import ResultFunction
from spark_client.release.aggregation import Aggregation
from spark_client.release.grouped import REPAIR, GroupFunction
from spark_client.spark_internals.errors import has_text, sentence_in
from spark_client.storage.directories import parquet_of, publish, remove, sweep, write_parquet
from spark_client.windows.substreams import Substream

_SHOWN: Final = 3  #: substreams that an error names


class Results:
    """Writer of one release's results.

    Args:
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
        """Remove what a function has made for earlier epochs: the state after this one is published."""
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
            made = _made_by(self._aggregation, function, merged, ended)
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


def _made_by(
    release: Aggregation, function: ResultFunction, merged: DataFrame, ended: Sequence[tuple[Substream, int]]
) -> DataFrame:
    """Return the results that a function makes, beside ``_scope``, ``_key`` and, if there are revisions, ``_revision``.

    Args:
        release: whose rows they are.
        function: it; a function of DataFrames is called now.
        merged: the merged rows, with ``_revision`` and ``_completeness`` where results have them.
        ended: of what they are: the substreams, with the numbers of their revisions.
    """
    if function.kind == "rows":
        return _of_all(release, function, merged, ended)
    return _of_groups(release, function, merged)


def added(plan: ReleasePlan) -> list[Column]:
    """Return the columns that results have beside the release's own, from those of merged rows."""
    return [F.col(f"_{name}").alias(name) for name in plan.added]


def _of_groups(release: Aggregation, function: ResultFunction, merged: DataFrame) -> DataFrame:
    plan = release.plan
    hidden = ["_scope", "_key", *(f"_{name}" for name in plan.added)]
    keys = [named(name) for name in plan.keys]
    values = release.results(merged, [F.col(name) for name in hidden])
    taken = values.select(*map(F.col, hidden), *keys, *map(named, plan.values))
    fields = [taken.schema[name] for name in (*hidden, *plan.keys)]
    call = GroupFunction(function, plan.rule, plan.keys, hidden, taken.schema)
    made = taken.groupBy(*hidden, *keys).applyInArrow(
        lambda rows: call(rows), T.StructType([*fields, *function.schema.fields])
    )
    own = plan.rule.result_columns(F.col("_scope"), F.col("_key"))
    return made.select(*map(F.col, hidden), *own, *keys, *map(named, function.schema.fieldNames()), *added(plan))


def _of_all(
    release: Aggregation, function: ResultFunction, merged: DataFrame, ended: Sequence[tuple[Substream, int]]
) -> DataFrame:
    plan, spark = release.plan, merged.sparkSession
    answer = function.function(release.results(merged, added(plan)))
    if not isinstance(answer, DataFrame):
        raise TypeError(f"it returned {type(answer).__name__}, not a DataFrame of Spark")
    if missing := [field.name for field in function.schema.fields if field.name not in answer.columns]:
        raise TypeError(f"its result lacks the columns {missing}: it has {answer.columns}")
    made = answer.select(*[named(field.name).cast(field.dataType).alias(field.name) for field in function.schema])
    # Each result is of a substream that has ended: else nobody could tell what it is of, or count it.
    own = [*plan.own, *([REVISION] if plan.revisions else [])]
    rows = [(each.scope, plan.rule.key_of(each), number) for each, number in ended]
    table = spark.createDataFrame(rows, f"_scope string, _k {plan.rule.plain_type}, _revision int")
    key = plan.rule.stored(F.col("_k"))
    shown = plan.rule.result_columns(F.col("_scope"), key)
    known = table.select(
        "_scope",
        key.alias("_key"),
        "_revision",
        *[value.alias(f"_own_{place}") for place, value in enumerate([*shown, F.col("_revision")][: len(own)])],
    )
    same = [named(name).eqNullSafe(F.col(f"_own_{place}")) for place, name in enumerate(own)]
    joined = made.join(F.broadcast(known), reduce(Column.__and__, same), "left")
    stray = F.concat(
        F.lit(f"the function {function.name} has made results of no substream that ends in this batch: "),
        F.to_json(F.struct(*map(named, own))),
        F.lit(f". It has to keep {', '.join(own)} as they are. {REPAIR}"),
    )
    scope = F.when(F.col("_scope").isNull(), F.raise_error(stray)).otherwise(F.col("_scope")).alias("_scope")
    revision = ["_revision"] if plan.revisions else []
    return joined.select(scope, "_key", *revision, *map(named, function.schema.fieldNames()))
