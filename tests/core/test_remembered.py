"""The memory of a job for what is gone is bounded: runs, deployments, and the numbers of producers."""

from __future__ import annotations

from tests.core.differential import difference
from tests.core.test_readings import SENT, define, report, start
from tests.model.lines import JOB, Driver, Line
from tracker.core import Tracker
from tracker.core.producers import NEWEST


def run_through(lines: list[Line]) -> tuple[Tracker, object]:
    tracker = Tracker("log")
    driver = Driver(tracker)
    said = None
    for line in lines:
        said = driver.run(line)
    return tracker, said


def test_the_newest_runs_are_remembered_and_older_ones_refused_all_the_same() -> None:
    lines = [define(), *(start(f"p{i}") for i in range(NEWEST + 3))]
    fenced = {"code": "FAILED_PRECONDITION", "reason": "FENCED"}
    for old in (0, 1, 2, NEWEST + 1):
        assert run_through([*lines, report(f"p{old}", 0, "u", [SENT])])[1] == (fenced, [])
    for old in (2, NEWEST + 1):
        assert run_through([*lines, start(f"p{old}")])[1] == (fenced, [])
    assert not difference([*lines, start("p2"), start("p1"), start("p3")])
    tracker, _ = run_through([*lines, start("p0")])
    assert len(tracker._jobs[JOB].producers["p"].past) == NEWEST


def test_the_newest_deployments_that_were_left_are_remembered() -> None:
    lines = [define(f"d{i}") for i in range(NEWEST + 2)]
    tracker, _ = run_through(lines)
    assert len(tracker._jobs[JOB].past_deployments) == NEWEST
    mismatch = {"code": "FAILED_PRECONDITION", "reason": "DEPLOYMENT_MISMATCH"}
    assert run_through([*lines, define("d1")])[1] == (mismatch, [])
    assert not difference([*lines, define("d1"), define("d0")])


def test_names_of_forgotten_producers_are_kept_while_an_accumulator_shows_them() -> None:
    lines: list[Line] = [define()]
    for i in range(500):
        name = f"{i}"
        entries = [["t", "s", 10, "a", 7, 1, 0]] if i in (100, 200) else []
        lines += [
            {"do": "open", "producer": name, "run": "r", "mode": "STAGED"},
            {"do": "report", "producer": name, "run": "r", "epoch": 0, "units": ["u"], "commit": True}
            | {"entries": entries, "promises": []},
            {"do": "forget", "producer": name},
        ]
    tracker, _ = run_through(lines)
    assert len(tracker._jobs[JOB].numbers.names) < 200
    ((substream,), _) = tracker.view(JOB).substreams()
    assert substream.segments[0].last_sender == "200"
    assert not difference([*lines[:400], lines[-1] | {"look": True}])
    assert Tracker.load(tracker.dump()).view(JOB).substreams()[0] == [substream]


def test_a_producer_that_comes_and_goes_has_one_number() -> None:
    lines: list[Line] = [define()]
    for _ in range(100):
        lines += [start("p1"), {"do": "forget", "producer": "p"}]
    tracker, _ = run_through(lines)
    assert tracker._jobs[JOB].numbers.names == ["p"]
