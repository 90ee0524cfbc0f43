"""Ends as orchestrators get them, and which ends are good enough. Without an orchestrator."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import Any

import pytest

from tests.client.conftest import client, job, shared_server, spec
from tracker.client import TrackerClient

__all__ = ["client", "job", "shared_server"]

ends: Any = import_module("substream_tracker_airflow.ends")


def test_an_ends_fields_are_json_and_show_if_it_is_good_enough(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, fronts=["gate"]))
    report = client.open_producer(job, "till", run="r1").epoch()
    report.sent("raw", "s", "lost", 4711)
    report.close("s", "whole", front="gate")
    report.report(commit=True)
    client.abandon(job, "s", "lost")
    client.drain(job, "d1", "drain")
    report = client.producer(job, "till", "r1").epoch(1)
    report.sent("raw", "s", "half", 1)
    report.received("raw", "s", "half", 1)
    report.finish("gate")
    report.report(commit=True)
    found = {name: ends.fields_of(client.wait_for_end(job, "raw", "s", name)) for name in ("whole", "lost", "half")}
    assert json.loads(json.dumps(found)) == found
    assert ends.complaint(found["whole"]) == ""
    assert "as ABANDONED with 1 elements in flight" in ends.complaint(found["lost"])
    assert "reasons=['COMPLETE', 'ABANDONED'] accepts that" in ends.complaint(found["lost"])
    assert ends.complaint(found["lost"], ["ABANDONED"]) == ""
    assert "by_drain=True accepts that" in ends.complaint(found["half"])
    assert ends.complaint(found["half"], by_drain=True) == ""


def test_the_payload_of_an_end_has_an_id_that_stays(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "till", run="r1").epoch()
    report.close("s", "n")
    report.report(commit=True)
    page = client.list_events(job)
    [first, again] = [ends.payload_of(job, page.log_id, page.events[0]) for _ in range(2)]
    assert first == again
    assert first["id"] == f"{job}/{page.log_id}/1"
    assert json.loads(json.dumps(first))["name"] == "n"


@pytest.mark.parametrize("reasons", ["COMPLETE", [], ["complete"]])
def test_wrong_reasons_are_refused(reasons: Any) -> None:
    with pytest.raises(ValueError, match="reasons"):
        ends.checked_reasons(reasons)


def test_end_times_are_numbers_or_points_in_time() -> None:
    midnight = datetime(2013, 1, 2, tzinfo=timezone(timedelta(hours=1)))
    assert ends.end_time_of(midnight) == ends.end_time_of("2013-01-01T23:00:00Z") == 1_357_081_200_000_000
    assert ends.end_time_of("-3") == ends.end_time_of(-3) == -3
    for wrong in ("yesterday", "", True, 1.5):
        with pytest.raises(ValueError, match="is no time"):
            ends.end_time_of(wrong)
