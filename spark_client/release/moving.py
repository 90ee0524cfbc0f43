"""Move of what the tracker has of open windows to those that take them in, when a version cuts windows otherwise.

For each new window, all that was sent and received in the old ones is reported once more, as its own; these are closed.
All of it takes effect at once, with a commit. So who is killed before it begins again, and who is killed after it finds
nothing left to do: no old window is open any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from spark_client.advice import explaining
from spark_client.errors import TrackingError, UsageError
from spark_client.trackers import JobClient, Place
from spark_client.trackers.eventlogs import EventLogs
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import JobStatus
from tracker.client.report import Largest, split

_UNIT: Final = "moved"

#: An open window, the new one that takes it in, and what was sent and received of it by segment.
_Moved: TypeAlias = tuple[Substream, Substream, dict[str, tuple[int, int]]]


@dataclass(frozen=True)
class Move:
    """Move of a source's open windows in a job that is at rest: nothing of it runs, and nothing is in flight.

    Attributes:
        query: the id of the release's query, by which the report is called.
        before: the rule of the old windows.
        now: that of the new ones, which take them in.
        segment: of the source, which the release reads itself, so it is the only one with rows of its windows.
        rules: how the sources that are declared fall into substreams, by segment.
    """

    client: JobClient
    job: str
    query: str
    before: Substreams
    now: Substreams
    segment: str
    rules: Mapping[str, Substreams]

    def check(self) -> None:
        """Check whether it can be carried out, as things stand. Changes nothing.

        Raises:
            UsageError: an old window would have to be split, or another source may have rows of it.
            TrackingError: something of the job runs, or the tracker cannot be reached.
        """
        with explaining():
            self._windows(self._status())

    def carry_out(self) -> Place:
        """Move the windows. The deployment that cuts windows otherwise is defined.

        Returns:
            The place in the job's events after all that this has brought about.

        Raises:
            UsageError: the windows cannot be moved as things stand, as `check` says.
            TrackingError: something of the job runs, or the tracker refuses or cannot be reached.
        """
        with explaining():
            status = self._status()
            windows = self._windows(status)
            if windows or not _is_closed(status, self._producer):
                self._report(windows)
            return EventLogs(self.client, self.job).newest()

    @property
    def _producer(self) -> str:
        return f"{self.query}.moved"

    def _report(self, windows: Sequence[_Moved]) -> None:
        """Move windows, or none: then it closes the run that a driver killed after its commit has left open.

        An epoch that a driver killed before its commit has staged is revoked, as it is reported anew.
        """
        with self.client.open_producer(self.job, self._producer, uuid.uuid4().hex) as producer:
            epoch = 0 if producer.committed_epoch is None else producer.committed_epoch + 1
            report = producer.epoch(epoch)
            for old, new, accounts in windows:
                for segment, (sent, received) in accounts.items():
                    report.add(segment, new.scope, new.name, 0, sent, received, new.end_time)
                report.close(*old, front=None)
            report.report_in_pieces(_UNIT, partial(split, largest=Largest.by(self.client.server_info().limits)))
            producer.commit(epoch)

    def _status(self) -> JobStatus:
        status = self.client.job(self.job)
        running = [each.producer for each in status.producers if not each.closed and each.producer != self._producer]
        if running:
            raise TrackingError(
                "windows are cut otherwise, so what is open has to be moved before any query of the deployment starts, "
                f"and these run: {', '.join(running)}. Stop them (tracking.stop()), and start them after restore; "
                "of one that ends in .moved, repeat the restore first"
            )
        return status

    def _windows(self, status: JobStatus) -> list[_Moved]:
        """Return each open window of the source, the new one that takes it in, and what was sent and received of it.

        An old window is closed for all sources at once. One whose windows change as well has its part moved with it;
        one that keeps them would have the rest of its own refused as late, so it must not share a scope.
        """
        now = self.now
        along = {self.segment}
        for name, rule in self.rules.items():
            if replace(rule, scope=now.scope, scope_type=now.scope_type, zone=now.zone) == now:
                along.add(name)
        staying = status.spec.segments.keys() - along
        found, shared = list[_Moved](), dict[str, set[str]]()
        for each in self.client.substreams(self.job, include_ended=bool(staying)):
            if each.end_time is None or not self.before.has(Substream(each.scope, each.name, each.end_time)):
                continue
            used = {a.segment: a for a in each.segments if a.sent or a.received or a.expected is not None}
            shared.setdefault(each.scope, set()).update(staying & used.keys())
            own = not used[self.segment].ended if self.segment in used else not used and not staying
            if own:
                old = Substream(each.scope, each.name, each.end_time)
                accounts = {name: (a.sent, a.received) for name, a in used.items() if name in along and not a.ended}
                found.append((old, now.recut(old), accounts))
        for old, _, _ in found:
            if others := shared[old.scope]:
                raise UsageError(
                    f"the window {old.name!r} of the scope {old.scope!r} is open on {self.segment!r} and would end for "
                    f"all sources, while {', '.join(map(repr, sorted(others)))} has windows of this scope that are cut "
                    "as before: rows of them would be late. Declare the source that feeds it here with the new window, "
                    "too, or drain the job first (tracking.drain())"
                )
        return found


def _is_closed(status: JobStatus, producer: str) -> bool:
    return all(each.closed for each in status.producers if each.producer == producer)
