"""Labels from lineage, in native Spark SQL: an element is called the same whenever it is made again.

A source row's label is a hash of the job and of what names the row for ever; a child's is a hash of its parent's, the
segment it travels and which of the parent's children it is. So a replay cancels out, and nothing else does. No label
is 0, which would be invisible to XOR.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812


def source_label(salt: str, identity: Sequence[Column]) -> Column:
    """Return the label of a row that enters the job.

    Args:
        salt: sets this job apart from others that read the same rows.
        identity: what names the row for ever: topic, partition and offset; file and row; a business key.

    >>> source_label("flights", [F.col("row_id")])                                        # doctest: +SKIP
    """
    return _never_zero(F.xxhash64(F.lit(salt), *identity, *_nulls(identity)))


def positional_label(salt: str, query: str, epoch: int) -> Column:
    """Return the label of a row whose source names no rows: from its place in the batch.

    It holds for a replay of the same plan with the same partitions; a source that deals its rows out differently when
    it is read again gives them other labels, which is harmless only before anything of the batch was sent.
    """
    # The epoch as text: a number would be another program to compile for each batch.
    return _never_zero(F.xxhash64(F.lit(salt), F.lit(f"{query}/{epoch}"), F.monotonically_increasing_id()))


def child_label(parent: Column, segment: str, ordinal: Sequence[Column] = ()) -> Column:
    """Return the label of what a row gives rise to on another segment.

    Args:
        ordinal: distinguishes siblings, if a parent can have several: the same whenever they are made again.
    """
    return _never_zero(F.xxhash64(parent, F.lit(segment), *ordinal, *_nulls(ordinal)))


def _nulls(parts: Sequence[Column]) -> list[Column]:
    """Return which parts are null, as one more part to hash; none if no part is.

    The hash passes over nulls, so (null, a) and (a, null) would have one label. And it passes over this part where it
    is null, so that labels of rows without nulls are what they were before there was this part. It is longer than all
    parts together, so no values can take its place.
    """
    if not parts:
        return []
    which = F.concat(*[F.when(part.isNull(), F.lit("1")).otherwise(F.lit("0")) for part in parts])
    any_null = reduce(Column.__or__, [part.isNull() for part in parts])
    return [F.when(any_null, F.array_repeat(which, len(parts) + 1))]


def _never_zero(label: Column) -> Column:
    # Arithmetic, which Spark puts into whatever reads the label, and computes once. `nullif` would be a projection of
    # its own, and hand rows on through two more.
    return label.bitwiseOR((label == 0).cast("long"))
