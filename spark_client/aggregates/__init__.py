"""Aggregates for `Tracking.release`, over any expression; most are called as in `pyspark.sql.functions`.

>>> from spark_client import aggregates
>>> tracking.release(orders, aggs={"late": aggregates.count_if(F.expr("at > due"))})                # doctest: +SKIP
"""

from spark_client.aggregates.aggregate import Aggregate, combine
from spark_client.aggregates.collections import approx_count_distinct, collect_list, collect_set, count_distinct
from spark_client.aggregates.distributions import approx_percentile, median, percentile
from spark_client.aggregates.extremes import (
    bit_and,
    bit_or,
    bit_xor,
    bool_and,
    bool_or,
    max,  # noqa: A004 - Spark's own name
    max_by,
    min,  # noqa: A004 - Spark's own name
    min_by,
)
from spark_client.aggregates.moments import (
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
from spark_client.aggregates.sums import (
    avg,
    count,
    count_if,
    sum,  # noqa: A004 - Spark's own name
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
