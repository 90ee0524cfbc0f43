"""A report in pieces has in all what it has in one, and no piece goes beyond what a message may have."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.processes import Server
from tracker.client import Report, TrackerClient, TrackerError
from tracker.client.report import Largest, split
from tracker.contract.commands import Close, Contents
from tracker.contract.spec import JobSpec


def said(pieces: list[Contents]) -> Counter[Any]:
    """Count the content of pieces: entries with their substreams' and segments' names, and promises likewise."""
    found: Counter[Any] = Counter()
    for piece in pieces:
        rows = zip(piece.substream_index, piece.segment_index, piece.xor, piece.sent, piece.received, strict=True)
        for substream, segment, *counts in rows:
            name = (*piece.substreams[substream], int(piece.end_times[substream]))
            found[(name, piece.segments[segment], *map(int, counts))] += 1
        for promise in piece.promises:
            about = piece.substreams[promise.substream_index] if isinstance(promise, Close) else None
            found[promise if about is None else ("close", promise.front, about)] += 1
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.text("abé", max_size=3), st.integers(0, 30), st.sampled_from("xyz")), max_size=60),
    st.lists(st.integers(0, 40), max_size=40),
    st.integers(0, 20),
    st.builds(Largest, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 500)),
)
def test_the_pieces_are_the_whole_and_each_is_small(
    entries: list[tuple[str, int, str]], closes: list[int], frontiers: int, largest: Largest
) -> None:
    whole: list[Contents] = []
    report = Report(lambda contents, units, commit: whole.append(contents))  # type: ignore[arg-type,return-value]
    for scope, name, segment in entries:
        report.add(segment, scope, str(name), 7, sent=1, end_time=name)
    for name in closes:
        report.close("close", str(name), name, "front")
    for time in range(frontiers):
        report.frontier("front", time)
    report.report(["0"])
    pieces = list(split(whole[0], largest))
    assert said(pieces) == said(whole)
    for piece in pieces:
        assert len(piece.substreams) <= largest.substreams
        assert len(piece.promises) <= largest.promises
        assert len(piece.sent) <= max(largest.entries, 3), "a substream's entries stay together"
        assert len(piece.end_times) == len(piece.substreams)
        assert set(np.unique(piece.substream_index)) <= set(range(len(piece.substreams)))
    assert [said([piece]) for piece in split(whole[0], largest)] == [said([piece]) for piece in pieces]


@pytest.mark.parametrize("limit", ["max_promises=50", "max_report_substreams=100", "max_message_bytes=20000"])
def test_a_report_beyond_the_servers_limits_goes_in_pieces_and_counts_once(tmp_path: Any, limit: str) -> None:
    server = Server(tmp_path, "memory", "--limit", limit)
    try:
        client = TrackerClient(server.address)
        client.define_job(JobSpec(job="job", deployment="1", segments={"in": []}, fronts=["front"]))
        producer = client.open_producer("job", "p", "run", resume_epoch=0)
        largest = Largest.by(client.server_info().limits)
        for _ in range(2):  # the second time every unit is a duplicate
            report = producer.epoch(0)
            for number in range(1000):
                report.add("in", f"tenant-{number}", "w", 0, sent=3, received=3)
                report.close(f"tenant-{number}", "w", front="front")
            units = [unit for unit, _ in report.report_in_pieces("driver", lambda whole: split(whole, largest))]
            assert len(units) > 1
        producer.commit(0, units=units)
        status = client.job("job")
        assert status.open_substreams == 0
        ended = list(client.substreams("job", include_ended=True))
        assert len(ended) == 1000
        assert {account.sent for one in ended for account in one.segments} == {3}
    finally:
        server.stop()


@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_a_report_too_large_for_one_message_is_refused_with_advice(tmp_path: Any, size: int) -> None:
    """The server refuses what is a little beyond its limit, the transport what is far beyond."""
    server = Server(tmp_path, "memory", "--limit", "max_message_bytes=200000")
    try:
        client = TrackerClient(server.address)
        client.define_job(JobSpec(job="job", deployment="1", segments={"in": []}, fronts=["front"]))
        report = client.open_producer("job", "p", "run", resume_epoch=0).epoch(0)
        for number in range(size // 500):
            report.add("in", f"{number:0500}", "w", 0, sent=1)
        with pytest.raises(TrackerError, match=r"LIMIT: .*max_message_bytes.*; ") as refused:
            report.report(commit=True)
        assert refused.value.reason == "LIMIT"
        assert client.job("job").open_substreams == 0
    finally:
        server.stop()
