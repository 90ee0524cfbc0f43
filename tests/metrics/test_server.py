"""Metrics of a server: every number against what was done to the server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.server.processes import Server, Servers
from tests.server.tracking import define, ends, many_ends, refused, report
from tests.web.fetching import until
from tracker.wire.gen import tracker_pb2 as wire

from .scraping import scraped, value, values


@pytest.fixture
def server(servers: Servers, tmp_path: Path) -> Iterator[Server]:
    server = servers.start(tmp_path, "sqlite", "--metrics", "127.0.0.1:0", "--limit", "max_metric_jobs=2")
    yield server
    server.kill()


def test_reports_and_their_entries_are_counted_by_outcome(server: Server) -> None:
    define(server.stub)
    server.stub.Report(ends(0))
    server.stub.Report(ends(0))
    list(server.stub.ReportStream(iter([ends(1), ends(2, run="old")])))
    refused(server.stub.Report, ends(3, run="old"))
    counted = {"applied": 2.0, "already_committed": 1.0, "refused": 2.0}
    assert values(server.metrics, "tracker_reports_total", "outcome", job_name="job") == counted
    assert values(server.metrics, "tracker_report_entries_total", "outcome", job_name="job") == counted
    assert values(server.metrics, "tracker_refusals_total", "reason") == {"FENCED": 2.0}


def test_calls_are_counted_by_method_and_code(server: Server) -> None:
    define(server.stub)
    refused(server.stub.Report, ends(3, run="old"))
    refused(server.stub.GetJob, wire.GetJobRequest(job="unknown"))
    watch = server.stub.Watch(wire.WatchRequest(job="job"))
    watch.initial_metadata()
    assert value(server.metrics, "tracker_watches") == 1
    watch.cancel()
    name = "tracker_grpc_server_handling_seconds_count"
    until(lambda: value(server.metrics, name, method="Watch", code="CANCELLED") == 1)
    assert value(server.metrics, name, method="DefineJob", code="OK") == 1
    assert value(server.metrics, name, method="Report", code="FAILED_PRECONDITION") == 1
    assert value(server.metrics, name, method="GetJob", code="NOT_FOUND") == 1


def test_ends_are_counted_by_reason_with_their_delay(server: Server) -> None:
    define(server.stub)
    for epoch in range(3):
        server.stub.Report(ends(epoch))
    server.stub.Report(report(3, names=["open"], end_times=[99], received=[0]))
    server.stub.Abandon(wire.AbandonRequest(job="job", scope="tenant", name="open"))
    server.stub.Report(report(4, names=["w0"], end_times=[0]))
    counted = values(server.metrics, "tracker_ends_total", "reason", job_name="job")
    assert {reason: count for reason, count in counted.items() if count} == {"complete": 6, "abandoned": 2}
    assert value(server.metrics, "tracker_end_delay_seconds_count", job_name="job") == 8
    assert value(server.metrics, "tracker_late_entries_total", job_name="job") == 1


def test_counters_begin_at_zero_when_the_server_starts_again(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "sqlite", "--metrics", "127.0.0.1:0")
    define(server.stub)
    server.stub.Report(ends(0))
    server.stub.Report(report(1, names=["w0"], end_times=[0]))
    server.kill()
    server = servers.start(tmp_path, "sqlite", "--metrics", "127.0.0.1:0")
    server.stub.Report(ends(2))
    assert value(server.metrics, "tracker_ends_total", job_name="job", reason="complete") == 2
    assert value(server.metrics, "tracker_late_entries_total", job_name="job") == 0
    server.kill()


def waiting(server: Server, job: str = "job") -> dict[str, float]:
    return values(server.metrics, "tracker_waiting_substreams", "waiting_for", job_name=job)


def test_open_substreams_are_counted_by_what_they_wait_for(server: Server) -> None:
    define(server.stub, ordering=wire.ORDERING_GLOBAL)
    none = {"front": 0, "epoch": 0, "segment": 0, "order": 0}
    assert waiting(server) == none
    server.stub.Report(report(1, received=[0]))
    assert waiting(server) == none | {"front": 1, "segment": 1}
    server.stub.Report(report(2))
    front = wire.Promise(frontier=wire.Frontier(front="f", time=2))
    server.stub.Report(
        report(
            3,
            names=[],
            scope_index=[],
            end_times=[],
            entry_count=0,
            promises=[front],
            xor=[],
            substream_index=[],
            segment_index=[],
            sent=[],
            received=[],
        )
    )
    assert waiting(server) == none | {"segment": 1, "order": 1}
    assert value(server.metrics, "tracker_in_flight_elements", job_name="job", segment="a") == 1
    oldest = value(server.metrics, "tracker_oldest_unbalanced_seconds", job_name="job")
    assert oldest is not None
    assert oldest > 0
    server.stub.Report(report(4, names=["w1"], end_times=[1], sent=[0], units=["u"], commit=False))
    assert waiting(server) == none | {"segment": 1, "epoch": 1, "order": 1}
    assert value(server.metrics, "tracker_staged_epochs", job_name="job") == 1
    server.stub.Commit(wire.CommitRequest(job="job", producer="p", run="r", epoch=4))
    assert waiting(server) == none
    assert value(server.metrics, "tracker_open_substreams", job_name="job") == 0


def test_a_front_shows_how_long_ago_it_promised_until_it_finishes(server: Server) -> None:
    define(server.stub, fronts=["f", "silent"])
    server.stub.Report(ends(0))
    ages = values(server.metrics, "tracker_front_promise_age_seconds", "front", job_name="job")
    assert ages.keys() == {"f", "silent"}
    assert ages["silent"] > ages["f"] > 0
    server.stub.FinishFront(wire.FinishFrontRequest(job="job", front="silent"))
    assert values(server.metrics, "tracker_front_promise_age_seconds", "front", job_name="job").keys() == {"f"}


def test_a_drain_shows_its_state(server: Server) -> None:
    define(server.stub)
    server.stub.Drain(wire.DrainRequest(job="job", deployment="d1", drain_id="x"))
    states = values(server.metrics, "tracker_drain_state", "state", job_name="job")
    assert sum(states.values()) == states["draining"] == 1


def test_the_journal_shows_its_syncs_snapshots_and_failures(server: Server) -> None:
    define(server.stub)
    numbers = scraped(server.metrics)
    # The start, the job, the producer; a record may hold several commands, and each has some bytes.
    assert numbers["tracker_journal_records_total", ()] == 2
    assert 1 <= numbers["tracker_journal_sync_seconds_count", ()] <= 2
    assert numbers["tracker_journal_bytes_total", ()] > 0
    assert numbers["tracker_journal_failures_total", ()] == 0
    assert numbers["tracker_snapshot_seconds_count", ()] == 0


def test_a_snapshot_is_counted(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "sqlite", "--metrics", "127.0.0.1:0", "--snapshot-every", "0")
    define(server.stub)
    until(lambda: bool(value(server.metrics, "tracker_snapshot_seconds_count")))
    assert value(server.metrics, "tracker_snapshot_bytes")
    assert value(server.metrics, "tracker_snapshot_timestamp_seconds")
    server.kill()


@pytest.mark.thorough
def test_a_watch_that_does_not_read_is_behind(server: Server) -> None:
    """A watch's stream takes as much as the transport has room for; the rest waits."""
    define(server.stub)
    watch = server.stub.Watch(wire.WatchRequest(job="job"))
    watch.initial_metadata()
    count, behind = 20_000, [0.0]
    server.stub.Report(many_ends(count))
    while not behind[-1] or behind[-1] != behind[-2]:  # it stands still, and is not just on its way
        behind.append(value(server.metrics, "tracker_watch_behind_events", job_name="job") or 0.0)
    assert value(server.metrics, "tracker_watch_behind_seconds", job_name="job")
    for _ in range(2 * count):
        next(watch)
    until(lambda: value(server.metrics, "tracker_watch_behind_events", job_name="job") == 0)
    assert value(server.metrics, "tracker_watch_behind_seconds", job_name="job") == 0
    watch.cancel()


def test_a_call_that_waits_for_an_end_is_counted(server: Server) -> None:
    define(server.stub)
    waiting = server.stub.Await.future(wire.AwaitRequest(job="job", segment="a", scope="tenant", name="w0"))
    until(lambda: value(server.metrics, "tracker_waits") == 1)
    assert value(server.metrics, "tracker_watches") == 0
    waiting.cancel()


def test_jobs_beyond_the_limit_are_summed_and_sums_do_not_fall(server: Server) -> None:
    for job in ("a", "b", "c", "d"):
        define(server.stub, job)
        server.stub.Report(ends(0, job))
        server.stub.Report(report(1, job, received=[0]))
    ended = values(server.metrics, "tracker_ends_total", "job_name", reason="complete")
    assert ended == {"a": 2, "b": 2, "(other)": 4}
    assert values(server.metrics, "tracker_open_substreams", "job_name") == {"a": 1, "b": 1, "(other)": 2}
    assert value(server.metrics, "tracker_in_flight_elements", job_name="(other)", segment="(other)") == 2
    server.stub.DeleteJob(wire.DeleteJobRequest(job="d", force=True))
    server.stub.DeleteJob(wire.DeleteJobRequest(job="a", force=True))
    assert values(server.metrics, "tracker_ends_total", "job_name", reason="complete") == {"b": 2, "(other)": 4, "c": 0}
    define(server.stub, "a")
    server.stub.Report(ends(0, "a"))
    assert values(server.metrics, "tracker_ends_total", "job_name", reason="complete")["(other)"] == 6


def test_a_job_that_does_not_exist_takes_no_label(server: Server) -> None:
    for number in range(5):
        refused(server.stub.Report, ends(0, f"unknown{number}"))
    define(server.stub)
    server.stub.Report(ends(0))
    reports = {labels for name, labels in scraped(server.metrics) if name == "tracker_reports_total"}
    assert {dict(labels)["job_name"] for labels in reports} == {"(other)", "job"}


def test_segments_and_fronts_beyond_the_limit_are_summed(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--metrics", "127.0.0.1:0", "--limit", "max_metric_names=2")
    define(
        server.stub,
        segments=[wire.Segment(name=name) for name in ("a", "b", "c", "d")],
        fronts=["f", "g", "h"],
    )
    for number, segment in enumerate("abcd"):
        server.stub.Report(report(number, segments=[segment], sent=[number + 1], received=[0]))
    in_flight = values(server.metrics, "tracker_in_flight_elements", "segment", job_name="job")
    assert in_flight == {"d": 4, "c": 3, "(other)": 3}
    ages = values(server.metrics, "tracker_front_promise_age_seconds", "front", job_name="job")
    assert len(ages) == 3
    assert max(ages.values()) >= ages["(other)"]
    assert value(server.metrics, "tracker_unfinished_fronts", job_name="job") == 3
    server.kill()


HOSTILE = ['quote"', "back\\slash", "new\nline", "return\r", "nul\0", "{label=", "(other)", "((other))", "\u202e𝄞", "#"]


def test_names_with_any_characters_are_shown_as_they_are(server: Server) -> None:
    define(server.stub, segments=[wire.Segment(name=name) for name in HOSTILE], fronts=HOSTILE)
    shown = {name if "other" not in name else f"({name})" for name in HOSTILE}
    assert values(server.metrics, "tracker_in_flight_elements", "segment", job_name="job").keys() == shown
    assert values(server.metrics, "tracker_front_promise_age_seconds", "front", job_name="job").keys() == shown


def test_no_series_is_named_after_a_substream_or_a_scope(server: Server) -> None:
    define(server.stub)
    server.stub.Report(report(0))
    before = set(scraped(server.metrics))
    for epoch in range(1, 50):
        server.stub.Report(report(epoch, scopes=[f"tenant{epoch}"]))
    assert set(scraped(server.metrics)) == before


def test_two_scrapers_at_once_get_whole_answers(server: Server) -> None:
    define(server.stub)
    with ThreadPoolExecutor(8) as scrapers:
        found = list(scrapers.map(lambda _: scraped(server.metrics)["tracker_jobs", ()], range(32)))
    assert found == [1] * 32


def test_a_scrape_of_a_server_without_jobs_has_no_series_of_jobs(server: Server) -> None:
    with pytest.raises(grpc.RpcError):
        server.stub.GetJob(wire.GetJobRequest(job="job"))
    assert not [key for key in scraped(server.metrics) if dict(key[1]).get("job_name")]
