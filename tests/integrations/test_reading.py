"""Reading of the Dagster sensor after a cursor. Without Dagster."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from tests.client.conftest import client, job, shared_server, spec
from tracker.client import Producer, TrackerClient, TrackerError

__all__ = ["client", "job", "shared_server"]

reading: Any = import_module("substream_tracker_dagster.reading")


def end(till: Producer, *names: str) -> None:
    report = till.epoch()
    for name in names:
        report.close("JFK", name)
    report.report(commit=True)


def names(found: Any) -> list[str]:
    return [each["name"] for each in found.by_key.values()]


def test_each_end_comes_once_from_cursor_to_cursor(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    wanted = reading.Wanted(job, segments=["raw"])
    empty = reading.ends_after(client, wanted, None, most=100)
    assert names(empty) == []
    till = client.open_producer(job, "till", "r1")
    end(till, *(f"n{number}" for number in range(250)))
    seen: list[str] = []
    cursor = empty.cursor
    for _ in range(4):
        found = reading.ends_after(client, wanted, cursor, most=100)
        assert json.loads(json.dumps(found.by_key)) == found.by_key
        seen, cursor = seen + names(found), found.cursor
    assert seen == [f"n{number}" for number in range(250)]
    assert names(found) == []
    again = reading.ends_after(client, wanted, "", most=1)
    assert next(iter(again.by_key)) == f"{job}/{client.job(job).log_id}/1", "the key of an end stays"


def test_ends_that_are_not_wanted_are_passed_over(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    till = client.open_producer(job, "till", "r1")
    report = till.epoch()
    report.sent("raw", "JFK", "lost", 4711)
    report.report(commit=True)
    client.abandon(job, "JFK", "lost")
    end(till, "whole")
    assert names(reading.ends_after(client, reading.Wanted(job), None, 100)) == ["whole"]
    assert names(reading.ends_after(client, reading.Wanted(job, reasons=["ABANDONED"]), None, 100)) == ["lost"]
    mistakes: list[dict[str, Any]] = [{"reasons": ["LOST"]}, {"reasons": []}, {"segments": "raw"}]
    for wrong in mistakes:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            reading.Wanted(job, **wrong)


def test_one_call_looks_at_so_many_events_and_the_next_goes_on(
    client: TrackerClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a sensor with a narrow filter would never come to the end of a long log within its deadline."""
    monkeypatch.setattr(reading, "_MOST_PAGES", 2)
    client.define_job(spec(job))
    till = client.open_producer(job, "till", "r1")
    end(till, *(f"n{number}" for number in range(500)))
    report = till.epoch()
    report.close("LGA", "far")
    report.report(commit=True)
    wanted, seen, cursors = reading.Wanted(job, scopes=["LGA"]), list[str](), [""]
    while len(seen) < 1:
        found = reading.ends_after(client, wanted, cursors[-1], most=100)
        seen += names(found)
        cursors.append(found.cursor)
    assert len(cursors) > 3, "it took several calls"
    assert seen == ["far"]


def test_a_job_that_was_made_again_is_read_from_its_beginning(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    end(client.open_producer(job, "till", "r1"), "old", "older")
    cursor = reading.ends_after(client, reading.Wanted(job), None, 100).cursor
    client.delete_job(job, force=True)
    with pytest.raises(TrackerError, match="UNKNOWN_JOB"):
        reading.ends_after(client, reading.Wanted(job), cursor, 100)
    client.define_job(spec(job))
    end(client.open_producer(job, "till", "r1"), "new")
    assert names(reading.ends_after(client, reading.Wanted(job), cursor, 100)) == ["new"]


def test_a_cursor_whose_events_are_gone_is_an_error(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, retention=timedelta(milliseconds=1)))
    till = client.open_producer(job, "till", "r1")
    end(till, "a")
    cursor = f"{client.job(job).log_id}:0"
    while client.list_events(job).first_seq <= 1:
        end(till, f"n{client.job(job).last_seq}")
        time.sleep(0.1)
    with pytest.raises(reading.CursorError, match="reset the sensor's cursor"):
        reading.ends_after(client, reading.Wanted(job), cursor, 100)
    for wrong in ("7", "log:", "log:x"):
        with pytest.raises(reading.CursorError, match="is no cursor"):
            reading.ends_after(client, reading.Wanted(job), wrong, 100)
