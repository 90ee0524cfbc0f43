"""The same job with a protection taken out, to see that chaos finds the damage. Only the chaos job calls this."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark import TaskContext

from spark_client.counting.probes import ExecutorProbe
from spark_client.counting.runs import Run
from spark_client.runtime import assembly
from spark_client.trackers.jobclient import JobProducer
from tracker.client import Outcome, Report
from tracker.contract.commands import Contents


class EveryAttemptCounts(ExecutorProbe):
    """Reports each attempt under a unit of its own: repetitions are not dropped."""

    def _sent(self, producer: JobProducer, epoch: int, pieces: Sequence[tuple[str, Contents]]) -> list[bytes]:
        task = TaskContext.get()
        assert task is not None
        return super()._sent(producer, epoch, [(f"{unit}#{task.taskAttemptId()}", piece) for unit, piece in pieces])


def take_out(protection: str | None) -> None:
    """Take a protection out of this process.

    Args:
        protection: ``units``: an epoch counts each unit once. ``commit``: an epoch takes effect when Spark has
            committed its batch. ``seal``, ``labels``, and None: nothing here; the job sees to it.
    """
    if protection == "units":
        assembly.ExecutorProbe = EveryAttemptCounts  # type: ignore[attr-defined]
    elif protection == "commit":
        send = Run.send

        def send_and_commit(self: Run, report: Report, epoch: int) -> list[Outcome]:
            outcomes = send(self, report, epoch)
            self._producer.commit(epoch)
            return outcomes

        Run.send = send_and_commit  # type: ignore[method-assign]
