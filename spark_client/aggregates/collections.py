"""Collections of values, and the numbers of distinct ones."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate, known_as, remade
from spark_client.columns import ColumnOrName, types_in
from spark_client.errors import UsageError


@known_as("collect_set")
def collect_set(value: ColumnOrName) -> Aggregate:
    """Return the distinct values, in no order. The state grows with them."""
    return remade(_collect_set, value)


def _collect_set(values: Column) -> Aggregate:
    collected = F.collect_set(values)
    return Aggregate(collected, (collected,), (lambda parts: F.array_distinct(F.flatten(F.collect_list(parts))),))


@known_as("collect_list", "array_agg")
def collect_list(value: ColumnOrName) -> Aggregate:
    """Return all values but nulls, in no order. The state grows with the rows."""
    return remade(_collect_list, value)


def _collect_list(values: Column) -> Aggregate:
    collected = F.collect_list(values)
    return Aggregate(collected, (collected,), (lambda parts: F.flatten(F.collect_list(parts)),))


def count_distinct(value: ColumnOrName, *more: ColumnOrName) -> Aggregate:
    """Count distinct values, exactly; null is none. The state grows with them: see `approx_count_distinct`.

    Args:
        more: further ones: then combinations are counted, and one with a null in it is none.
    """
    return remade(_count_distinct, value, *more)


def _count_distinct(first: Column, *more: Column) -> Aggregate:
    if not more:
        distinct = _collect_set(first)
    else:
        whole = reduce(Column.__and__, [each.isNotNull() for each in (first, *more)])
        # Named by their places: two of them may have the same name.
        distinct = _collect_set(F.when(whole, F.struct(*[v.alias(f"_{p}") for p, v in enumerate((first, *more))])))
    return Aggregate(F.count_distinct(first, *more), distinct.partial, distinct.merge, F.size)


@known_as("approx_count_distinct")
def approx_count_distinct(value: ColumnOrName) -> Aggregate:
    """Estimate the number of distinct values (a HyperLogLog sketch of 4 KB at most, about 1.6 % off); null is none.

    The estimate is a sketch's own: Spark's function, which cannot be merged, is up to 5 % off, and another number.
    """
    return remade(_approx_count_distinct, value)


def _approx_count_distinct(values: Column) -> Aggregate:
    # Hashes, since the sketch takes few types, and no empty text for a value.
    hashes = F.when(values.isNotNull(), F.xxhash64(values))

    def for_type(kind: T.DataType) -> Aggregate:
        if _collated(kind):
            raise UsageError(
                f"values of {kind.simpleString()} are compared by their bytes here, and by Spark by their collation: "
                "aggregate lower(…), or another expression that gives equal values the same bytes"
            )
        return sketched

    sketched = Aggregate(
        F.approx_count_distinct(values),
        (F.hll_sketch_agg(hashes),),
        (F.hll_union_agg,),
        F.hll_sketch_estimate,
        form="a sketch of hashes",
        for_type=for_type,
        over=values,
    )
    return sketched


def _collated(kind: T.DataType) -> bool:
    """Return whether equal values of a type may differ in their bytes."""
    return any(isinstance(each, T.StringType) and "collate" in each.simpleString() for each in types_in(kind))
