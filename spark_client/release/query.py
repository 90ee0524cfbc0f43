"""Release: an aggregation whose rows come out when their substream has ended, each once, and whose state is then gone.

A batch's rows are aggregated natively into partial rows by substream and key; counting what was received rides in the
same aggregation. The end of a substream merges its partial rows natively and writes the result under the batch's epoch.
The ends that a batch acts on are written down before it acts, so a replay acts on the same ones.

A query may have several releases of its stream. Its rows are read and counted once, and its ends are chosen once, for
all of them; a batch is reported when each has written its results.

A row that comes after its substream's end never joins a result: it goes to the quarantine, and from there, on demand,
into a revision: a result of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from spark_client.columns import parallelism
from spark_client.counting.batch import BatchInput, BatchResult, StateSize
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, UsageError
from spark_client.fronts.front import Group
from spark_client.plan.batches import Counted, computed_once
from spark_client.release.ends import EpochEnds
from spark_client.release.inbox import ACTS, BEFORE, Act, Inbox
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine
from spark_client.release.revisions import Revisions, numbered
from spark_client.release.single import SingleRelease
from spark_client.spark_internals.checkpoints import planned
from spark_client.spark_internals.sessions import in_session
from spark_client.storage.directories import publishing_after, with_settings
from spark_client.storage.folder import Folder
from spark_client.windows.belonging import no_revision
from spark_client.windows.substreams import Substream
from tracker.client import label

# Exchanges carry partial aggregates, far fewer than rows. Spark's own operators exchange in as many partitions as the
# session says; adaptive execution would merge them afterwards, at the price of a job more for each exchange. Here it is
# known beforehand about how much will cross.

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_ROWS: Final = 50_000  #: that one partition takes
_REMEMBERED: Final = 100_000  #: ended substreams whose late rows are caught row by row


@contextmanager
def exchanging(spark: SparkSession, rows: int | None) -> Iterator[None]:
    """Choose partitions for the exchanges of plans that run inside, by their rows; never more than the session's.

    Args:
        rows: that will cross an exchange; None: not known.

    >>> with exchanging(spark, rows=10_000):                                              # doctest: +SKIP
    ...     rows.groupBy("key").count().write.parquet(path)
    """
    wanted = parallelism(spark) if rows is None else -(-rows // _ROWS)
    partitions = max(1, min(wanted, int(str(spark.conf.get(_PARTITIONS)))))
    with with_settings(spark, {_PARTITIONS: str(partitions), _ADAPTIVE: "false"}):
        yield


class Taken(NamedTuple):
    """A batch's rows, which are a part of the state now."""

    groups: list[Group] | None  #: None: there was no batch
    late: int  #: rows that were set aside instead


class ReleaseQuery:
    """Work of a releasing query on a batch.

    Args:
        releases: of one stream; the first one counts its rows.
        quarantine: where late rows go, and those that belong to no substream.
        state_segment: if results are sent on: the segment that stands for the state, which keeps a substream open
            downstream: one element of each substream that is kept here is in flight there.
        upstream: the segments that lead to the stream's, whose events receipts need.
        max_away: how long the query may be away before the tracker stops keeping its ends.
        reopens: whether the tracker forgets names that have ended, so that later rows may open them again.
    """

    def __init__(
        self,
        releases: Sequence[SingleRelease],
        checkpoint: Folder,
        quarantine: Quarantine,
        state_segment: str | None = None,
        upstream: Sequence[str] = (),
        max_away: timedelta | None = None,
        reopens: bool = False,
    ) -> None:
        self._releases = releases
        self._first = first = releases[0]
        self._segment = first.plan.stream.segment
        self._checkpoint = checkpoint
        self._state_segment = state_segment
        segments = [self._segment]
        if any(each.to.receipts is not None for each in releases):
            segments += upstream
        states = [each.state for each in releases]
        rule = first.plan.rule
        notes, before = checkpoint / "tracker" / ACTS, checkpoint / "tracker" / BEFORE
        self._inbox = Inbox(notes, before, states, self._segment, segments, rule, max_away)
        self.quarantine = quarantine
        if not first.plan.revisions and Revisions(checkpoint).all():
            raise UsageError("the query has revisions already, and would drop them: keep release(…, revisions=True)")
        self._reopens = reopens
        self._recently_ended: OrderedDict[Substream, None] = OrderedDict()  # late rows of these are caught row by row
        self._crossing: int | None = None  # how many partial rows the last batch had
        self._taken: tuple[int, str | None] = (-1, None)  # the last batch, and the sources' offsets after it
        self._beside = ThreadPoolExecutor(1, "tracking-release")

    releases = True  #: whether it releases results

    @property
    def outlives_its_sources(self) -> bool:
        """Return whether the query has something to do when all that the query's sources have sent has ended."""
        return True

    @property
    def reads_all(self) -> bool:
        """Return whether all rows of a batch are read; else nobody knows how many there are."""
        return True

    def process(self, batch_input: BatchInput | None, run: Run, epoch: int, spark: SparkSession) -> BatchResult:
        """Take a batch in, if it has rows, and release what has ended."""
        first = self._first
        state = first.state
        self._load(epoch)
        while (begun := self._begin(run, epoch))[0].batch is None:
            self._release(*begun, run, spark)  # a driver that died, or stands still, has begun it between two batches
            self._load(epoch)
        act, ends = begun
        before = state.substreams

        taken = Taken([], 0)
        bad = 0
        sent: Counted = {}
        if batch_input is None:
            sent = self._write_ended(ends, act, run, spark)
        elif first.plan.stream.steps or not self._has_own_plans:
            taken = self._take_in(batch_input, ends[0], epoch, run)
            sent = self._write_ended(ends, act, run, spark)
        else:
            # The ends are of earlier batches' rows, so both can be written at once, and neither needs much of Spark.
            with exchanging(spark, self._crossing_at(ends[0])):
                done: Future[None] = Future()  # nothing appears of an epoch whose rows cannot be taken in

                def write() -> Counted:
                    with publishing_after(done.result):
                        return self._write_ended(ends, act, run, spark)

                writing = self._beside.submit(in_session(spark, write))
                try:
                    taken = self._take_in(batch_input, ends[0], epoch, run)
                    done.set_result(None)
                except BaseException as error:
                    done.set_exception(error)
                    raise
                finally:
                    wait([writing])
                sent = writing.result()
        if batch_input is not None:
            bad = batch_input.set_aside(self.quarantine)
        for release, its in zip(self._releases, ends, strict=True):
            release.state.bad += bad
            release.write_receipts(its, act, run, spark)
        entered = state.substreams
        for release, its in zip(self._releases, ends, strict=True):
            release.ends.settle(its)

        result = _result_of(sent, ends[0], taken, bad)
        return self._with_state(result, entered - before, entered - state.substreams, run)

    def release(self, run: Run, spark: SparkSession, anyway: bool = False) -> BatchResult | None:
        """Release what has ended since the last act, between two batches: Spark has committed the last one.

        Args:
            anyway: whether nothing is left to be done.

        Returns:
            The result of the act; None: nothing was done.

        Raises:
            TrackingError: another driver has taken the query over.
        """
        if run.last_epoch is None:
            return None
        epoch = run.last_epoch + 1
        if not self._first.state.is_as_published:  # nothing is known of it yet, or an act has failed
            self._load(epoch)
        self._settle_between(run)
        if not anyway and not self._inbox.has_news(run):
            return None
        self._load(epoch)
        return self._release(*self._begin(run, None), run, spark)

    def _release(self, act: Act, ends: list[EpochEnds], run: Run, spark: SparkSession) -> BatchResult:
        known = self._has_own_plans and self._crossing is not None
        with exchanging(spark, self._crossing_at(ends[0])) if known else nullcontext():
            sent = self._write_ended(ends, act, run, spark)
        for release, its in zip(self._releases, ends, strict=True):
            release.write_receipts(its, act, run, spark)
        state = self._first.state
        before = state.substreams
        for release, its in zip(self._releases, ends, strict=True):
            release.ends.settle(its)
        result = self._with_state(_result_of(sent, ends[0], Taken(None, 0)), set(), before - state.substreams, run)
        if self._state_segment is not None:
            report = run.between.report(act.number)
            result.add_to(report, None, self._first.plan.rule)
            run.between.send(report, act.number)
        for release in self._releases:
            release.publish(release.state.epoch, act.epoch)
        if self._state_segment is not None:
            run.acts = act.number + 1
            run.between.await_committed(act.number)
        self._inbox.committed(state.epoch, at_once=True)
        for release in self._releases:
            release.show_early(run, state.epoch + 1, spark)
        return result

    @property
    def _has_own_plans(self) -> bool:
        """Return whether results are made and written by plans of this package alone, with none of a user's."""
        first = self._first
        return len(self._releases) == 1 and first.to.output.concurrent and first.plan.function is None

    def _crossing_at(self, ends: EpochEnds) -> int | None:
        """Return about how many partial rows cross the exchange of what has ended; None: not known."""
        return None if self._crossing is None else self._crossing * max(1, len(ends.parts))

    def _settle_between(self, run: Run) -> None:
        """Let what an earlier driver has sent on between two batches, and published, take effect."""
        if self._state_segment is not None:
            run.open_between(self._inbox.next)

    def _with_state(self, result: BatchResult, entered: set[Substream], left: set[Substream], run: Run) -> BatchResult:
        """Add what stands for the state where results are sent on."""
        segment = self._state_segment
        if segment is None:
            return result
        stands = partial(_elements_of, run.job, segment)
        return replace(result, sent={segment: stands(entered), **result.sent}, received={segment: stands(left)})

    def reported(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """Let a batch's state appear once the tracker has taken its report."""
        for release in self._releases:
            release.reported(epoch, spark)
        for release in self._releases:
            release.show_early(run, epoch, spark)

    def _take_in(self, batch_input: BatchInput, ends: EpochEnds, epoch: int, run: Run) -> Taken:
        """Make a batch's rows part of the state, all but those that are late, and count all."""
        first = self._first
        counting = batch_input.plan
        in_release = counting.in_release or not counting.by_substream
        measures = counting.grouped if in_release else {}
        labels = in_release and counting.xor_by_substream
        with computed_once(batch_input.rows, len(self._releases)) as came:
            part, kept, self._crossing = first.write_part(came, epoch, measures, labels)
            parts = [part, *(release.write_part(came, epoch, {}, False)[0] for release in self._releases[1:])]
            groups = kept if in_release else batch_input.count()
            with_xor = counting.xor_by_substream
            left = {substream: int(values["_rows"]) for substream, values in kept}
            rows = {
                substream: RowTally(
                    int(values["_rows"]), values["_xor"] if with_xor else None, epoch, epoch, left.get(substream, 0)
                )
                for substream, values in groups
            }
            if first.plan.revisions and (named := [name for (_, name, _), _ in kept if numbered(name)[1]]):
                raise batch_input.refusal() or TrackingError(
                    f"a substream is called {named[0]!r}: with revisions=True such names are of revisions. The batch "
                    "was not committed, and nothing of it was published. Drop these rows, "
                    f"receive(…).where({no_revision(first.plan.rule.labelled).sql!r}), or rename them before they "
                    "are sent; then start the query again with the same checkpoint"
                )
            over = self._certainly_ended(ends)
            ended = {each for each in rows if not over.isdisjoint(first.plan.rule.tracked_as(each))}
            late = self.quarantine.decide(epoch, ended, again=epoch == run.resume_epoch) & rows.keys()
            bare = rows.keys() - {substream for substream, _ in kept}
            leaves_receipts = any(release.to.receipts is not None for release in self._releases)
            batch = None
            if leaves_receipts:
                before, since = self._taken
                batch = planned(self._checkpoint, epoch, since if before == epoch - 1 else None)
                self._taken = epoch, batch.until
            for release, part in zip(self._releases, parts, strict=True):
                release.take(part, epoch, rows, late, batch if release.to.receipts is not None else None, bare, came)
        return Taken(groups, sum(rows[substream].rows for substream in late))

    def _certainly_ended(self, ends: EpochEnds) -> Set[Substream]:
        """Return substreams of which a batch's rows are late, as far as is known before the tracker has its report."""
        # Of a name that the tracker may have forgotten nobody knows: the report, which a repeated attempt makes later,
        # opens it again, or makes the rows late. Until then the rows are a part of the state.
        if not self._reopens:
            return ends.gone | ends.ended | self._recently_ended.keys()
        return ends.for_good

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        for release in self._releases:
            release.sweep(query)
        self.quarantine.sweep()
        self._inbox.sweep()

    def committed(self, epoch: int) -> None:
        """Act on an epoch's commit by Spark."""
        self._inbox.committed(epoch)

    def close(self) -> None:
        """End the thread of a query that has stopped."""
        self._beside.shutdown(wait=False)

    def state_size(self) -> StateSize:
        """Return how much its state holds after the last batch."""
        state = self._first.state
        return StateSize(len(state.substreams), state.rows)

    def kept(self, epoch: int) -> Mapping[str, int]:
        """Return how many substreams its state holds before an epoch, by the name of the release."""
        self._load(epoch)
        return {release.name: len(release.state.substreams) for release in self._releases}

    def begun(self, query: str | None, epoch: int) -> bool:  # noqa: ARG002
        """Return whether an attempt of a batch has begun to act on events: its results may be out."""
        return self._inbox.has_begun(epoch)

    # ---------------------------------------------------------------- of all releases

    def _load(self, epoch: int) -> None:
        """Make each release's state the one before an epoch."""
        states = [release.state for release in self._releases]
        for state in states:
            state.load(epoch)
        newest = max(states, key=lambda state: state.version)
        newest.must_follow(epoch, self._checkpoint)
        for state in states:
            if state.version < newest.version:
                state.join(newest)
        self._inbox.must_follow(epoch, self._checkpoint)

    def _begin(self, run: Run, batch: int | None) -> tuple[Act, list[EpochEnds]]:
        """Return the next act, and what it ends for each release; nothing for one that has acted already.

        Args:
            batch: that is to be processed; None: none.
        """
        if not (run.away and batch is not None):
            self._settle_between(run)
        acts = [release.state.acts for release in self._releases]
        act = self._inbox.begin(run, batch)
        ends = [
            release.ends.read(act.events, run.query) if done == act.number else EpochEnds()
            for release, done in zip(self._releases, acts, strict=True)
        ]
        for substream in set().union(*(its.over for its in ends)):
            self._recently_ended[substream] = None
            if len(self._recently_ended) > _REMEMBERED:
                self._recently_ended.popitem(last=False)
        return act, ends

    def _write_ended(self, ends: Sequence[EpochEnds], act: Act, run: Run, spark: SparkSession) -> Counted:
        """Write each release's results, one after the other, and return what was sent on."""
        sent: Counted = {}
        for release, its in zip(self._releases, ends, strict=True):
            sent = {**sent, **release.write_ended(its, act, run, spark)}
        return sent


def _result_of(sent: Counted, ends: EpochEnds, taken: Taken, bad: int = 0) -> BatchResult:
    """Return what a batch has done.

    Args:
        bad: rows that were set aside since they belong to no substream.
    """
    return BatchResult(
        sent,
        groups=taken.groups,
        set_aside={"late": ends.late_rows + taken.late, "quarantined": bad},
        released=ends.released_rows,
        ended=[end.event for end in ends.receipts],
    )


def _elements_of(job: str, segment: str, substreams: Iterable[Substream]) -> list[Group]:
    """Return the one element that stands for each substream's state, on the segment that stands for all states."""
    return [(each, {"_rows": 1, "_xor": label(job, segment, each.scope, each.name)}) for each in substreams]
