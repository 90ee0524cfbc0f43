"""Aggregates for `Tracking.release`, over any expression; most are called as in `pyspark.sql.functions`.

>>> from spark_client import aggregates
>>> tracking.release(orders, aggs={"late": aggregates.count_if("at > due")})                  # doctest: +SKIP
"""

from spark_client.plan.aggregates import (
    Aggregate,
    approx_count_distinct,
    avg,
    bit_and,
    bit_or,
    bit_xor,
    bool_and,
    bool_or,
    collect_set,
    count,
    count_distinct,
    count_if,
    max,  # noqa: A004 - Spark's own name
    min,  # noqa: A004 - Spark's own name
    stddev,
    sum,  # noqa: A004 - Spark's own name
    variance,
)

__all__ = [
    "Aggregate",
    "approx_count_distinct",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "collect_set",
    "count",
    "count_distinct",
    "count_if",
    "max",
    "min",
    "stddev",
    "sum",
    "variance",
]
