"""What Spark tells its tasks of the batch that they work for.

Relies on properties that Spark sets for a streaming query's jobs (``StreamExecution``, ``MicroBatchExecution``):
``sql.streaming.queryId``, ``streaming.sql.batchId``, and the group of the jobs, which is called as the run.
Fails closed: a task that is not told its batch must not report. Since Spark 4.0.
"""

from __future__ import annotations

from pyspark import TaskContext


def batch_of(task: TaskContext) -> tuple[str, str, int] | None:
    """Return the query, the run and the batch that a task works for; None: it is of no streaming query."""
    query = task.getLocalProperty("sql.streaming.queryId")
    run = task.getLocalProperty("spark.jobGroup.id")
    batch = int(task.getLocalProperty("streaming.sql.batchId") or -1)
    return None if not query or not run or batch < 0 else (query, run, batch)
