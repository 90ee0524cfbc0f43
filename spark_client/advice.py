"""Advice on the tracker's refusals, in words that can be followed as they stand: with the job, its server and the
producer that is meant. This module only knows words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from spark_client.errors import TrackingError
from tracker.client import TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal

#: How a job is started again from the beginning, where checkpoints and tracker no longer match.
_ANEW: Final = (
    "start the job again from the beginning: stop all its queries, run `tracker delete-job {job} --force "
    "{options}`, and start them with new checkpoints, and with new paths for channels and results"
)

_ADVICE: Final[Mapping[str, str]] = {
    Refusal.FENCED: "Another run of this query has taken over, or this run was closed; only one run at a "
    "time may use a checkpoint",
    Refusal.MISSING_UNITS: "The tracker has lost a report that it had acknowledged: look for a loss in its log. The "
    "batch was not committed; restart the query",
    Refusal.EPOCH_REWOUND: "The query's checkpoint is older than its last commit at the tracker, as after a "
    "restore from a backup: start the query with its last checkpoint. If that is lost, " + _ANEW,
    Refusal.SPEC_CONFLICT: "Sources, channels or fronts have changed: give Tracking a new deployment=",
    Refusal.INCOMPATIBLE_GRAPH: "Hand the running deployment over (tracking.hand_over()) or drain it first, or give "
    "Tracking(force=True), which abandons open substreams",
    Refusal.DRAIN_MISMATCH: "Wait for the drain that was asked for first (tracking.await_drained()), or cancel it with "
    "`tracker cancel-drain {job} {options}`",
    Refusal.DRAINED: "The job has been drained: start with a new deployment=",
    Refusal.LOG_CHANGED: "The job was deleted, or the tracker's journal was lost or restored from a backup, "
    "so this query's checkpoint does not match the tracker any more: " + _ANEW,
    Refusal.EVENTS_EXPIRED: "The tracker has dropped events that the query had not read: " + _ANEW,
    Refusal.DEPLOYMENT_MISMATCH: "The job is at another deployment: use its name, or a new one",
    Refusal.EXPECT_CONFLICT: "The substream already has another count, which stays. While it is open, replace the "
    "count with tracking.expect(…, revise=True), or Schedule(…, revise=True), as with every front that looks for "
    "counts; once it has ended, no count changes it",
    Refusal.FRONT_OWNED: "Another query reads the same source{owner}. If it still runs, stop one: a source "
    "belongs to one query. If this query replaces it, with a new checkpoint: the rows that the other query had read "
    "are counted, and would be counted twice, so "
    + _ANEW
    + ". Only if this query's source begins exactly where the other one "
    "stopped: `tracker forget-producer {job} {producer} {options}`, and start it again",
}

_OWNER: Final = re.compile(r"belongs to producer '([^']+)'")


def advice(reason: str, message: str, job: str, options: str) -> str:
    """Return what to do about a refusal; empty: nothing is known that helps.

    Args:
        message: the tracker's, which may name a producer.
        job: that it is about; empty: not known.
        options: those with which a command calls its tracker; empty: not known.

    >>> advice("DRAINED", "", "shop", "--server localhost:7654")
    'The job has been drained: start with a new deployment='
    """
    found = _OWNER.search(message)
    names = {
        "job": job or "JOB",
        "options": options or "--server ADDRESS",
        "producer": found[1] if found else "ITS-QUERY-ID",
        "owner": f" (query {found[1]})" if found else "",
    }
    return _ADVICE.get(reason, "").format(**names)


def is_away(error: Exception) -> bool:
    """Return whether a call has failed since the tracker cannot be reached; the error may be `explained`."""
    return isinstance(error, TrackerUnavailable) or isinstance(error.__cause__, TrackerUnavailable)


@contextmanager
def explaining(job: str = "", options: str = "") -> Iterator[None]:
    """Raise what the tracker refuses, or that it cannot be reached, as `explained` has it."""
    try:
        yield
    except (TrackerError, TrackerUnavailable) as error:
        raise explained(error, job, options) from error


def explained(error: Exception, job: str = "", options: str = "") -> TrackingError:
    """Return the error that a user sees, with what to do.

    Args:
        error: a refusal, or that the tracker cannot be reached; a TrackingError is returned unchanged.
        job: that it is about, if that is known.
        options: those with which a command calls its tracker, if they are known.
    """
    if isinstance(error, TrackingError):
        return error
    if isinstance(error, TrackerUnavailable):
        return TrackingError(
            f"the tracker cannot be reached ({error}). Is `tracker serve` running at the address in "
            "Tracking(server=…)? The batch was not committed; restart the query when the tracker is back"
        )
    hint = advice(getattr(error, "reason", ""), str(error), job, options)
    return TrackingError(f"{error}{f'. {hint}' if hint else ''}")
