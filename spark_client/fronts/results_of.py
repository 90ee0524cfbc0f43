"""`ResultsOf`: jobs in a chain. The receipt of a substream in one tracked job is a promise in the next.

The end in the first job would be none: its results are written in a later batch. The receipt is written after the
results, and has their number. So the next job waits for that many rows, in whatever order they reach it.

A directory of receipts appears whole and never changes, so each is read once. The results of a substream are added up
in the order of the job's events, up to the first end that counts: so their number is the same whenever it is found,
whatever comes after that end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import check_present
from spark_client.errors import UsageError, check_faults
from spark_client.fronts.counts import ByCount, Found, LiveCounts
from spark_client.fronts.front import SourceRows, check_scoped
from spark_client.storage.directories import local_path
from spark_client.windows import eventtime
from spark_client.windows.belonging import Condition
from spark_client.windows.substreams import Substream, Substreams
from tracker.client.ledger import key_of

_log = logging.getLogger("spark_client")

Incomplete: TypeAlias = Literal["drained", "EXPIRED", "ABANDONED", "DEADLINE", "THRESHOLD", "IDLE"]
ReceiptRows: TypeAlias = DataFrame | Iterable[Mapping[str, Any]]

_REVISION: Final = "revision"
_READ: Final = (
    *("job", "segment", "scope", "name", "end_time", "revision", "reason"),
    *("elements", "by_drain", "before", "results", "seq"),
)
_COMPLETE: Final = "COMPLETE"


class ResultsOf(ByCount):
    """Results of another tracked job: trusts that job's receipts, and that this source reads each result once.

    A substream closes here when as many rows of it were read as its receipt has results: also one without any. The
    source's substreams have to be those of the other job: the same scope, and the same window or name. All results have
    to reach the source; filter after `source`.

    Args:
        receipts: the directory that the other job's release was given, ``.receipts("/data/receipts")``; or a function
            that returns its receipts from elsewhere: a DataFrame, or mappings, with the columns of `RECEIPT_SCHEMA`.
        job: the other job's name, as in its receipts.
        segment: that its release reads: the column ``segment`` of the receipts.
        query: the id of the release's query, where another one with other checkpoints has left receipts, too.
        accept: ends that are not complete, and pass for it here. ``"drained"``: a drain has closed the substream, and
            the rest, which the next deployment may release, is late here. ``"DEADLINE"`` and other reasons of
            ends: rows are missing. Without, such a substream stays open: of a drained one, until the rest is there
            as well.
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
        known = get_args(Incomplete)
        check_faults(
            "ResultsOf:",
            (
                isinstance(accept, str) or any(each not in known for each in accept),
                f"accept={accept!r}: give a list of some of {', '.join(map(repr, known))}",
            ),
            (
                scopes is not None and len({*scopes.values()}) < len(scopes),
                "scopes= gives two scopes one name, so it is not certain when both have ended: give each its own, or "
                "release them together in the other job",
            ),
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

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        check_scoped(self, source.rule, self.scopes)
        self._looked_at = frozenset([_REVISION] if _has_revisions(source.rows) else [])

    @property
    def reads(self) -> frozenset[str] | None:
        return self._looked_at

    def live(self, spark: SparkSession) -> LiveCounts:
        return _LiveResults(self, spark)


class _LiveResults(LiveCounts):
    """A `ResultsOf` while its query runs."""

    failing = "the other job's receipts cannot be read"

    def __init__(self, front: ResultsOf, spark: SparkSession) -> None:
        super().__init__(front, spark)
        self._receipts = ReceiptCounts(front, front.rule, spark)

    def find(self) -> Found | None:
        return self._receipts.read()


def _has_revisions(rows: DataFrame) -> bool:
    """Return whether rows have the column by which a release numbers them."""
    return _REVISION in rows.columns and rows.schema[_REVISION].dataType.simpleString() in ("int", "bigint")


class _Receipt(NamedTuple):
    """The columns of a receipt that are needed. Receipts sort in the order of the job's events."""

    seq: int
    scope: str
    query: str
    reason: str
    by_drain: bool
    before: int
    results: int


class ReceiptCounts:
    """The counts that a job's receipts have.

    Args:
        rule: of the source that it is bound to; None: substreams are called as in the other job.
        spark: the session, which computes windows of a calendar; needed if the rule has one.
    """

    def __init__(self, front: ResultsOf, rule: Substreams | None, spark: SparkSession | None = None) -> None:
        self._front = front
        self._rule = rule
        self._spark = spark
        self._path = None if callable(front.receipts) else local_path(front.receipts, "the path of the receipts,")
        self._seen: set[str] = set()
        self._receipts: dict[Substream, list[_Receipt]] = {}
        self._counts: dict[Substream, int] = {}
        self._changed: set[Substream] = set()  # whose receipts are not added up yet
        self._open: set[Substream] = set()  # that have ended without being complete
        self._names: dict[str, bool] = {}  # of substreams: whether the source has them; checked all at once

    def read(self) -> Found | None:
        """Add up what is new.

        Raises:
            UsageError: the receipts are of other substreams than the source's, or contradict each other.
        """
        changed = self._changed
        for query, receipt in self._given() if self._path is None else self._new(self._path):
            front = self._front
            if (receipt["job"], receipt["segment"]) != (front.job, front.segment) or receipt["revision"]:
                continue
            if front.query not in (None, query) or key_of(receipt).name != receipt["name"]:
                continue  # what the other releases of the job have left for a revision is no end of its substream
            substream = self._substream(receipt)
            one = _Receipt(
                receipt["seq"],
                receipt["scope"],
                query,
                receipt["reason"],
                bool(receipt["by_drain"]),
                receipt["before"] or 0,
                receipt["results"],
            )
            known = self._receipts.setdefault(substream, [])
            if one not in known:
                known.append(one)
                known.sort()
                changed.add(substream)
        self._check_names()
        if not changed:
            return None
        for substream in changed:
            self._add_up(substream)
        self._warn(changed)
        self._changed = set()
        return Found(self._counts)

    def results(self, scope: str, name: str) -> int | None:
        """Return how many results a substream has; None: it has not ended, or not so that it counts."""
        self.read()
        return next((count for each, count in self._counts.items() if each[:2] == (scope, name)), None)

    def outcome(self, scope: str, name: str) -> str | None:
        """Return how a substream has ended whose end does not count; None: there is no such end."""
        return next((self._outcome(each) for each in self._open if each[:2] == (scope, name)), None)

    def _outcome(self, substream: Substream) -> str:
        first, *_, last = [*self._receipts[substream][:1], *self._receipts[substream]]
        return "released in part, and the receipt of that is gone" if first.before else _how(last)

    def _add_up(self, substream: Substream) -> None:
        """Count the results that it has, up to the first end that counts."""
        receipts = self._receipts[substream]
        if len(scopes := sorted({each.scope for each in receipts})) > 1:
            raise UsageError(
                f"{self._front!r}: {_shown(substream)} is what {scopes[0]!r} and {scopes[1]!r} of the other job are "
                "called here, so it is not certain when both have ended: change scopes=, so that each has its own name"
            )
        whole = {each.query for each in receipts if each.reason == _COMPLETE and not each.by_drain}
        if len(whole) > 1:
            raise UsageError(
                f"{self._front!r}: {_shown(substream)} has receipts of two queries, {' and '.join(sorted(whole))}: the "
                "job was started again with new checkpoints, and may have written its results twice. Give query=, or "
                "another directory of receipts, and let the source read the results of that query alone"
            )
        if receipts[0].before:  # the receipt of what was released of it is gone, and with it a part of the sum
            self._open.add(substream)
            return
        results = 0
        for each in receipts:
            results += each.results
            ended = _how(each)
            if ended == _COMPLETE or ended in self._front.accept:
                self._counts[substream] = results
                self._open.discard(substream)
                return
            if ended != "drained":
                self._open.add(substream)
                return
        self._open.add(substream)

    def _warn(self, changed: set[Substream]) -> None:
        for substream in sorted(self._open & changed)[:1]:
            _log.warning(
                "%r: %d substreams have ended there without being complete, such as %s (%s), and stay open here: give "
                "accept=, or the number of their results with tracking.expect(…), or wait until a later deployment has "
                "released the rest",
                self._front,
                len(self._open),
                _shown(substream),
                self._outcome(substream),
            )

    def _substream(self, receipt: Mapping[str, Any]) -> Substream:
        """Return what the source calls the substream of a receipt."""
        scope, name, end = self._front.scopes.get(receipt["scope"], receipt["scope"]), receipt["name"], _micros(receipt)
        rule = self._rule
        if rule is None:
            return Substream(scope or "", name, end)
        if rule.scope is None and scope:
            raise UsageError(
                f"{self._front!r}: the other job has scopes, such as {scope!r}, and this source has none, so it is not "
                "certain when the last of them has ended: give source(…, scope=…)"
            )
        substream = Substream(scope or "", name, end)
        if not rule.has(substream):
            raise self._other(name)
        self._names.setdefault(name, False)
        return substream

    def _other(self, name: str) -> UsageError:
        """Return the error for a substream of the other job that is none of the source's."""
        rule = self._rule
        assert rule is not None
        return UsageError(
            f"{self._front!r}: the other job's {name!r} is none of this source's substreams, which are {rule.example}: "
            "declare the source with the same windows, or names. For longer ones, release the same ones here, and "
            "longer ones in a step behind"
        )

    def _check_names(self) -> None:
        """Check whether the new substreams are the source's own.

        Raises:
            UsageError: the other job has a substream that this source cannot have.
        """
        rule, news = self._rule, [name for name, known in self._names.items() if not known]
        if rule is None or not news:
            return
        if unlike := rule.unlike(self._spark, news):
            raise self._other(min(unlike, key=news.index))
        self._names.update(dict.fromkeys(news, True))

    # ---------------------------------------------------------------- where they are

    def _given(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield all receipts that a function gives."""
        assert callable(self._front.receipts)
        found = self._front.receipts()
        if isinstance(found, DataFrame):  # an end as a number: no datetime has those after the year 9999
            rows = found.withColumn("end_time", F.unix_micros("end_time")).select(*_READ, "query").collect()
            found = [row.asDict() for row in rows]
        for row in found:
            check_present((*_READ, "query"), row, f"{self._front!r}: receipts: column", "See RECEIPT_SCHEMA")
            yield str(row["query"]), row

    def _new(self, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the receipts in directories that were not there before."""
        for query in _directories(path, "query="):
            for epoch in _directories(path / query, "epoch="):
                place = f"{query}/{epoch}"
                if place in self._seen:
                    continue
                found = []
                for file in sorted((path / place).glob("*.parquet")):
                    found += _listed(pq.ParquetFile(file).read(columns=[*_READ]))
                yield from ((query.removeprefix("query="), each) for each in found)
                self._seen.add(place)


def _directories(path: Path, beginning: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(path) if name.startswith(beginning))
    except FileNotFoundError:
        return []  # the other job has not written any yet


def _listed(table: pa.Table) -> list[dict[str, Any]]:
    """Receipts with the ends of windows in microseconds, since no datetime has those after the year 9999."""
    at = table.schema.get_field_index("end_time")
    times = table["end_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    found: list[dict[str, Any]] = table.set_column(at, "end_time", times).to_pylist()
    return found


def _micros(receipt: Mapping[str, Any]) -> int | None:
    """Return the end of a receipt's window, in microseconds."""
    end = receipt["end_time"]
    return end if end is None or isinstance(end, int) else eventtime.micros_of(end)


def _how(receipt: _Receipt) -> str:
    """Return how a substream has ended."""
    return "drained" if receipt.by_drain and receipt.reason == _COMPLETE else receipt.reason


def _shown(substream: Substream) -> str:
    return f"{substream.name!r} of scope {substream.scope!r}"
