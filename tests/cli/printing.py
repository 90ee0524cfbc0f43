"""Prints lists of fixed values as the command line prints them: `python -m tests.cli.printing jobs wide`."""

from __future__ import annotations

import sys
import time

from tracker.cli.output import Form, print_pairs, print_rows
from tracker.cli.views import JOBS, SUBSCRIPTIONS, SUBSTREAMS, print_job
from tracker.client import (
    DrainState,
    DrainStatus,
    FrontStatus,
    JobSpec,
    JobStatus,
    ProducerStatus,
    SegmentStatus,
    SubscriptionStatus,
    SubstreamStatus,
)
from tracker.contract.values import Mode

#: So long ago that the age is the same for as long as a test may take.
AGO = (int(time.time()) - (3 * 24 + 12) * 3600) * 10**9
FIRST = 1_767_323_045 * 10**9  # 2026-01-02 03:04:05


def job() -> JobStatus:
    """Return a job with everything, and with names of all widths."""
    spec = JobSpec(
        job="flights-of-all-airports", deployment="d1", segments={"raw": ["clean"], "clean": []}, fronts=["schedule"]
    )
    producers = (
        ProducerStatus("q", "r1", Mode.STAGED, 12, (13, 14, 15, 16), False, AGO),
        ProducerStatus("a-producer-of-a-long-name", "r2", Mode.IMMEDIATE, None, (), True, AGO),
    )
    fronts = (FrontStatus("schedule", False, True, {"*": 24, "JFK": 48, "LGA": 36}, "q", AGO, ("raw",)),)
    drain = DrainStatus(DrainState.TIMED_OUT, "night", "d1", ("schedule",), 2, 3, ("q",), ("q",))
    return JobStatus(
        spec, 1, 4711, 2, 17, 3, 1, producers, fronts, drain, "log-1", 0, unread_segments=("clean",),
        incomplete_substreams=1, expected=20, expected_sent=16,
    )  # fmt: skip


def substreams() -> list[SubstreamStatus]:
    """Return a substream that waits for much, one of a wide name, and one that a drain has ended."""
    stuck = SegmentStatus("a segment whose name is long", False, 0, 5, 2, "q", "a-producer-of-a-long-name", 20)
    ended = SegmentStatus("raw", True, 0, 7, 7, "q", "q", by_drain=True)
    return [
        SubstreamStatus("JFK", "2013-01-01", 24, False, ("schedule", "till"), (stuck, ended), 1, AGO, AGO, ("q",)),
        SubstreamStatus("東京", "[0.0, 1.0)", None, True, (), (stuck,), 0, AGO, AGO, ()),
        SubstreamStatus("", "x\x1b[2J", 10**15, True, (), (ended,), 0, AGO, AGO, (), by_drain=True),
    ]


def subscriptions() -> list[SubscriptionStatus]:
    """Return one that reads, and one that has expired."""
    week = 7 * 24 * 3600 * 10**9
    return [
        SubscriptionStatus("mailer", ("raw",), (), 12, week, 1000, 3, FIRST, FIRST, FIRST, None, ""),
        SubscriptionStatus("gone", (), ("JFK",), 0, week, 1000, 0, None, FIRST, None, FIRST, "MAX_AGE"),
    ]


def main(what: str, form: Form) -> None:
    """Print one of the lists."""
    match what:
        case "jobs":
            print_rows(JOBS, [job(), job()], form)
        case "job":
            print_job(job(), substreams()[0], form)
        case "substreams":
            print_rows(SUBSTREAMS, substreams(), form)
        case "subscriptions":
            print_rows(SUBSCRIPTIONS, subscriptions(), form)
        case "pairs":
            print_pairs([("state", "DRAINING"), ("unfinished fronts", tuple(f"front-{n}" for n in range(12)))])


if __name__ == "__main__":
    main(sys.argv[1], Form(sys.argv[2]))
