"""The same job with a protection taken out, to see that chaos finds the damage. Only the chaos job calls this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from spark_client.api import session
from spark_client.counting.groups import Key
from spark_client.counting.probes import ExecutorProbe
from spark_client.counting.runs import Run
from tracker.client import Report


class _Forgetful:
    """A manifest that nobody reads."""

    def add(self, kept: object) -> None:
        """Forgets what was kept."""


@dataclass(frozen=True)
class EveryAttemptCounts(ExecutorProbe):
    """Reports each attempt under a unit of its own, of a query that does not seal: repetitions are not dropped."""

    def _report(self, counted: Mapping[Key, tuple[int, int]]) -> None:
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        ExecutorProbe(**{**said, "kept": _Forgetful()})._report(counted)


def take_out(protection: str | None) -> None:
    """Takes a protection out of this process.

    Args:
        protection: ``units``: an epoch counts each unit once. ``commit``: an epoch takes effect when Spark has
            committed its batch. ``seal``, ``labels``, and None: nothing here; the job sees to it.
    """
    if protection == "units":
        session.ExecutorProbe = EveryAttemptCounts  # type: ignore[attr-defined]
    elif protection == "commit":
        send = Run.send

        def send_and_commit(self: Run, report: Report, epoch: int) -> None:
            send(self, report, epoch)
            self._producer.commit(epoch)

        Run.send = send_and_commit  # type: ignore[method-assign]
