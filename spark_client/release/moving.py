"""What the tracker has of open windows goes over to those that take them in, when a version cuts windows otherwise.

For each new window, all that was sent and received in the old ones is reported once more, as its own; these are closed.
All of it takes effect at once, with a commit. So who is killed before it begins again, and who is killed after it finds
nothing left to do: no old window is open any more.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from functools import partial

from spark_client.advice import explained
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.recutting import Recut
from spark_client.plan.substreams import Substream
from spark_client.trackers.eventlogs import EventLogs
from spark_client.trackers.jobclient import JobClient
from spark_client.trackers.places import Place
from tracker.client import JobStatus, SubstreamStatus, TrackerError, TrackerUnavailable
from tracker.client.pieces import Largest, split

_UNIT = "moved"


def move(client: JobClient, job: str, query: str, recut: Recut) -> Place:
    """Moves the open windows of a job that is at rest: nothing of it runs, and nothing is in flight.

    Args:
        client: of the job.
        job: its name; the deployment that cuts windows otherwise is defined.
        query: the id of the release's query, by which the report is called.
        recut: from the old windows to the new ones.

    Returns:
        The place in the job's events after all that this has brought about.

    Raises:
        UsageError: an old window would have to be split.
        TrackingError: something of the job runs; the tracker refuses, or cannot be reached.
    """
    try:
        status = client.job(job)
        _check(status)
        windows = _windows(client, status, recut)
        if windows:
            with client.open_producer(job, f"{query}.moved", uuid.uuid4().hex) as producer:
                epoch = 0 if producer.committed_epoch is None else producer.committed_epoch + 1
                report = producer.epoch(epoch)
                for old, new, accounts in windows:
                    for segment, (sent, received) in accounts.items():
                        report.add(segment, new.scope, new.name, 0, sent, received, new.end_time)
                    report.close(*old)
                report.report_in_pieces(_UNIT, partial(split, largest=Largest.by(client.server_info().limits)))
                producer.commit(epoch)
        return EventLogs(client, job).newest()
    except (TrackerError, TrackerUnavailable) as error:
        raise explained(error) from error


def _check(status: JobStatus) -> None:
    running = [each.producer for each in status.producers if not each.closed]
    if running:
        raise TrackingError(
            f"windows are cut otherwise, so what is open has to be moved before any query of the deployment starts, "
            f"and these run: {', '.join(running)}. Stop them (tracking.stop()), and start them after restore"
        )


def _windows(
    client: JobClient, status: JobStatus, recut: Recut
) -> list[tuple[Substream, Substream, dict[str, tuple[int, int]]]]:
    """Each open old window, the new one that takes it in, and what was sent and received on each segment."""
    found = []
    for each in client.substreams(status.spec.job):
        if each.end_time is None or each.name != recut.before.window_name(each.end_time):
            continue
        old = Substream(each.scope, each.name, each.end_time)
        found.append((old, recut.window(old), _accounts(each, set(status.spec.state_segments))))
    return found


def _accounts(substream: SubstreamStatus, states: set[str]) -> dict[str, tuple[int, int]]:
    accounts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for account in substream.segments:
        if account.segment in states and account.sent != account.received:
            raise UsageError(
                f"the state of {account.segment!r} holds {substream.name!r} of the scope {substream.scope!r} open, "
                "since its results are sent on into a channel: such windows cannot be moved. Drain the job first"
            )
        if account.ended:
            raise UsageError(
                f"the window {substream.name!r} of the scope {substream.scope!r} has ended on {account.segment!r} and "
                "is open elsewhere: it cannot be moved. Start the former version again until it has ended"
            )
        if account.sent or account.received:
            accounts[account.segment] = (account.sent, account.received)
    return dict(accounts)
