"""Tracked streams: where rows come from, and what a query does with them.

A tracked stream is a streaming DataFrame that knows its segment. What is done to it row by row (filters, joins with
static tables, new columns) is written as on a DataFrame and carried out inside each batch, between the place where rows
are counted as received and the place where their children are counted as sent. So a row that a filter drops is still
accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.channels.files import Channel
from spark_client.counting.probes import Direction
from spark_client.errors import UsageError
from spark_client.plan.belonging import BAD_ROWS, Belonging
from spark_client.plan.fileforms import Told
from spark_client.plan.fronts import Front
from spark_client.plan.labels import positional_label, source_label
from spark_client.plan.substreams import TRACKER, Substreams
from spark_client.spark_internals.observations import observe

if TYPE_CHECKING:
    from spark_client.api.session import Tracking
    from spark_client.api.writer import TrackedWriter

Step: TypeAlias = Callable[[DataFrame], DataFrame]

_BRING_ROWS: Final = ("right", "rightouter", "outer", "full", "fullouter")
_BELL: Final = "_tracker_bell"
#: Methods of DataFrame that work row by row, so that applying them to each batch is applying them to the stream.
_ROW_BY_ROW: Final = frozenset(
    [
        "select",
        "selectExpr",
        "where",
        "filter",
        "withColumn",
        "withColumns",
        "withColumnRenamed",
        "withColumnsRenamed",
        "drop",
        "join",
        "crossJoin",
        "fillna",
        "dropna",
        "replace",
        "hint",
        "unpivot",
    ]
)


class Input(Protocol):
    """Where a tracked query takes its rows from."""

    segment: str
    rule: Substreams
    direction: Direction
    front: Front | None
    told: Told | None  #: the columns that tell where a row belongs, if they are plain ones
    named: bool  #: whether its rows have labels that anybody can compute again

    @property
    def belonging(self) -> Belonging | None:
        """Which of its rows belong to a substream; None: all do, their sender has seen to that."""
        ...

    def stream(self, bell: DataFrame | None, aggregates: Mapping[str, Column] | None) -> DataFrame:
        """What the query reads.

        Args:
            bell: a stream whose rows only make a batch happen.
            aggregates: of all its own rows, that are to be observed; None: none are.
        """
        ...

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        """The rows of a batch of `stream`; None if it is known that there are none."""
        ...

    def all_rows(self, batch: DataFrame) -> DataFrame:
        """The same with those that are set aside."""
        ...

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:
        """The same with `_tracker`."""
        ...

    def native(self) -> DataFrame:
        """The tracked rows as a streaming DataFrame, for queries that Spark runs without `foreachBatch`."""
        ...


class Source:
    """Rows that enter the job here."""

    direction: Direction = "passing"

    def __init__(
        self,
        df: DataFrame,
        segment: str,
        rule: Substreams,
        keys: tuple[Column, Column, Column],
        belongs: Belonging,
        identity: Sequence[Column],
        front: Front,
        salt: str,
        reads: frozenset[str] | None,
        told: Told | None,
    ) -> None:
        self.segment = segment
        self.told = told
        self.rule = rule
        self.front: Front | None = front
        self.belonging = belongs
        self._df = df
        self._keys = keys
        self._identity = identity
        self.named = bool(identity)
        self._salt = salt
        self._reads = reads  # the columns that make substreams and labels; None: not known
        self._rings = False

    def stream(self, bell: DataFrame | None, aggregates: Mapping[str, Column] | None) -> DataFrame:
        self._rings = bell is not None
        if self.belonging.sets_aside:
            aggregates = {**(aggregates or {}), BAD_ROWS: self.belonging.number_of_bad}
        rows = observe(self._df, self.segment, aggregates)
        if bell is None:
            return rows
        nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
        rings = bell.select(*nothing, F.lit(True).alias(_BELL))
        return rows.withColumn(_BELL, F.lit(False)).unionByName(rings)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        rows = self.all_rows(batch)
        return rows.where(self._good) if self.belonging.sets_aside else rows

    def all_rows(self, batch: DataFrame) -> DataFrame:
        """The rows of a batch of `stream`, those that belong to no substream among them."""
        return batch.where(self._not_the_bell).drop(_BELL) if self._rings else batch

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:
        if not labels:
            tracked = self._unlabelled
        elif self._identity:
            tracked = self._labelled
        else:
            tracked = self._struct(positional_label(self._salt, query, epoch))
        return rows.withColumn(TRACKER, tracked)

    def prune(self, used: frozenset[str] | None) -> None:
        """Reads only the columns that are used, if it is known which: what makes substreams and labels is kept.

        Spark cannot see through `foreachBatch` which columns are used there, and would read all of them.

        Args:
            used: by what is done with the rows.
        """
        own = self._reads
        watched = frozenset[str]() if self.front is None else self.front.reads
        if self.belonging.sets_aside:
            return  # rows that are set aside keep all that they have
        if used is not None and own is not None and watched is not None:
            needed = used | own | watched
            if needed <= set(self._df.columns):
                self._df = self._df.select(*[F.col(name) for name in self._df.columns if name in needed])

    def native(self) -> DataFrame:
        return self._df.withColumn(TRACKER, self._labelled if self._identity else self._unlabelled)

    # Made once: a column costs some calls into the JVM, which a small batch would notice.

    @cached_property
    def _not_the_bell(self) -> Column:
        return ~F.col(_BELL)

    @cached_property
    def _good(self) -> Column:
        return self.belonging.good

    @cached_property
    def _unlabelled(self) -> Column:
        return self._struct(F.lit(None).cast("long"))

    @cached_property
    def _labelled(self) -> Column:
        return self._struct(source_label(self._salt, self._identity))

    def _struct(self, label: Column) -> Column:
        scope, name, end = self._keys
        return F.struct(scope.alias("scope"), name.alias("name"), end.alias("end"), label.alias("label"))


class Received:
    """Rows that another query has sent into a channel."""

    direction: Direction = "received"
    named = True
    belonging: Belonging | None = None

    def __init__(self, tracking: Tracking, channel: Channel, max_epochs_per_trigger: int | None) -> None:
        self.segment = channel.segment
        self.front: Front | None = None
        self.exact = channel.exact
        _, self.rule = channel.description()
        self.told = channel.form if isinstance(channel.form, Told) else None
        self._tracking = tracking
        self._channel = channel
        self._limit = max_epochs_per_trigger

    def stream(self, bell: DataFrame | None, aggregates: Mapping[str, Column] | None) -> DataFrame:  # noqa: ARG002
        return self._channel.stream(self._tracking.spark, bell, self._limit)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        return self._channel.rows(batch, query, epoch)

    def all_rows(self, batch: DataFrame) -> DataFrame:
        return batch

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:  # noqa: ARG002
        return rows

    def native(self) -> DataFrame:
        return self._channel.native(self._tracking.spark, self._limit)


class TrackedStream:
    """A stream of a tracked job, as `Tracking.source` and `Tracking.receive` give it.

    Has the methods of a DataFrame that work row by row (``select``, ``where``, ``withColumn``, ``join`` with a static
    table, …) and ``transform`` for all others of that kind. Name columns with ``F.col``; keep the column ``_tracker``
    in a ``select``. Stateful operators (``groupBy``, ``dropDuplicates``, joins of two streams) belong to
    `Tracking.release` or `Tracking.with_watermark`.

    Attributes:
        segment: that its rows are received from.
        columns: of its rows.
    """

    def __init__(self, tracking: Tracking, origin: Input, steps: tuple[Step, ...], df: DataFrame) -> None:
        self.tracking = tracking
        self.input = origin
        self.steps = steps
        self.df = df  #: a streaming DataFrame with these columns: what steps, and names of columns, are tried on

    @property
    def segment(self) -> str:
        return self.input.segment

    @property
    def columns(self) -> list[str]:
        return list(self.df.columns)

    def __repr__(self) -> str:
        return f"TrackedStream(segment={self.segment!r}, columns={self.columns})"

    def transform(self, step: Step, *args: Any, **kwargs: Any) -> TrackedStream:
        """Applies a function from DataFrame to DataFrame that works row by row, as ``DataFrame.transform`` does.

        It is called once now, on the stream, and again on every batch.

        Raises:
            UsageError: the result has lost the column `_tracker`.

        >>> flights.transform(lambda df: df.where("distance > 0").join(planes, "tailnum", "left"))  # doctest: +SKIP
        """

        def applied(df: DataFrame) -> DataFrame:
            return step(df, *args, **kwargs)

        df = applied(self.df)
        if TRACKER not in df.columns:
            raise UsageError(
                f"the column {TRACKER!r} was lost on the way: it carries label and substream. Keep it, for example "
                f"select({TRACKER!r}, …)"
            )
        return TrackedStream(self.tracking, self.input, (*self.steps, applied), df)

    def apply(self, rows: DataFrame) -> DataFrame:
        """What the steps make of a batch's rows."""
        for step in self.steps:
            rows = step(rows)
        return rows

    def __getattr__(self, name: str) -> Callable[..., TrackedStream]:
        if name in _ROW_BY_ROW:

            def method(*args: Any, **kwargs: Any) -> TrackedStream:
                if any(isinstance(value, TrackedStream) for value in (*args, *kwargs.values())):
                    raise UsageError(
                        "two streams are joined with Spark's own operator: tracking.with_watermark(one, …).join("
                        "tracking.with_watermark(other, …), …)"
                    )
                how = kwargs.get("how", args[2] if name == "join" and len(args) > 2 else None)
                if name == "join" and str(how).lower().replace("_", "") in _BRING_ROWS:
                    raise UsageError(
                        f"join(…, {how!r}) makes rows of the other side alone, which belong to no substream: an inner "
                        "or a left join keeps to the stream's own"
                    )
                return self.transform(lambda df: getattr(df, name)(*args, **kwargs))

            return method
        if hasattr(DataFrame, name):
            raise AttributeError(
                f"a tracked stream has no {name!r}: it is not known to work row by row. Use transform(lambda df: "
                f"df.{name}(…)) if it does; aggregate with tracking.release(…), or with Spark's own operators after "
                "tracking.with_watermark(…)"
            )
        raise AttributeError(f"'TrackedStream' has no attribute {name!r}")

    def __getitem__(self, name: str) -> Column:
        raise UsageError(f"write F.col({name!r}): a tracked stream is many DataFrames, one for each batch")

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        from spark_client.api.writer import TrackedWriter

        return TrackedWriter(self.tracking, self)
