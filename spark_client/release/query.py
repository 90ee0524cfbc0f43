"""Release: an aggregation whose rows come out when their substream has ended, each once, and whose state is then gone.

A batch's rows are aggregated natively into partial rows by substream and key; counting what was received rides in the
same aggregation. The end of a substream merges its partial rows natively and writes the result under the batch's epoch.
Which ends a batch acts on is written down before it acts, so a replay acts on the same ones.

What comes after its substream's end never joins a result: it goes to the quarantine, and from there, on demand, into a
revision: a result of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import timedelta
from functools import partial, reduce
from itertools import chain
from pathlib import Path

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.counting.batch_input import BatchInput
from spark_client.counting.batch_result import BatchResult, StateSize
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.belonging import no_revision
from spark_client.plan.outputs import Counted, Output
from spark_client.plan.releases import COMPLETENESS, REVISION, ReleasePlan
from spark_client.plan.substreams import Substream
from spark_client.release.carried_out import aggregation, shared_ends
from spark_client.release.epoch_ends import (
    EpochEnds,
    RecentlyEnded,
    Taken,
    completeness_of,
    elements_of,
    missed_ends,
    result_of,
    substream_of,
)
from spark_client.release.exchanges import exchanging
from spark_client.release.inbox import Inbox
from spark_client.release.lateness import LateRows
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine
from spark_client.release.receipts import End, Receipts
from spark_client.release.results import Results
from spark_client.release.revisions import Revisions, numbered
from spark_client.release.state import PartialState
from spark_client.spark_internals.checkpoints import planned
from spark_client.storage.directories import publishing_after
from tracker.client import Ended, Event, Late


class ReleaseQuery:
    """What a releasing query does with a batch.

    Args:
        plan: the release, as it was declared.
        output: where results go.
        checkpoint: the query's, which its state is in.
        late: where the table of what came late is.
        state_segment: if results are sent on: the segment that stands for the state, which keeps a substream open
            downstream: one element of each substream that is kept here is in flight there.
        compact_from: how many parts of state there may be before they are made one.
        receipts: where receipts go; None: none are written.
        upstream: the segments that lead to the release's, for receipts.
        max_away: how long the query may be away before the tracker stops keeping its ends.

    Attributes:
        quarantine: where late rows go, and those that belong to no substream.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        output: Output,
        checkpoint: Path,
        late: Path,
        state_segment: str | None,
        compact_from: int,
        receipts: Receipts | None = None,
        upstream: Sequence[str] = (),
        max_away: timedelta | None = None,
    ) -> None:
        self._plan = plan
        self._released = aggregation(plan)
        self._segment = plan.stream.segment
        self._output = output
        self._checkpoint = checkpoint
        self._path = checkpoint / "tracker"
        self._state_segment = state_segment
        self._results = Results(self._released, output, self._path / "made", sent_on=state_segment is not None)
        self._receipts = receipts
        self._state = PartialState(self._path / "state", compact_from)
        segments = [self._segment] if receipts is None else [self._segment, *upstream]
        self._inbox = Inbox(self._path / "events", self._state, self._segment, segments, plan.rule, max_away)
        self._shared = shared_ends(self._released, self._state, self._segment)
        self.quarantine = Quarantine(checkpoint, late, plan.described() if plan.revisions else None)
        self._late = LateRows(self._released, self.quarantine)
        self._revisions = Revisions(checkpoint)
        if not plan.revisions and self._revisions.all():
            raise UsageError("the query has revisions already, and would drop them: keep release(…, revisions=True)")
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
        """Takes a batch in, if it has rows, and releases what has ended."""
        state = self._state
        state.load(epoch)
        if epoch and epoch == run.resume_epoch:
            self._finish_drain(run, epoch, spark)
        before = state.substreams
        ends = self._ends_of(run, epoch)

        taken = Taken([], 0)
        bad = 0
        sent: Counted = {}
        if batch_input is None:
            sent = self._write_ended(ends, epoch, run, spark)
        elif self._plan.stream.steps or self._plan.function is not None or not self._output.concurrent:
            taken = self._take_in(batch_input, ends, epoch, run)
            sent = self._write_ended(ends, epoch, run, spark)
        else:
            # The ends are of earlier batches' rows, so both can be written at once, and neither needs much of Spark.
            crossing = None if self._crossing is None else self._crossing * max(1, len(ends.parts))
            with exchanging(spark, crossing):
                done: Future[None] = Future()  # nothing appears of an epoch whose rows cannot be taken in

                def write() -> Counted:
                    with publishing_after(done.result):
                        return self._write_ended(ends, epoch, run, spark)

                writing = self._beside.submit(inheritable_thread_target(spark)(write))
                try:
                    taken = self._take_in(batch_input, ends, epoch, run)
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
            state.bad += bad
        if self._receipts is not None:
            self._receipts.write(ends.receipts, ends.results, state, run, epoch, spark)
        entered = state.substreams
        self._settle(ends)

        result = result_of(sent, ends, taken, bad)
        if self._state_segment is None:
            return result
        stands = partial(elements_of, run.job, self._state_segment)
        enter, leave = {self._state_segment: stands(entered - before)}, stands(entered - state.substreams)
        return replace(result, sent={**enter, **sent}, received={self._state_segment: leave})

    def reported(self, epoch: int, spark: SparkSession) -> None:
        """The tracker has taken a batch's report: its state may appear."""
        state, released = self._state, self._released
        state.compact(epoch, epoch - 1, lambda found: released.merge(released.selected(spark, found)))
        state.publish(epoch)
        self._results.published(epoch)

    def _take_in(self, batch_input: BatchInput, ends: EpochEnds, epoch: int, run: Run) -> Taken:
        """Makes a batch's rows part of the state, all but those that are late; counts all."""
        state, released = self._state, self._released
        counting = batch_input.plan
        in_release = counting.in_release or not counting.by_substream
        measures = counting.grouped if in_release else {}
        labels = in_release and counting.xor_by_substream
        part = state.write_part(epoch, released.partial(batch_input.rows, measures, labels))
        kept, self._crossing = released.rollup(part, list(measures), labels)
        groups = kept if in_release else batch_input.count()
        with_xor = counting.xor_by_substream
        left = {substream: int(values["_rows"]) for substream, values in kept}
        rows = {
            substream: RowTally(
                int(values["_rows"]), values["_xor"] if with_xor else None, epoch, epoch, left.get(substream, 0)
            )
            for substream, values in groups
        }
        if self._plan.revisions and (taken := [name for (_, name, _), _ in kept if numbered(name)[1]]):
            raise batch_input.refusal() or TrackingError(
                f"a substream is called {taken[0]!r}: with revisions=True such names are of revisions. The batch was "
                "not committed, and nothing of it was published. Drop these rows, "
                f"receive(…).where({no_revision(str(released.rule.name)).sql!r}), or rename them before they are sent; "
                "then start the query again with the same checkpoint"
            )
        over = ends.gone | ends.ended | self._recently_ended.keys()
        ended = {each for each in rows if not over.isdisjoint(self._plan.rule.tracked_as(each))}
        late = self.quarantine.decide(epoch, ended, again=epoch == run.resume_epoch) & rows.keys()
        bare = rows.keys() - {substream for substream, _ in kept}
        if late:
            partials = released.of(released.parts(batch_input.rows.sparkSession, [str(part)]), late)
            tallies = {substream: rows[substream] for substream in late}
            self._late.rows(None if late <= bare else batch_input.rows, partials, tallies, epoch)
        batch = None if self._receipts is None else planned(self._checkpoint, epoch)
        state.add(part, epoch, rows, late, batch, bare)
        return Taken(groups, sum(rows[substream].rows for substream in late))

    def sweep(self, query: str) -> None:
        """Removes what drivers of this query that were killed have left half written."""
        self._output.sweep(query)
        self.quarantine.sweep()
        self._results.sweep()
        self._state.sweep()
        self._inbox.sweep()
        if self._receipts is not None:
            self._receipts.sweep(query)

    def committed(self, epoch: int) -> None:
        """Spark has committed an epoch."""
        self._inbox.committed(epoch)

    def close(self) -> None:
        """The query has stopped: its thread ends."""
        self._beside.shutdown(wait=False)

    def state_size(self) -> StateSize:
        """How much its state holds after the last batch."""
        return StateSize(len(self._state.substreams), self._state.rows)

    def kept(self, epoch: int) -> int:
        """How many substreams its state holds before an epoch."""
        self._state.load(epoch)
        return len(self._state.substreams)

    def drain(self, run: Run, spark: SparkSession) -> BatchResult | None:
        """Releases what has ended since the last batch, when no other batch will come: the query has stopped."""
        last = run.last_epoch
        if last is None:
            return None
        epoch = -last - 1  # the number of no batch; a drain that is repeated after the same batch gives it again
        state = self._state
        state.load(last + 1)
        run.must_be_newest()
        self._inbox.act_instead(epoch, last + 1)
        ends = self._ends_of(run, epoch)
        # No epoch reports this, so the tracker cannot refuse it. The note of what is released was written before it is
        # asked: a run that is opened later finds the note, and finishes this drain rather than release it again.
        run.must_be_newest()
        sent = self._write_ended(ends, epoch, run, spark)
        if self._receipts is not None:
            self._receipts.write(ends.receipts, ends.results, state, run, epoch, spark)
        self._settle(ends)
        state.publish(last)
        self._inbox.committed(epoch)
        return result_of(sent, ends)

    def _finish_drain(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """A driver that died in its drain, after what it wrote and before its state, would have it written again.

        Where the batch itself has begun, the driver that was fenced before it could drain has left only its note.
        """
        noted = self._inbox.up_to(-epoch)
        if noted is not None and self._state.is_before(noted) and not self.begun(None, epoch):
            self.drain(run, spark)

    def begun(self, query: str | None, epoch: int) -> bool:  # noqa: ARG002
        """Whether an attempt of a batch has begun to act on events: its results may be out."""
        return self._inbox.up_to(epoch) is not None

    # ---------------------------------------------------------------- ends

    def _ends_of(self, run: Run, epoch: int) -> EpochEnds:
        """What this epoch's events end, and which parts of the state that is about."""
        state = self._state
        ends = EpochEnds()
        overdue: list[Late] = []
        events = self._inbox.take(run, epoch)
        if self._shared is not None:
            ends = self._shared.read(events, run.query)
            for each in ends.ended:
                self._recently_ended.add(each)
            return ends
        missed = missed_ends(events, self._segment, run.query)
        for event in events:
            kind = event.kind
            if not isinstance(kind, Ended | Late):
                continue
            if kind.segment != self._segment:
                if isinstance(kind, Ended):
                    state.note_upstream(substream_of(kind), kind.segment, kind.elements, kind.in_flight)
                continue
            revision = self._revisions.find(kind.scope, kind.name)
            if revision is not None:
                ends.revised.append(revision)
                ends.receipts.append(End(event, revision.substream, revision.number, revision.tally, 0))
            elif isinstance(kind, Late):
                overdue.append(kind)
            else:
                self._end(ends, event, kind, missed)
        named = {(substream.scope, substream.name): substream for substream in state.substreams - ends.gone}
        for lateness in overdue:
            tardy = named.get((lateness.scope, lateness.name))
            if tardy is not None and tardy not in ends.gone:
                self._set_aside(ends, tardy, [name for _, name in state.of(tardy)])
        return ends

    def _end(self, ends: EpochEnds, event: Event, ended: Ended, missed: Set[tuple[str, str]]) -> None:
        """A substream is released; what its state has from after the end is set aside."""
        substream = substream_of(ended)
        parts = self._state.of(substream)
        last = self._state.epoch if (ended.scope, ended.name) in missed else None
        own, after = [name for epoch, name in parts if epoch != last], [name for epoch, name in parts if epoch == last]
        has_results = self._state.has_rows(substream, own)
        if not after and has_results:
            ends.whole[substream] = own
        elif has_results:
            ends.split.append((substream, own))
        late = self._set_aside(ends, substream, after)
        before = self._state.drained.get(substream, 0)
        ends.receipts.append(End(event, substream, 0, self._state.tally(substream, own), late, before))
        if ended.by_drain and ended.elements:
            self._state.note_drained(substream, ended.elements)
        elif not ended.by_drain:
            self._state.drained.pop(substream, None)
        if own:
            ends.completeness[substream] = completeness_of(before > 0, ended.by_drain)

    def _set_aside(self, ends: EpochEnds, substream: Substream, parts: list[str]) -> int:
        """Its state is over: these parts of it came too late. Says how many rows are in them."""
        tally = self._state.tally(substream, parts)
        if parts:
            ends.late[substream] = (parts, tally)
        ends.gone.add(substream)
        self._recently_ended.add(substream)
        return tally.rows

    def _write_ended(self, ends: EpochEnds, epoch: int, run: Run, spark: SparkSession) -> Counted:
        """Writes the results of what has ended, and sets aside what came too late; says what it has sent."""
        released = self._released

        def merged(substreams: set[Substream], parts: Iterable[str]) -> DataFrame:
            return released.merged(released.parts(spark, self._state.paths(parts)), substreams)

        sent: Counted = {}
        ended = [self._marked(merged({each}, own), ends.completeness[each]) for each, own in ends.split]
        alike: dict[str, set[Substream]] = {}  # one plan, unless results have to be told apart
        for substream in ends.whole:
            alike.setdefault(ends.completeness[substream] if self._plan.completeness else "", set()).add(substream)
        for completeness, substreams in alike.items():
            parts = chain.from_iterable(ends.whole[substream] for substream in substreams)
            ended.append(self._marked(merged(substreams, parts), completeness))
        if self._plan.revisions:
            ended += self._revised(ends, spark)
        if self._shared is not None:
            with self._shared.results(ends, epoch, spark) as over:
                if over is not None:
                    self._results.write(over, ends.released, run, epoch, False)
        if ended:
            rows = reduce(DataFrame.unionByName, ended)
            counts = self._receipts is not None
            sent, ends.results = self._results.write(rows, ends.released, run, epoch, counts)
        if ends.late:
            late = [merged({substream}, parts) for substream, (parts, _) in ends.late.items()]
            tallies = {substream: tally for substream, (_, tally) in ends.late.items()}
            has_rows = any(self._state.has_rows(substream, parts) for substream, (parts, _) in ends.late.items())
            self._late.aggregates(reduce(DataFrame.unionByName, late), tallies, epoch, has_rows)
        return sent

    def _settle(self, ends: EpochEnds) -> None:
        """The results are written: what they are made of leaves the state."""
        self._state.drop(ends.gone) if self._shared is None else self._shared.settle(ends)

    def _revised(self, ends: EpochEnds, spark: SparkSession) -> list[DataFrame]:
        """The merged partial rows of revisions: of each those parts of the quarantine that it is made of."""
        alike: dict[tuple[int, tuple[tuple[int, str], ...]], set[Substream]] = {}
        for revision in ends.revised:
            alike.setdefault((revision.number, revision.parts), set()).add(revision.substream)
        revised = []
        for (number, parts), substreams in alike.items():
            paths = [self.quarantine.partials(epoch, kind) for epoch, kind in parts]
            merged = self._released.merged(self._released.parts(spark, paths), substreams)
            revised.append(self._marked(merged, "late", number))
        return revised

    def _marked(self, merged: DataFrame, completeness: str, revision: int = 0) -> DataFrame:
        """Merged partial rows with what is added to results."""
        if self._plan.revisions:
            merged = merged.withColumn(f"_{REVISION}", F.lit(revision))
        return merged.withColumn(f"_{COMPLETENESS}", F.lit(completeness)) if self._plan.completeness else merged
