"""What Spark's plans say of rows, without looking at them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

_NODE = re.compile(r"^[\s:+-]*(\w*)", re.MULTILINE)


def passed_on(before: DataFrame, after: DataFrame, names: Iterable[str]) -> bool:
    """Whether it is certain that rows are those of another DataFrame, with some columns as they were there.

    Spark numbers its attributes: what is computed, even if it is under an old name, has a number of its own. So it is
    certain if the numbers are the same, and nothing but projections and filters has been at work.

    Args:
        before: the rows.
        after: what was made of them.
        names: of the columns.

    >>> passed_on(rows, rows.where("amount > 9").withColumn("amount", F.col("amount") + 1), ["ts"])    # doctest: +SKIP
    True
    >>> passed_on(rows, rows.withColumn("ts", F.col("ts") + F.expr("interval 1 hour")), ["ts"])        # doctest: +SKIP
    False
    """
    try:
        old, new = (rows._jdf.queryExecution().analyzed() for rows in (before, after))
        attributes = set(_attributes(old)).intersection(_attributes(new))
        *nodes, _ = _NODE.findall(new.toString().rstrip())
    except (AttributeError, Py4JError):  # it is no public interface of Spark
        return False
    return set(names) <= {name.rpartition("#")[0] for name in attributes} and set(nodes) <= {"Project", "Filter"}


def _attributes(plan: object) -> list[str]:
    """Names and numbers, as in ``ts#25``."""
    return str(plan.output().mkString("\n")).split("\n")  # type: ignore[attr-defined]
