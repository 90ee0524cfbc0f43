"""Release: an aggregation whose rows come out when their substream has ended, each once, and whose state is then gone.

A batch's rows are aggregated natively into partial rows by substream and key; counting what was received rides in the
same aggregation. The end of a substream merges its partial rows natively and writes the result under the batch's epoch.
Which ends a batch acts on is written down before it acts, so a replay acts on the same ones.

A query may have several releases of its stream. Its rows are read and counted once, and its ends are chosen once, for
all of them; a batch is reported when each has written its results.

What comes after its substream's end never joins a result: it goes to the quarantine, and from there, on demand, into a
revision: a result of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from spark_client.counting.batch import BatchInput, BatchResult, StateSize
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.batches import Counted, computed_once
from spark_client.release.epoch_ends import EpochEnds, RecentlyEnded, Taken, elements_of, result_of
from spark_client.release.inbox import Inbox
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine
from spark_client.release.revisions import Revisions, numbered
from spark_client.release.single import SingleRelease
from spark_client.spark_internals.checkpoints import planned
from spark_client.storage.directories import publishing_after
from spark_client.windows.belonging import no_revision
from spark_client.windows.substreams import Substream

# What crosses them is partial aggregates, far fewer than rows. Spark's own operators exchange in as many partitions as
# the session says; adaptive execution would merge them afterwards, at the price of a job more for each exchange. Here
# it is known beforehand about how much will cross.

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_ROWS: Final = 50_000  #: that one partition takes


@contextmanager
def exchanging(spark: SparkSession, rows: int | None) -> Iterator[None]:
    """Plan that are run inside exchange about so many rows; never in more partitions than the session says.

    Args:
        spark: the session that runs them.
        rows: that will cross an exchange; None: not known.

    >>> with exchanging(spark, rows=10_000):                                              # doctest: +SKIP
    ...     rows.groupBy("key").count().write.parquet(path)
    """
    before = {key: str(spark.conf.get(key)) for key in (_PARTITIONS, _ADAPTIVE)}
    wanted = spark.sparkContext.defaultParallelism if rows is None else -(-rows // _ROWS)
    spark.conf.set(_PARTITIONS, max(1, min(wanted, int(before[_PARTITIONS]))))
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


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

    Attributes:
        quarantine: as given.
    """

    def __init__(
        self,
        releases: Sequence[SingleRelease],
        checkpoint: Path,
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
        if any(each.receipts is not None for each in releases):
            segments += upstream
        states = [each.state for each in releases]
        rule = first.plan.rule
        self._inbox = Inbox(checkpoint / "tracker" / "events", states, self._segment, segments, rule, max_away)
        self.quarantine = quarantine
        if not first.plan.revisions and Revisions(checkpoint).all():
            raise UsageError("the query has revisions already, and would drop them: keep release(…, revisions=True)")
        self._reopens = reopens
        self._recently_ended = RecentlyEnded()
        self._crossing: int | None = None  # how many partial rows the last batch had
        self._beside = ThreadPoolExecutor(1, "tracking-release")

    @property
    def outlives_its_sources(self) -> bool:
        return True

    @property
    def reads_all(self) -> bool:
        return True

    def process(self, batch_input: BatchInput | None, run: Run, epoch: int, spark: SparkSession) -> BatchResult:
        """Take a batch in, if it has rows, and release what has ended."""
        first = self._first
        state = first.state
        self._load(epoch)
        if epoch and epoch == run.resume_epoch:
            self._finish_drain(run, epoch, spark)
        before = state.substreams
        ends = self._ends_of(run, epoch)

        taken = Taken([], 0)
        bad = 0
        sent: Counted = {}
        alone = len(self._releases) == 1 and first.output.concurrent
        if batch_input is None:
            sent = self._write_ended(ends, epoch, run, spark)
        elif first.plan.stream.steps or first.plan.function is not None or not alone:
            taken = self._take_in(batch_input, ends[0], epoch, run)
            sent = self._write_ended(ends, epoch, run, spark)
        else:
            # The ends are of earlier batches' rows, so both can be written at once, and neither needs much of Spark.
            crossing = None if self._crossing is None else self._crossing * max(1, len(ends[0].parts))
            with exchanging(spark, crossing):
                done: Future[None] = Future()  # nothing appears of an epoch whose rows cannot be taken in

                def write() -> Counted:
                    with publishing_after(done.result):
                        return self._write_ended(ends, epoch, run, spark)

                writing = self._beside.submit(inheritable_thread_target(spark)(write))
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
            batch_input.read_the_rest()
            bad = batch_input.set_aside(self.quarantine)
        for release, its in zip(self._releases, ends, strict=True):
            release.state.bad += bad
            release.write_receipts(its, run, epoch, spark)
        entered = state.substreams
        for release, its in zip(self._releases, ends, strict=True):
            release.settle(its)

        result = result_of(sent, ends[0], taken, bad)
        if self._state_segment is None:
            return result
        stands = partial(elements_of, run.job, self._state_segment)
        enter, leave = {self._state_segment: stands(entered - before)}, stands(entered - state.substreams)
        return replace(result, sent={**enter, **sent}, received={self._state_segment: leave})

    def reported(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """The tracker has taken a batch's report: its state may appear."""
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
            leaves_receipts = any(release.receipts is not None for release in self._releases)
            batch = planned(self._checkpoint, epoch) if leaves_receipts else None
            for release, part in zip(self._releases, parts, strict=True):
                release.take(part, epoch, rows, late, batch if release.receipts is not None else None, bare, came)
        return Taken(groups, sum(rows[substream].rows for substream in late))

    def _certainly_ended(self, ends: EpochEnds) -> Set[Substream]:
        """Substreams of which a batch's rows are late, as far as is known before the tracker has its report.

        Of a name that it may have forgotten nobody knows: it opens the name again, or announces the rows to be late,
        when it applies the report, which a repeated attempt makes later. Until then the rows are a part of the state.
        """
        if not self._reopens:
            return ends.gone | ends.ended | self._recently_ended.keys()
        return ends.gone | ends.ended if self._first.plan.rule.shared else set()

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        for release in self._releases:
            release.sweep(query)
        self.quarantine.sweep()
        self._inbox.sweep()

    def committed(self, epoch: int) -> None:
        """Spark has committed an epoch."""
        self._inbox.committed(epoch)

    def close(self) -> None:
        """The query has stopped: its thread ends."""
        self._beside.shutdown(wait=False)

    def state_size(self) -> StateSize:
        """Return how much its state holds after the last batch."""
        state = self._first.state
        return StateSize(len(state.substreams), state.rows)

    def kept(self, epoch: int) -> Mapping[str, int]:
        """Return how many substreams its state holds before an epoch, by the name of the release."""
        self._load(epoch)
        return {release.name: len(release.state.substreams) for release in self._releases}

    def drain(self, run: Run, spark: SparkSession) -> BatchResult | None:
        """Release what has ended since the last batch, when no other batch will come: the query has stopped."""
        last = run.last_epoch
        if last is None:
            return None
        epoch = -last - 1  # the number of no batch; a drain that is repeated after the same batch gives it again
        self._load(last + 1)
        run.must_be_newest()
        self._inbox.act_instead(epoch, last + 1)
        ends = self._ends_of(run, epoch, self._due_in(epoch))
        # No epoch reports this, so the tracker cannot refuse it. The note of what is released was written before it is
        # asked: a run that is opened later finds the note, and finishes this drain rather than release it again.
        run.must_be_newest()
        sent = self._write_ended(ends, epoch, run, spark)
        for release, its in zip(self._releases, ends, strict=True):
            release.write_receipts(its, run, epoch, spark)
        for release, its in zip(self._releases, ends, strict=True):
            release.settle(its)
            release.publish(last)
        self._inbox.committed(epoch)
        return result_of(sent, ends[0])

    def _due_in(self, drain: int) -> Sequence[SingleRelease]:
        """Return the releases that a drain has to act for: all, unless a driver died when some had published its
        outcome."""
        noted = self._inbox.up_to(drain)
        return [each for each in self._releases if noted is None or each.state.is_before(noted)] or self._releases

    def _finish_drain(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """A driver that died in its drain, after what it wrote and before its state, would have it written again.

        Where the batch itself has begun, the driver that was fenced before it could drain has left only its note.
        """
        noted = self._inbox.up_to(-epoch)
        if noted is None or self.begun(None, epoch):
            return
        if any(release.state.is_before(noted) for release in self._releases):
            self.drain(run, spark)

    def begun(self, query: str | None, epoch: int) -> bool:  # noqa: ARG002
        """Return whether an attempt of a batch has begun to act on events: its results may be out."""
        return self._inbox.up_to(epoch) is not None

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

    def _ends_of(self, run: Run, epoch: int, due: Sequence[SingleRelease] | None = None) -> list[EpochEnds]:
        """Return what this epoch's events end, for each release; nothing for one that is not due."""
        events = self._inbox.take(run, epoch)
        due = self._releases if due is None else due
        ends = [each.ends_of(events, run.query) if each in due else EpochEnds() for each in self._releases]
        for substream in set().union(*(its.over for its in ends)):
            self._recently_ended.add(substream)
        return ends

    def _write_ended(self, ends: Sequence[EpochEnds], epoch: int, run: Run, spark: SparkSession) -> Counted:
        """Write each release's results, one after the other, and return what was sent on."""
        sent: Counted = {}
        for release, its in zip(self._releases, ends, strict=True):
            sent = {**sent, **release.write_ended(its, epoch, run, spark)}
        return sent
