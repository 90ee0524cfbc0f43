"""Results of merged rows: as they are, or by a user's function, whose first answer stands.

A function may be called again when a batch is repeated, and answer otherwise. So what it has made is kept in the
checkpoint first, a note of the batch names the attempt that stands, and results are written from there: every attempt
writes the same ones.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import named, nullable
from spark_client.destinations.destination import Output
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.batches import BatchId, Counted
from spark_client.plan.releases import REVISION, ReleasePlan, ResultFunction
from spark_client.release.aggregation import Aggregation
from spark_client.release.grouped import REPAIR, GroupFunction
from spark_client.spark_internals.errors import has_text, sentence_in
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.directories import may_appear, parquet_of
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream

#: A note, what a function has made, and both as earlier versions have published them or left them half written.
_MADE: Final = re.compile(r"_?(?:epoch[=-])?(-?\d+)[./].*")
_SHOWN: Final = 3  #: substreams that an error names


class Results:
    """Writer of one release's results.

    Args:
        folder: for what a function has made, in the checkpoint.
        sent_on: whether they go into a channel.
    """

    def __init__(self, aggregation: Aggregation, output: Output, folder: Folder, sent_on: bool) -> None:
        self._aggregation = aggregation
        self._plan = aggregation.plan
        self._output = output
        self._folder = folder
        self._there: dict[str, int] | None = None  # what is in it, with its epochs; None: not listed yet
        self._sent_on = sent_on

    def write(
        self,
        merged: DataFrame,
        ended: Iterable[tuple[Substream, int]],
        job: str,
        batch: BatchId,
        epoch: int,
        counts: bool,
    ) -> tuple[Counted, dict[tuple[Substream, int], int]]:
        """Write the results of an epoch, or find them written.

        Args:
            merged: the merged rows, with ``_revision`` and ``_completeness`` where results have them.
            ended: of what they are: the substreams, with the numbers of their revisions.
            batch: as which they are written.
            epoch: the number of the act that writes them.
            counts: whether results have to be counted.

        Returns:
            The contents sent on; and how many results there are by substream and revision, if that is asked for.

        Raises:
            TrackingError: the function has failed.
        """
        release = self._aggregation
        if self._plan.function is None:
            results = release.results(merged, added(self._plan)) if not self._sent_on else release.tracked(merged, job)
            counted = merged
        else:
            counted = self._made(self._plan.function, merged, sorted(ended, key=str), epoch)
            results = counted.select(*map(named, self._plan.columns))
        sent = self._output.write(results, batch)
        return sent, release.results_by_substream(counted) if counts else {}

    def write_none(self, merged: DataFrame, batch: BatchId) -> None:
        """Write that a batch without results completes something, where an output keeps that.

        Args:
            merged: no rows, with the columns of merged ones.
        """
        function = self._plan.function
        if function is None:
            rows = self._aggregation.results(merged, added(self._plan))
        elif function.kind == "rows":
            rows = merged.sparkSession.createDataFrame([], function.schema)
        else:
            rows = _of_groups(self._aggregation, function, merged).select(*map(named, self._plan.columns))
        self._output.write(rows, batch)

    def published(self, epoch: int) -> None:
        """Remove what a function has made for other epochs: the state after this one is published."""
        if self._plan.function is None:
            return
        there = self._names()
        for name in [name for name, made in there.items() if made != epoch]:
            if name.endswith("/"):
                self._folder.remove(name[:-1])
            else:
                self._folder.delete([name])
            del there[name]

    def _names(self) -> dict[str, int]:
        """Return the names of what is in the folder, with their epochs; it is listed once."""
        if self._there is None:
            self._there = {name: int(found[1]) for name in self._folder.names() if (found := _MADE.fullmatch(name))}
        return self._there

    def _keep(self, made: DataFrame, epoch: int) -> list[str]:
        """Write what a function makes, unless an earlier attempt of the epoch has, and return where what stands is: its
        files, or their folder."""
        there, note = self._names(), f"{epoch}.json"
        if (earlier := f"epoch={epoch}") + "/" in there:  # as earlier versions have published it
            return [self._folder.url(earlier)]
        stands = self._folder.read(note)
        if stands is None:
            own = f"{epoch}.{uuid.uuid4().hex[:8]}"
            files = self._folder.write(own, Parquet(made))
            there |= {f"{own}/": epoch, note: epoch}
            may_appear()
            stands = self._folder.create(note, [f"{own}/{file}" for file in files] or own)
        return list(map(self._folder.url, [stands] if isinstance(stands, str) else stands))

    def _made(
        self, function: ResultFunction, merged: DataFrame, ended: list[tuple[Substream, int]], epoch: int
    ) -> DataFrame:
        """Return what the function makes of an epoch's rows, or has made, beside ``_scope``, ``_key`` and, if there are
        revisions, ``_revision``."""
        try:
            if function.kind == "rows":
                made = _of_all(self._aggregation, function, merged, ended)
            else:
                made = _of_groups(self._aggregation, function, merged)
            kept = self._keep(made, epoch)
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
        return parquet_of(merged.sparkSession, nullable(made.schema)).parquet(*kept)


def added(plan: ReleasePlan) -> list[Column]:
    """Return the columns that results have beside the release's own, from those of merged rows."""
    return [F.col(f"_{name}").alias(name) for name in plan.added]


def _of_groups(release: Aggregation, function: ResultFunction, merged: DataFrame) -> DataFrame:
    plan = release.plan
    hidden = ["_scope", "_key", *plan.rule.marks, *(f"_{name}" for name in plan.added)]
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
    if plan.rule.marks:  # what results are of is known of merged rows alone
        table = plan.rule.finished(merged).select("_scope", "_key", F.lit(0).alias("_revision"), *plan.rule.marks)
        table = table.distinct()
    else:
        rows = [(each.scope, plan.rule.key_of(each), number) for each, number in ended]
        table = spark.createDataFrame(rows, f"_scope string, _k {plan.rule.plain_type}, _revision int")
        table = table.withColumn("_key", plan.rule.stored(F.col("_k")))
    shown = plan.rule.result_columns(F.col("_scope"), F.col("_key"))
    known = table.select(
        "_scope",
        "_key",
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
