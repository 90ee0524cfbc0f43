"""Runtime of a query, made of its plan: the output, the processor of its batches, the reports of its tasks.

Nothing here knows how the plan was declared, so it is made alike where the plan was declared and in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import named
from spark_client.counting.batch import BatchResult
from spark_client.counting.news import JobNews
from spark_client.counting.outbox import Outbox
from spark_client.counting.probes import Reporting, TaskReports
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Opening, Output
from spark_client.plan.batches import computed_once
from spark_client.plan.keyed import KeyedPlan
from spark_client.release.inbox import forget_wake_ups
from spark_client.release.keyed import KEY, LATE, MADE, SCOPE
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine
from spark_client.release.query import ReleaseQuery
from spark_client.release.receipts import Receipts
from spark_client.release.revisions import Revisions
from spark_client.release.single import Outputs, SingleRelease
from spark_client.runtime import declared
from spark_client.runtime.batches import BatchProcessor, BatchQuery, Forward
from spark_client.runtime.queries import FunctionQuery, Read
from spark_client.runtime.queryplan import QueryPlan
from spark_client.spark_internals.checkpoints import query_id
from spark_client.trackers import JobClient
from spark_client.windows.belonging import of_steps, tells_of_bad_rows
from spark_client.windows.substreams import Substream
from tracker.client import Outcome
from tracker.client.report import Largest

_ROWS = "rows"


class KeyedQuery(FunctionQuery):
    """A query that keeps a user's own state. Tasks count its rows and make its promises.

    Args:
        read: the stream that it reads.
        open_run: opens a run at the tracker: (query id, run id, resume epoch).
        output: where its results go.
        quarantine: where late rows go.
    """

    has_operators = True
    outlives_its_sources = True

    def __init__(
        self,
        read: Read,
        plan: QueryPlan,
        keyed: KeyedPlan,
        open_run: Callable[[str, str, int], Run],
        output: Output,
        quarantine: Quarantine,
    ) -> None:
        super().__init__([read], plan.checkpoint, open_run, plan.received_beside)
        self._keyed = keyed
        self._output = output
        self._quarantine = quarantine

    def begun(self, epoch: int) -> bool:
        query = query_id(self.checkpoint)
        return query is not None and self._output.begun(query, epoch)

    def rest(self) -> None:
        """Let the query go on, as it has to act on what ends."""

    def carry_out(self, batch: DataFrame, run: Run, epoch: int) -> tuple[BatchResult | None, list[Outcome]]:
        run.expect(epoch)  # its tasks report
        try:
            return self._written(batch, run, epoch), []
        except Exception as error:
            if not tells_of_bad_rows(error):
                raise
            raise of_steps(self._keyed.stream.segment) from None

    def sweep(self, query: str) -> None:
        self._output.sweep(query)
        self._quarantine.sweep()

    def _written(self, batch: DataFrame, run: Run, epoch: int) -> BatchResult:
        # Once: what is written must be of the same run of the tasks as the state.
        with computed_once(batch) as kept:
            late = F.col(LATE).isNotNull()
            counted = kept.groupBy(late.alias(LATE), *[F.when(late, named(name)).alias(name) for name in (SCOPE, KEY)])
            numbers = counted.agg(F.count("*").alias(_ROWS)).collect()
            too_late = {
                self._keyed.rule.substream(row[SCOPE], row[KEY]): RowTally(row[_ROWS]) for row in numbers if row[LATE]
            }
            if too_late:
                self._set_aside(kept.where(late), too_late, epoch)
            if any(not row[LATE] for row in numbers):
                self._output.write(results(self._keyed, kept.where(~late)), run.batch(epoch))
        return BatchResult(set_aside={"late": sum(tally.rows for tally in too_late.values())})

    def _set_aside(self, rows: DataFrame, late: dict[Substream, RowTally], epoch: int) -> None:
        name, end = self._keyed.rule.name_and_end(_key(self._keyed))
        data = F.to_json(F.struct(f"{LATE}.*")).alias("data")
        table = rows.select(F.col(SCOPE).alias("scope"), name.alias("name"), end.alias("end_time"), data)
        self._quarantine.put(epoch, "row", table, table, late)


def results(keyed: KeyedPlan, rows: DataFrame) -> DataFrame:
    """Return the results among what has come of a batch, with the columns of their substreams."""
    own = keyed.rule.result_columns(F.col(SCOPE), _key(keyed))
    return rows.select(*own, *[F.col(MADE).getField(name).alias(name) for name in keyed.made.fieldNames()])


def _key(keyed: KeyedPlan) -> Column:
    return keyed.rule.stored(F.col(KEY))


def batch_query(
    plan: QueryPlan,
    spark: SparkSession,
    client: JobClient | None = None,
    largest: Largest | None = None,
) -> BatchQuery:
    """Return the runtime of a query. Its job is defined already.

    Args:
        spark: a session of its own.
        client: of the job; None: one of its own.
        largest: what one report may have; None: the tracker is asked.

    Raises:
        UsageError: something cannot be written.
        TrackerUnavailable: the tracker does not answer.

    """
    settings, stream = plan.settings, plan.stream
    client = client or settings.trackers.client()
    quarantine = Quarantine(plan.checkpoint, plan.late, None, plan.late_to)
    tasks = None
    if settings.mode == "executors" and plan.release is None:  # the driver has a release's substreams anyway
        largest = largest or Largest.by(client.server_info().limits)
        reporting = Reporting(settings.trackers, settings.job, largest, plan.seals, settings.outbox)
        tasks = TaskReports(reporting, stream.input.rule)
    output = _output(plan, quarantine, tasks)
    return BatchQuery(
        Read.of(stream, spark),
        plan,
        spark,
        partial(open_run, client, plan, plan.settings.outbox),
        _processor(plan, spark, client, output, quarantine, has_fronts=stream.input.front is not None),
        tasks,
    )


def check_stores(plan: QueryPlan) -> None:
    """Check whether the stores of a query's checkpoint and late rows can do what is relied on there."""
    plan.checkpoint.check("checkpointLocation")
    plan.late.check("late_path")


def resumed_query(
    plan: QueryPlan, spark: SparkSession, client: JobClient | None = None, largest: Largest | None = None
) -> BatchQuery:
    """Return the runtime of a query that starts, or goes on from its checkpoint. See `batch_query`.

    Raises:
        UsageError: the query is not what has written its checkpoint; or something cannot be written.
    """
    declared.check_outputs(plan)  # first: it explains why a state is not where it is looked for
    forget_wake_ups(plan.checkpoint)
    placed_again = declared.placed_as_noted(plan)
    query = batch_query(placed_again, spark, client, largest)
    declared.check_plan(placed_again, query.processor.kept(declared.next_epoch(plan.checkpoint)), query.interrupted)
    query.look()
    query.configure(spark)
    return query


def keyed_query(plan: QueryPlan, keyed: KeyedPlan, spark: SparkSession, client: JobClient) -> KeyedQuery:
    """Return the runtime of a query with a user's own state. Its job is defined already."""
    quarantine = Quarantine(plan.checkpoint, plan.late, None, plan.late_to)
    opens = partial(open_run, client, plan, False)  # its tasks need the tracker, so nothing is kept
    return KeyedQuery(Read.of(plan.stream, spark), plan, keyed, opens, _output(plan, quarantine, None), quarantine)


def open_run(client: JobClient, plan: QueryPlan, keeps: bool, query: str, run: str, resume_epoch: int) -> Run:
    """Open a run of a query at the tracker, which fences the drivers before it.

    Args:
        keeps: whether batches go on while the tracker is away.

    Raises:
        TrackingError: the tracker refuses it, has a batch that will be run again, or cannot be reached.
    """
    job = plan.settings.job
    outbox = Outbox(plan.checkpoint / "tracker" / "outbox", plan.settings.trackers.retry_for if keeps else None)
    JobNews(client, job, query).check_not_rewound(outbox.first_up_to(resume_epoch))
    return Run(client, job, query, run, None, plan.seals, outbox)


def _processor(
    plan: QueryPlan,
    spark: SparkSession,
    client: JobClient,
    output: Output,
    quarantine: Quarantine,
    has_fronts: bool,
) -> BatchProcessor:
    if plan.release is None:
        return Forward(output, quarantine, has_fronts)
    shape = plan.release.described() if plan.release.revisions else None
    aside = Quarantine(plan.checkpoint, plan.late, shape, plan.late_to)
    releases: list[SingleRelease] = []
    for each in plan.releases:
        assert each.release is not None
        receipts = None
        if each.receipts is not None:
            receipts = Receipts(each.receipts, plan.checkpoint, each.given_up, plan.origins)
            receipts.check(spark)
        releases.append(
            SingleRelease(
                each.release,
                each.name,
                Outputs(
                    output if each is plan else _output(each, quarantine, None),
                    each.state_segment is not None,
                    receipts,
                    each.destination.early(),
                ),
                plan.checkpoint,
                aside,
                each.compact_from,
                counts=not releases,
            )
        )
    release = ReleaseQuery(
        releases,
        plan.checkpoint,
        aside,
        plan.state_segment,
        plan.upstream,
        plan.settings.max_away,
        reopens=plan.settings.remember is not None,
    )
    Revisions(plan.checkpoint).tell(client)
    return release


def _output(plan: QueryPlan, quarantine: Quarantine, tasks: TaskReports | None) -> Output:
    """Return where the rows go."""
    belongs = plan.stream.input.belonging
    aside = quarantine if belongs is not None and belongs.sets_aside else None
    return plan.destination.open(Opening(plan.checkpoint, tasks, aside))
