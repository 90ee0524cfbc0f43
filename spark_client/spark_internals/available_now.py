"""What `trigger(availableNow=True)` needs of this package's sources: that a run comes to its end, with all its ends.

Spark cuts the backlog of such a run into batches only if all sources of the query can say where it ends. A source of
rows says so when the run begins. The source that wakes a release says so last: the ends that a batch brings about come
when the tracker has learnt that Spark has committed it, and a last batch releases them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_client.storage.directories import last_commit, read_json
from tracker.client import TrackerClient

if TYPE_CHECKING:

    class AvailableNow:
        """A source that can say where a run with ``availableNow`` ends."""

        def prepareForTriggerAvailableNow(self) -> None: ...  # noqa: N802
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:  # before Spark 4.2 there is no such thing for sources in Python

        class AvailableNow:
            """Says nothing: Spark takes everything in one batch."""


_LOOK_EVERY = 0.02  #: seconds between two looks at what the tracker has learnt of
_SELDOM = 0.5  #: seconds that this grows to


def await_commits(client: TrackerClient, job: str, checkpoint: Path, seconds: float) -> None:
    """Waits until the tracker has learnt of all that Spark has committed of a query.

    Args:
        client: to the tracker.
        job: that it is of.
        checkpoint: the query's.
        seconds: after which it is not waited for any more: its driver follows it, and may have died.
    """
    last = last_commit(checkpoint)
    metadata: dict[str, Any] | None = read_json(checkpoint / "metadata")
    if last is None or metadata is None:
        return
    until, pause = time.monotonic() + seconds, _LOOK_EVERY
    while time.monotonic() < until:
        staged = [
            epoch
            for producer in client.job(job).producers
            if producer.producer == metadata["id"]
            for epoch in producer.staged_epochs
        ]
        if not any(epoch <= last for epoch in staged):
            return
        time.sleep(pause)
        pause = min(2 * pause, _SELDOM)
