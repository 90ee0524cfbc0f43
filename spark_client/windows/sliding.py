"""Windows that overlap: a row is in several of them, as with Spark's own ``window`` and a slide."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_client.windows.durations import Duration


@dataclass(frozen=True)
class Sliding:
    """The length of windows that overlap, as `sliding` makes it.

    Attributes:
        length: of a window.
        every: how much later the next one begins.
    """

    length: Duration
    every: Duration


def sliding(length: Duration, every: Duration) -> Sliding:
    """Make windows that overlap, as Spark's ``window(time, length, every)`` does.

    A row is then an element of each window that it falls into: length / every of them. The source makes so many rows of
    it, so filter before.

    Args:
        length: of a window: ``"1 hour"``, or a timedelta.
        every: how much later the next one begins: ``"10 minutes"``; not longer than a window.

    >>> tracking.source(raw, "clicks", scope="site", window=("at", sliding("1 hour", "10 minutes")))  # doctest: +SKIP
    """
    return Sliding(length, every)


def ends_of(micros: Column, length: int, slide: int, offset: int) -> Column:
    """Return the ends of all windows that a time falls into, in microseconds: an array.

    Args:
        micros: the time, in microseconds.
        length: of a window.
        slide: from the start of one to that of the next.
        offset: at which windows begin, after the epoch.
    """
    newest = micros - F.pmod(micros - F.lit(offset), F.lit(slide)) + F.lit(length)  # it ends last
    more = F.call_function("div", newest - micros - F.lit(1), F.lit(slide))
    return F.sequence(newest - more * F.lit(slide), newest, F.lit(slide))
