"""Aggregates that can be taken in parts: of each batch first, then of the parts.

A release keeps one partial row for each substream, key and batch, and merges these natively when the substream has
ended. So it serves aggregates that decompose into a few values which can be added to one another. The result equals
that of Spark's own aggregate over all rows at once, its type included. Nothing here looks at data.

A family of aggregates is a module of functions. `known_as` names the function of Spark that each stands for, so that
a user's column, such as ``F.avg("delay")``, finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, column, names_of
from spark_client.errors import UsageError, check_kind

_Finish: TypeAlias = Callable[..., Column]
_Make = TypeVar("_Make", bound="Callable[..., Aggregate]")


class Known(NamedTuple):
    """The aggregate that a function of Spark's is taken for.

    Attributes:
        make: returns the aggregate over columns or their names.
        shown: whether Spark's text for a column has all that the aggregate is made with.
    """

    make: Callable[..., Aggregate]
    columns: int = 1
    shown: bool = True


BY_NAME: Final[dict[str, Known]] = {}  #: by the name of Spark's function; filled by the modules of the families


def known_as(*names: str, columns: int = 1, shown: bool = True) -> Callable[[_Make], _Make]:
    """Enter the decorated function into `BY_NAME`.

    Args:
        names: of the functions of Spark that it stands for, in small letters.
        columns: how many columns it takes.
        shown: whether Spark's text for a column has all that the aggregate is made with.
    """

    def enter(make: _Make) -> _Make:
        BY_NAME.update(dict.fromkeys(names, Known(make, columns, shown)))
        return make

    return enter


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a release, as the functions of `spark_client.aggregates` make it.

    Attributes:
        native: what Spark itself would compute in one go; it gives the result's type.
        partial: the values to keep of each batch.
        merge: how each of them is made of those of other batches: aggregates of all the parts, in the order of
            `partial`.
        finish: the result, from the merged values.
        reads: the columns that it is over; None: an expression, whose are not known.
        overflowed: whether the merged values have overflowed, so that Spark fails or gives null; None: they cannot.
        fails: whether Spark fails on an overflow without ANSI mode, too.
        form: names the form of the partial values where their types alone do not.
        for_type: makes the aggregate for a type of `over`; None: it is the same for all types.
        over: what it is over, where that matters.
        made: makes the same of what a function makes of each value that it is over; None: it cannot.
        combined: what it is computed from, if that is other aggregates: a function of their results, and they.
        called: how a checkpoint calls it, if not as `native`.
        from_value: the partial values of a result so far, where they follow from that; None: they do not.
        legacy: `finish` where spark.sql.legacy.statisticalAggregate is on; None: it makes no difference.
    """

    native: Column
    partial: tuple[Column, ...]
    merge: tuple[Callable[..., Column], ...]
    finish: _Finish = lambda value: value
    reads: frozenset[str] | None = None
    overflowed: _Finish | None = None
    fails: bool = False
    form: str = ""
    for_type: Callable[[T.DataType], Aggregate] | None = None
    over: Column | None = None
    called: str | None = None
    legacy: _Finish | None = None
    from_value: Callable[[Column], Sequence[Column]] | None = None
    made: Callable[[Callable[[Column], Column]], Aggregate] | None = None
    combined: tuple[_Finish, tuple[Aggregate, ...]] | None = None

    def where(self, condition: ColumnOrName) -> Aggregate:
        """Return the same over the rows in which a condition is true: ``FILTER (WHERE …)`` in SQL.

        Args:
            condition: a column, or a text in SQL, as `DataFrame.where` takes it.

        Raises:
            UsageError: it is an aggregate that was made by hand.

        >>> aggregates.avg("delay").where("not cancelled")                                # doctest: +SKIP
        """
        asked = F.expr(condition) if isinstance(condition, str) else condition
        return self.changed(lambda value: F.when(asked, value))

    def changed(self, change: Callable[[Column], Column]) -> Aggregate:
        """Return the same over other values, which a function makes of those that this is over."""
        if self.made is None:
            raise UsageError(f"{self.native}: only the functions of spark_client.aggregates make what has .where(…)")
        return self.made(change)

    def __add__(self, other: Aggregate | float | Decimal) -> Aggregate:
        return combine(lambda one, two: one + two, self, _constant(other))

    def __sub__(self, other: Aggregate | float | Decimal) -> Aggregate:
        return combine(lambda one, two: one - two, self, _constant(other))

    def __mul__(self, other: Aggregate | float | Decimal) -> Aggregate:
        return combine(lambda one, two: one * two, self, _constant(other))

    def __truediv__(self, other: Aggregate | float | Decimal) -> Aggregate:
        return combine(lambda one, two: one / two, self, _constant(other))

    @property
    def description(self) -> str:
        """The text by which a checkpoint knows the aggregate."""
        return self.called or str(self.native)


def remade(make: Callable[..., Aggregate], *values: ColumnOrName) -> Aggregate:
    """Return an aggregate that can be made again over other values, as `Aggregate.where` does.

    Args:
        make: returns the aggregate over columns, as many as there are `values`.
    """

    def made(change: Callable[[Column], Column]) -> Aggregate:
        return remade(make, *[change(column(value)) for value in values])

    return replace(make(*map(column, values)), reads=names_of(values), made=made)


def combine(function: Callable[..., Column], *aggregates: Aggregate) -> Aggregate:
    """Return an expression over the results of other aggregates. ``+``, ``-``, ``*`` and ``/`` are written as such.

    Args:
        function: of the results, as columns of the types that Spark gives them.

    >>> aggregates.combine(lambda late, all: F.round(100 * late / all, 1),                 # doctest: +SKIP
    ...     aggregates.count_if(F.col("delay") > 15), aggregates.count())
    """
    for each in aggregates or [None]:
        advice = "give aggregates of spark_client.aggregates after the function, such as aggregates.sum('amount')"
        check_kind("combine: an aggregate", each, Aggregate, advice)

    def made(change: Callable[[Column], Column]) -> Aggregate:
        return combine(function, *[each.changed(change) for each in aggregates])

    reads = [each.reads for each in aggregates]
    known = [names for names in reads if names is not None]
    return Aggregate(
        function(*[each.native for each in aggregates]),
        partial=(),
        merge=(),
        reads=frozenset().union(*known) if len(known) == len(reads) else None,
        made=made,
        combined=(function, aggregates),
    )


def _constant(value: Aggregate | float | Decimal) -> Aggregate:
    """Return an aggregate, or a number as one: of which nothing is kept."""
    if isinstance(value, Aggregate):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise UsageError(f"{value!r} is neither an aggregate nor a number: use aggregates.combine(…)")
    number = F.lit(value)

    def made(_: Callable[[Column], Column]) -> Aggregate:
        return replace(constant)

    constant = Aggregate(number, (), (), lambda: number, frozenset(), made=made)
    return constant


def finished(aggregate: Aggregate, result: T.StructField, parts: Sequence[Column]) -> Column:
    """Return the result, from merged parts, as Spark gives it; null, or wrapped, if it has overflowed.

    Args:
        result: its type, and whether it may be null.
        parts: the columns of the merged parts.
    """
    value = aggregate.finish(*parts).cast(result.dataType)
    if result.nullable:
        return value
    nothing = F.array() if isinstance(result.dataType, T.ArrayType) else F.lit(0)
    return F.coalesce(value, nothing.cast(result.dataType))
