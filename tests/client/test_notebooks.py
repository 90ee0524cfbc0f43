"""Notebooks: tables of the client's answers, in which no name can be markup."""

from __future__ import annotations

from typing import Any

import pytest

import tracker.client
from tests.client.conftest import spec
from tracker.client import TrackerClient, label
from tracker.client.ledger import Entry

ANSWERS = [name for name in tracker.client.__all__ if name.endswith(("Status", "Info", "Spec", "Event", "Explained"))]


@pytest.mark.parametrize("shown", [*(getattr(tracker.client, name) for name in ANSWERS), Entry])
def test_each_answer_has_a_table(shown: Any) -> None:
    assert callable(shown._repr_html_)


def test_a_job_is_a_table_of_tables_and_its_names_are_escaped(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, segments={"raw": ["<clean>"], "<clean>": []}))
    with client.open_producer(job, "<script>alert(1)</script>", "a & b") as producer:
        report = producer.epoch()
        report.sent("raw", "JFK", '"<i>"', label("a"))
        report.report(commit=True)
    shown = client.job(job)._repr_html_()
    assert f"<tr><th>job</th><td>{job}</td></tr>" in shown
    assert "<tr><th>producer</th><td>&lt;script&gt;alert(1)&lt;/script&gt;</td></tr>" in shown
    assert "<tr><th>&lt;clean&gt;</th>" in shown
    assert "a &amp; b" in shown
    [substream] = client.substreams(job)
    assert "<tr><th>name</th><td>&quot;&lt;i&gt;&quot;</td></tr>" in substream._repr_html_()
    assert "<tr><th>sent</th><td>1</td></tr>" in substream._repr_html_()


def test_a_job_is_printed_a_field_a_line(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    lines = repr(client.job(job)).splitlines()
    assert (lines[0], lines[-1]) == ("JobStatus(", ")")
    assert "    open_substreams=0," in lines
