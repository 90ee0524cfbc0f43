"""Lengths of time, as Spark parses them.

Spark has two grammars for intervals and rules of its own for blanks, signs and fractions. So a text is given to Spark's
own ``window`` function, which reads widths, slides and starts with the rules that triggers and watermarks follow, and
the answer is read from the window that comes out. Nothing here knows of trackers.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Final, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError

Duration: TypeAlias = str | timedelta

#: The width of the window that texts are tried as the start of: starts below half of it can be told from one another.
_WIDTH_DAYS: Final = 36_500_000
_WIDTH: Final = _WIDTH_DAYS * 86_400_000_000


def length(spark: SparkSession, duration: Duration, what: str) -> int:
    """Return a length of time above zero, in microseconds.

    Args:
        duration: a text such as ``"1 hour 30 minutes"`` or ``"INTERVAL '1' DAY"``, or a timedelta.

    Raises:
        UsageError: it is not above zero, or no fixed length of time: see `microseconds`.

    >>> length(spark, "1 hour 30 minutes", "window") == length(spark, timedelta(minutes=90), "window")  # doctest: +SKIP
    True
    """
    return _micros(spark, duration, what, 1, "is not above zero; give a length such as '10 minutes'")


def not_negative(spark: SparkSession, duration: Duration, what: str) -> int:
    """Return a length of time that may be zero, in microseconds; else as `length`."""
    return _micros(spark, duration, what, 0, "is below zero: '0 seconds' is the least")


def microseconds(spark: SparkSession, duration: Duration, what: str) -> int:
    """Return a fixed length of time in microseconds; it may be zero or negative.

    Args:
        duration: an interval in Spark's words, or a timedelta, as for `length`.

    Raises:
        UsageError: Spark does not parse it as an interval, or it has months or years, whose lengths vary.
    """
    return _micros(spark, duration, what, -_WIDTH, "")


def _micros(spark: SparkSession, duration: Duration, what: str, least: int, too_short: str) -> int:
    if isinstance(duration, timedelta):
        micros, fault = duration // timedelta(microseconds=1), ""
        if abs(micros) >= _WIDTH // 2:
            fault = "is too long: give less than 50,000 years"
    elif isinstance(duration, str) and duration.strip():
        micros, refusal = _parsed(spark, duration)
        fault = refusal and f"is not a fixed length of time: {refusal}"
    else:
        micros, fault = 0, "is not a length of time: give a text such as '10 minutes', or a timedelta"
    if not fault and micros < least:
        fault = too_short
    if fault:
        raise UsageError(f"{what}: {duration!r} {fault}")
    return micros


@lru_cache(maxsize=256)
def _parsed(spark: SparkSession, text: str) -> tuple[int, str]:
    """Return what Spark makes of a text: microseconds, or why it refuses."""
    one = spark.sql("SELECT micros FROM VALUES (0L) AS t(micros)")  # a local relation: no job runs
    width = f"{_WIDTH_DAYS} days"
    try:
        window = F.window(F.timestamp_micros("micros"), width, width, text).alias("window")
        start: int = one.select(window).select(F.unix_micros("window.start")).collect()[0][0]
    except Exception as error:
        text = str(error)
        if "greater than a month" in text:
            return 0, "months and years have no fixed length: give days, for example '30 days'"
        if "VALUE_OUT_OF_RANGE" in text or "FAILED_FUNCTION_CALL" in text or "PARAMETER_CONSTRAINT" in text:
            return 0, "it is too long: give less than 50,000 years"
        return 0, "Spark does not parse it as an interval: write for example '1 day', '90 minutes' or '1.5 seconds'"
    return start if start > -_WIDTH // 2 else start + _WIDTH, ""
