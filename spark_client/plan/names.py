"""Names that are declared: of jobs, segments and columns. Names that cannot work are refused before any data flows.

Names that are data, such as a tenant's, are checked row by row: see `belonging`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_client.columns import TRACKER, fold
from spark_client.errors import UsageError

_LONGEST: Final = 512  #: bytes of a segment's name, at the tracker
_JOB: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_job(job: str, deployment: str) -> None:
    """Refuse names that the tracker would refuse when the first query starts."""
    _check("job", job, _JOB.fullmatch, "has 1 to 128 letters, digits, '.', '_' or '-'")
    _check("deployment", deployment, lambda text: len(text) <= 128, "has 1 to 128 characters")


def check_segment(name: str) -> None:
    """Refuse what cannot name a segment, or a front."""
    rule = f"is text of 1 to {_LONGEST} bytes, without NUL"
    _check("segment", name, lambda text: len(text.encode()) <= _LONGEST and "\0" not in text, rule)


def _check(what: str, name: object, fits: Callable[[str], object], rule: str) -> None:
    if not isinstance(name, str) or not name or not _encodable(name) or not fits(name):
        raise UsageError(f"{what}={str(name)[:140]!r}: a {what}'s name {rule}")


def alike(names: Iterable[str], spark: SparkSession) -> list[str]:
    """Return those of some columns' names that Spark cannot tell apart, or that are empty."""
    folded = fold(spark)
    seen: dict[str, list[str]] = {}
    for name in names:
        seen.setdefault(folded(name), []).append(name)
    return sorted({name for same in seen.values() if len(same) > 1 for name in same} | ({""} & seen.keys()))


def check_apart(names: Iterable[str], spark: SparkSession, what: str, advice: str) -> None:
    """Refuse columns that Spark cannot tell apart, or that have no name."""
    if doubled := alike(names, spark):
        raise UsageError(f"{what}: Spark cannot tell the columns {doubled} apart, or their names are empty: {advice}")


def check_columns(df: DataFrame, what: str) -> None:
    """Refuse rows whose columns cannot be told apart, or have reserved names.

    Args:
        df: the rows; they may have `_tracker`.
        what: the rows are of, for the message.
    """
    columns = [name for name in df.columns if name != TRACKER]
    check_apart(columns, df.sparkSession, what, "rename or drop some, before this step or in it")
    if ours := [name for name in columns if name.lower().startswith(TRACKER)]:
        raise UsageError(f"{what}: the columns {ours} begin with {TRACKER!r}, which is reserved: rename them")


def _encodable(name: str) -> bool:
    """Return whether a text is Unicode; not half of a surrogate pair, say."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
