"""Jobs for the page to show."""

from __future__ import annotations

from datetime import timedelta

from tests.server.processes import Server
from tracker.client import JobSpec, Producer, TrackerClient, label

SEGMENTS = {"raw": ["clean", "retries"], "retries": ["retries", "clean"], "clean": []}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
TURNED = "\u202egnol \u2066x"  # characters that turn the text around
BELL = "a\x00\x07\nb\x7f"
LONG = "long " * 102  # a name has at most 512 bytes


def client_of(server: Server) -> TrackerClient:
    return TrackerClient(server.address, retry_for=20)


def flights(client: TrackerClient, job: str = "flights", stall_after: timedelta | None = None) -> Producer:
    """Make a job with a retry loop: JFK has ended, LGA has three elements in flight, EWR waits for its front only."""
    client.define_job(
        JobSpec(job=job, deployment="d1", segments=SEGMENTS, fronts=["schedule", "charter"], stall_after=stall_after)
    )
    producer = client.open_producer(job, "radar", "run-1")
    report = producer.epoch()
    for number in range(3):
        report.sent("raw", "LGA", "2013-01-02", label("LGA", number), end_time=20)
    report.sent("raw", "JFK", "2013-01-01", label("JFK"), end_time=10)
    report.received("raw", "JFK", "2013-01-01", label("JFK"), end_time=10)
    report.sent("clean", "EWR", "2013-01-03", label("EWR"), end_time=30)
    report.received("clean", "EWR", "2013-01-03", label("EWR"), end_time=30)
    report.frontier("schedule", 20)
    report.frontier("charter", 20)
    report.report(commit=True)
    return producer


def hostile(client: TrackerClient, job: str = "hostile") -> None:
    """Make a job in which everything that anybody may name has a bad name."""
    segments = {HOSTILE: [TURNED], TURNED: [], LONG.strip(): [HOSTILE]}
    client.define_job(JobSpec(job=job, deployment=HOSTILE, segments=segments, fronts=[HOSTILE, BELL]))
    producer = client.open_producer(job, HOSTILE, TURNED)
    report = producer.epoch()
    report.sent(HOSTILE, HOSTILE, HOSTILE, 1)
    report.sent(TURNED, TURNED, BELL, 2)
    report.sent(LONG.strip(), LONG, LONG, 3)
    report.sent(HOSTILE, "", " ", 4)
    report.sent(HOSTILE, "שלום", "مرحبا", 5)
    report.frontier(HOSTILE, 5, scope=HOSTILE)
    report.close(HOSTILE, HOSTILE, front=BELL)
    report.report(commit=True)
    staged = producer.epoch()
    staged.received(HOSTILE, HOSTILE, HOSTILE, 1)
    staged.report(units=[BELL])


def many(client: TrackerClient, count: int, job: str = "many") -> None:
    """Make a job with so many open substreams."""
    client.define_job(JobSpec(job=job, deployment="d1", segments={"raw": []}, fronts=["f"]))
    producer = client.open_producer(job, "p", "r")
    report = producer.epoch()
    for number in range(count):
        report.sent("raw", f"scope {number % 7}", f"name {number:04}", number + 1)
    report.report(commit=True)
