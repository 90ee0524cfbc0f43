"""Aggregates for `Tracking.release`, over any expression; most are called as in `pyspark.sql.functions`.

>>> from spark_client import aggregates
>>> tracking.release(orders, aggs={"late": aggregates.count_if(F.expr("at > due"))})                # doctest: +SKIP
"""

from spark_client.plan.aggregates import (
    approx_count_distinct,
    avg,
    bit_and,
    bit_or,
    bit_xor,
    bool_and,
    bool_or,
    collect_list,
    collect_set,
    count,
    count_distinct,
    count_if,
    max,  # noqa: A004 - Spark's own name
    max_by,
    min,  # noqa: A004 - Spark's own name
    min_by,
    sum,  # noqa: A004 - Spark's own name
)
from spark_client.plan.distributions import approx_percentile, median, percentile
from spark_client.plan.mergeable import Aggregate, combine
from spark_client.plan.moments import (
    corr,
    covar_pop,
    covar_samp,
    stddev,
    stddev_pop,
    stddev_samp,
    var_pop,
    var_samp,
    variance,
)

__all__ = [
    "Aggregate",
    "approx_count_distinct",
    "approx_percentile",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "combine",
    "corr",
    "count",
    "count_distinct",
    "count_if",
    "covar_pop",
    "covar_samp",
    "max",
    "max_by",
    "median",
    "min",
    "min_by",
    "percentile",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
]
