"""`ResultsOf`: jobs in a chain. What one tracked job has written of a substream promises the same in the next.

The end in the first job is no promise: its results are written in a later batch. The receipt is: it is written after
the results, and has their number. So the next job waits for that many rows, in whatever order they reach it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError
from spark_client.plan.schedule import ByCount
from spark_client.windows.belonging import Condition
from spark_client.windows.substreams import Substreams

Incomplete: TypeAlias = Literal["drained", "EXPIRED", "ABANDONED"]
ReceiptRows: TypeAlias = DataFrame | Iterable[Mapping[str, Any]]

_REVISION = "revision"


class ResultsOf(ByCount):
    """Results of another tracked job: trusts that job's receipts, and that this source reads each result once.

    A substream closes here when as many rows of it were read as its receipt has results: also one without any. The
    source's substreams have to be those of the other job: the same scope, and the same window or name. All results have
    to reach the source; filter after `source`.

    Args:
        receipts: the directory that the other job's release was given, ``.receipts("/data/receipts")``; or a function
            that returns its receipts from elsewhere: a DataFrame, or mappings, with the columns of `RECEIPT_SCHEMA`.
        job: the other job.
        segment: that its release reads: the column ``segment`` of the receipts.
        query: the id of the release's query, where another one with other checkpoints has left receipts, too.
        accept: ends that are not complete, and pass for it here. ``"drained"``: a drain has closed the substream, and
            the rest, which the next deployment may release, is late here. ``"EXPIRED"``, ``"ABANDONED"``: rows are
            missing. Without, such a substream stays open: of a drained one, until the rest is there as well.
        scopes: what the other job's scopes are called here; those that are not in it are called the same.
        refresh: seconds between two looks at the receipts.

    Revisions of the other job are no part of a promise. Where results have a column ``revision``, rows in which it is
    not 0 belong to no substream: drop them before `source`, or set them aside (``on_bad_rows="quarantine"``).

    >>> ResultsOf("/data/receipts", job="hourly", segment="clean")
    ResultsOf('/data/receipts', job='hourly', segment='clean')
    """

    trusts = "the other job's receipts, and that each of its results is read once"

    def __init__(
        self,
        receipts: str | os.PathLike[str] | Callable[[], ReceiptRows],
        job: str,
        segment: str,
        *,
        query: str | None = None,
        accept: Sequence[Incomplete] = (),
        scopes: Mapping[str, str] | None = None,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(revise=False, refresh=refresh)
        if isinstance(accept, str) or (unknown := [each for each in accept if each not in get_args(Incomplete)]):
            wrong = accept if isinstance(accept, str) else unknown[0]
            raise UsageError(
                f"ResultsOf: accept={wrong!r}: give a list of some of {', '.join(map(repr, get_args(Incomplete)))}"
            )
        if scopes is not None and len({*scopes.values()}) < len(scopes):
            raise UsageError(
                "ResultsOf: scopes= gives two scopes one name, and nobody could tell when both have ended: keep them "
                "apart, or release them together in the other job"
            )
        self.receipts = receipts
        self.job = job
        self.segment = segment
        self.query = query
        self.accept = frozenset(accept)
        self.scopes = dict(scopes or {})

    def __repr__(self) -> str:
        where = "<function>" if callable(self.receipts) else repr(os.fspath(self.receipts))
        return f"ResultsOf({where}, job={self.job!r}, segment={self.segment!r})"

    def conditions(self, rows: DataFrame) -> list[Condition]:
        if not _has_revisions(rows):
            return []
        fault = "revision is not 0, so it is no part of what the other job's receipt counts"
        return [Condition(F.col(_REVISION) == 0, fault, "revision = 0")]

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        if self.scopes and rule.scope is None:
            raise UsageError(f"{self!r}: scopes= is for a source with a scope: give source(…, scope=…)")
        self._looked_at = frozenset([_REVISION] if _has_revisions(rows) else [])

    @property
    def reads(self) -> frozenset[str] | None:
        return self._looked_at


def _has_revisions(rows: DataFrame) -> bool:
    """Return whether rows have the column by which a release numbers them."""
    return _REVISION in rows.columns and rows.schema[_REVISION].dataType.simpleString() in ("int", "bigint")
