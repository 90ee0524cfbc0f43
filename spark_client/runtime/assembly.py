"""Runtime of a query, made of its plan: the output, the processor of its batches, the reports of its tasks.

Nothing here knows how the plan was declared, so it is made alike where the plan was declared and in another process.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession

from spark_client.counting.outbox import Outbox
from spark_client.counting.probes import Reporting, TaskReports
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Opening, Output
from spark_client.plan.keyed import KeyedPlan
from spark_client.release.inbox import forget_wake_ups
from spark_client.release.quarantine import Quarantine
from spark_client.release.query import ReleaseQuery
from spark_client.release.receipts import Receipts
from spark_client.release.revisions import Revisions
from spark_client.release.single import Outputs, SingleRelease
from spark_client.runtime import declared
from spark_client.runtime.batches import BatchQuery
from spark_client.runtime.keyed import KeyedQuery
from spark_client.runtime.processor import BatchProcessor, Forward
from spark_client.runtime.queries import Read
from spark_client.runtime.queryplan import QueryPlan
from spark_client.trackers.jobclient import JobClient
from tracker.client.report import Largest


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
        partial(open_run, client, plan),
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
    opens = partial(Run, client, plan.settings.job)  # its tasks need the tracker, so nothing is kept
    return KeyedQuery(Read.of(plan.stream, spark), plan, keyed, opens, _output(plan, quarantine, None), quarantine)


def open_run(client: JobClient, plan: QueryPlan, query: str, run: str, resume_epoch: int) -> Run:
    """Open a run of a query at the tracker.

    Raises:
        TrackingError: the tracker refuses it, or cannot be reached.
    """
    patience = plan.settings.trackers.retry_for if plan.settings.outbox else None
    outbox = Outbox(plan.checkpoint / "tracker" / "outbox", patience)
    return Run(client, plan.settings.job, query, run, resume_epoch, plan.seals, outbox)


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
