"""Percentiles that can be merged: exact ones, of all values, and those of a sketch of fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate, known_as, remade
from spark_client.columns import ColumnOrName
from spark_client.errors import UsageError, check_faults, check_whole

_WHOLE_NUMBERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@known_as("percentile", shown=False)
def percentile(value: ColumnOrName, percentage: float | Sequence[float]) -> Aggregate:
    """Return the exact percentile, between two values in proportion, as Spark's own. The state grows with the rows.

    Args:
        value: numbers; null is none.
        percentage: from 0 to 1; or several, and the result is an array.

    >>> aggregates.percentile("delay", [0.5, 0.99])                                        # doctest: +SKIP
    """
    shares = _checked("percentile", percentage)
    wanted = F.array(*map(F.lit, shares)) if isinstance(shares, list) else F.lit(shares)
    return remade(lambda values: _exact(F.percentile(values, wanted), values, shares), value)


@known_as("median")
def median(value: ColumnOrName) -> Aggregate:
    """Return the exact median of numbers, as `percentile`."""
    return remade(lambda values: _exact(F.median(values), values, 0.5), value)


def approx_percentile(value: ColumnOrName, percentage: float | Sequence[float], k: int = 200) -> Aggregate:
    """Estimate the percentile: a value of the rows, from a KLL sketch of some kilobytes. Needs Spark 4.1.2 or later.

    Its rank is off by about 1.3 % of the rows with `k` 200, as likely as not by less; it is another estimate than that
    of Spark's own ``percentile_approx``, whose summary cannot be merged, and may differ from run to run.

    Args:
        value: numbers; decimals have to be cast to ``double``. Null and NaN are none.
        percentage: from 0 to 1; or several, and the result is an array.
        k: the size of the sketch, 8 to 65,535: the error is about inverse to it.
    """
    check_whole("approx_percentile: k", k, 8, 65_535)
    shares = _checked("approx_percentile", percentage)
    return remade(lambda values: _approx_percentile(values, shares, k), value)


def _checked(what: str, percentage: float | Sequence[float]) -> float | list[float]:
    listed = [percentage] if isinstance(percentage, int | float) else list(percentage)
    if not listed or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in listed):
        raise UsageError(f"{what}: percentage={percentage!r} is not a number from 0 to 1, or several of them")
    return float(percentage) if isinstance(percentage, int | float) else [float(each) for each in listed]


def _exact(native: Column, values: Column, percentage: float | list[float]) -> Aggregate:
    def at(ordered: Column, share: float) -> Column:
        position = (F.size(ordered) - 1).cast("double") * F.lit(share)
        lower = F.floor(position)
        low, high = (F.get(ordered, place.cast("int")) for place in (lower, F.ceil(position)))
        return F.when(low == high, low).otherwise(low + (high - low) * (position - lower))

    def found(ordered: Column) -> Column:
        if isinstance(percentage, list):
            return F.array(*[at(ordered, share) for share in percentage])
        return at(ordered, percentage)

    def finish(collected: Column) -> Column:
        # Within a function of one array, it is sorted once, though it is looked at several times.
        answers = F.transform(F.array(F.array_sort(collected)), found)
        return F.when(F.size(collected) > 0, F.get(answers, F.lit(0)))

    def for_type(kind: T.DataType) -> Aggregate:
        if isinstance(kind, T.DayTimeIntervalType | T.YearMonthIntervalType):
            raise UsageError(
                "percentiles of intervals are not merged here: put their seconds, or months, into a column"
            )
        return exact

    exact = Aggregate(
        native,
        (F.collect_list(values.cast("double")),),
        (lambda parts: F.flatten(F.collect_list(parts)),),
        finish,
        for_type=for_type,
        over=values,
        called=f"all values of {values}",
    )
    return exact


def _approx_percentile(values: Column, percentage: float | list[float], k: int) -> Aggregate:
    native = F.percentile_approx(values, percentage)

    def for_type(kind: T.DataType) -> Aggregate:
        check_faults(
            "approx_percentile:",
            (
                not hasattr(F, "kll_merge_agg_double"),
                "it needs Spark 4.1.2 or later, which has the sketches: use aggregates.percentile, or keep the rows: "
                "release(…, columns=[…]).apply(…)",
            ),
            (
                not isinstance(kind, (*_WHOLE_NUMBERS, T.FloatType, T.DoubleType)),
                f"a sketch takes numbers, not {kind.simpleString()}: cast them to double",
            ),
        )
        whole = isinstance(kind, _WHOLE_NUMBERS)
        suffix, values_kept = ("bigint", values.cast("bigint")) if whole else ("double", values.cast("double"))
        functions: Any = F
        sketch, merged, quantile = (
            getattr(functions, f"kll_{name}_{suffix}") for name in ("sketch_agg", "merge_agg", "sketch_get_quantile")
        )
        number = getattr(functions, f"kll_sketch_get_n_{suffix}")

        def finish(kept: Column) -> Column:
            wanted = percentage if isinstance(percentage, list) else [percentage]
            found = [quantile(kept, F.lit(share)) for share in wanted]
            return F.when(number(kept) > 0, F.array(*found) if isinstance(percentage, list) else found[0])

        return Aggregate(
            native,
            (sketch(values_kept if whole else F.when(~F.isnan(values_kept), values_kept), k),),
            (partial(merged, k=k),),
            finish,
            form=f"a KLL sketch of {suffix} with k={k}",
            called=f"a sketch of {values}",
        )

    return Aggregate(native, (), (), for_type=for_type, over=values)
