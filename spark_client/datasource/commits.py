"""What a source waits for at the end of a run with `trigger(availableNow=True)`: that the tracker knows of all commits.

A source of rows says where the run ends when it begins. The source that wakes a release says so last: the ends that a
batch brings about come when the tracker has learnt that Spark has committed it, and a last batch releases them.
"""

from __future__ import annotations

import time
from pathlib import Path

from spark_client.spark_internals.checkpoints import last_commit, query_id
from spark_client.trackers.jobclient import JobClient

_LOOK_EVERY = 0.02  #: seconds between two looks at what the tracker has learnt of
_SELDOM = 0.5  #: seconds that this grows to


def await_commits(client: JobClient, job: str, checkpoint: Path, seconds: float) -> None:
    """Waits until the tracker has learnt of all that Spark has committed of a query.

    Args:
        client: of the job.
        job: that it is of.
        checkpoint: the query's.
        seconds: after which it is not waited for any more: its driver follows it, and may have died.
    """
    last = last_commit(checkpoint)
    query = query_id(checkpoint)
    if last is None or query is None:
        return
    until, pause = time.monotonic() + seconds, _LOOK_EVERY
    while time.monotonic() < until:
        staged = [
            epoch
            for producer in client.job(job).producers
            if producer.producer == query
            for epoch in producer.staged_epochs
        ]
        if not any(epoch <= last for epoch in staged):
            return
        time.sleep(pause)
        pause = min(2 * pause, _SELDOM)
