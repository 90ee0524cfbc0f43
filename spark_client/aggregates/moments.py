"""Aggregates by moments: variances, deviations, covariances, correlations. Kept so that parts merge without cancelling.

The sums of squares of large numbers cancel out. So what is kept is a count, means, and sums of products of deviations
from the means, as Spark keeps them; they are merged by the pairwise method (Chan, Golub and LeVeque, 1979), as Spark
merges those of its tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate, known_as, remade
from spark_client.columns import ColumnOrName

_Merged: TypeAlias = Callable[[Column], Column]

_NAN: Final = float("nan")


@known_as("var_samp", "variance")
def var_samp(value: ColumnOrName) -> Aggregate:
    """Return the sample variance; null of one value."""
    return remade(partial(_deviation, F.var_samp, _sample(lambda m: m["m2"] / (m["n"] - 1))), value)


@known_as("var_pop")
def var_pop(value: ColumnOrName) -> Aggregate:
    """Return the variance of all there are."""
    return remade(partial(_deviation, F.var_pop, _all(lambda m: m["m2"] / m["n"])), value)


@known_as("stddev_samp", "stddev", "std")
def stddev_samp(value: ColumnOrName) -> Aggregate:
    """Return the sample standard deviation; null of one value."""
    return remade(partial(_deviation, F.stddev_samp, _sample(lambda m: F.sqrt(m["m2"] / (m["n"] - 1)))), value)


@known_as("stddev_pop")
def stddev_pop(value: ColumnOrName) -> Aggregate:
    """Return the standard deviation of all there are."""
    return remade(partial(_deviation, F.stddev_pop, _all(lambda m: F.sqrt(m["m2"] / m["n"]))), value)


@known_as("covar_samp", columns=2)
def covar_samp(one: ColumnOrName, other: ColumnOrName) -> Aggregate:
    """Return the sample covariance of rows that have both values; null of one row."""
    return remade(partial(_joint, F.covar_samp, _sample(lambda m: m["c"] / (m["n"] - 1))), one, other)


@known_as("covar_pop", columns=2)
def covar_pop(one: ColumnOrName, other: ColumnOrName) -> Aggregate:
    """Return the covariance of all rows that have both values."""
    return remade(partial(_joint, F.covar_pop, _all(lambda m: m["c"] / m["n"])), one, other)


@known_as("corr", columns=2)
def corr(one: ColumnOrName, other: ColumnOrName) -> Aggregate:
    """Return Pearson's correlation of rows that have both values; null of one row, or where one is constant."""
    # Spark's own divides by a deviation of zero without an error in ANSI mode, too.
    finish = _sample(lambda m: F.try_divide(m["c"], F.sqrt(m["m2"] * m["k2"])))
    return remade(partial(_joint, F.corr, finish), one, other)


variance = var_samp
stddev = stddev_samp


def _all(finish: _Merged) -> tuple[_Merged, bool]:
    """Return a formula that holds for one row, too."""
    return lambda m: F.when(m["n"] > 0, finish(m)), False


def _sample(finish: _Merged) -> tuple[_Merged, bool]:
    """Return a formula for two rows or more: of one, null; or NaN, as before Spark 3.1, if the session is set so."""
    return lambda m: F.when(m["n"] > 1, finish(m)), True


def _deviation(native: Callable[[Column], Column], finish: tuple[_Merged, bool], value: Column) -> Aggregate:
    values = value.cast("double")
    parts = F.struct(
        F.count(values).cast("double").alias("n"),
        _mean(values).alias("mean"),
        F.coalesce(F.regr_sxx(values, values), F.lit(0.0)).alias("m2"),
    )
    return _kept(native(value), parts, finish, str(native(values)))


def _joint(
    native: Callable[[Column, Column], Column], finish: tuple[_Merged, bool], one: Column, other: Column
) -> Aggregate:
    # Rows with both. As in Spark's own, the second is cast only where there is a first: a cast may fail.
    x = one.cast("double")
    y = F.when(x.isNotNull(), other.cast("double"))
    x = F.when(y.isNotNull(), x)

    def sum_of(products: Column) -> Column:
        return F.coalesce(products, F.lit(0.0))

    parts = F.struct(
        F.count(x).cast("double").alias("n"),
        _mean(x).alias("mean"),
        sum_of(F.regr_sxx(x, x)).alias("m2"),
        _mean(y).alias("other"),
        sum_of(F.regr_sxx(y, y)).alias("k2"),
        sum_of(F.regr_sxy(y, x)).alias("c"),
    )
    whole = native(one, other)
    return _kept(whole, parts, finish, str(whole), two=True)


def _mean(values: Column) -> Column:
    """Keep the mean of equal values at that value, though their sum may be rounded: so their deviation is 0, as
    Spark's."""
    least, most = F.min(values), F.max(values)
    return F.coalesce(F.when(least == most, least).otherwise(F.avg(values)), F.lit(0.0))


def _kept(native: Column, parts: Column, finish: tuple[_Merged, bool], called: str, two: bool = False) -> Aggregate:
    formula, by_two = finish
    names = ["n", "mean", "m2", *(["other", "k2", "c"] if two else [])]

    def add(one: Column, more: Column) -> Column:
        n = one["n"] + more["n"]
        delta = more["mean"] - one["mean"]
        share, weight = delta / n, one["n"] * more["n"]
        sums = {
            "n": n,
            "mean": one["mean"] + share * more["n"],
            "m2": one["m2"] + more["m2"] + delta * share * weight,
        }
        if two:
            turn = more["other"] - one["other"]
            sums["other"] = one["other"] + turn / n * more["n"]
            sums["k2"] = one["k2"] + more["k2"] + turn * (turn / n) * weight
            sums["c"] = one["c"] + more["c"] + turn * share * weight
        both = F.struct(*[value.alias(name) for name, value in sums.items()])
        # Beside no values, the other stays as it is: its square may be infinite, and no times infinite is NaN.
        return F.when(one["n"] == 0, more).when(more["n"] == 0, one).otherwise(both)

    def merge(structs: Column) -> Column:
        none = F.struct(*[F.lit(0.0).alias(name) for name in names])
        return F.aggregate(F.collect_list(structs), none, add)

    return Aggregate(
        native,
        (parts,),
        (merge,),
        formula,
        called=called,
        legacy=(lambda merged: F.when(merged["n"] == 1, F.lit(_NAN)).otherwise(formula(merged))) if by_two else None,
    )
