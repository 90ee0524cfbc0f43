"""The judge finds nothing in an exact history, and finds each damage that is done to one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.checker.flow import Flow, parts
from tests.checker.history import Operation, read, recorded
from tests.checker.judge import judge
from tests.checker.readers import see_all
from tests.model.lines import JOB, Driver
from tracker.core import Tracker

LOG = "log-1"
DEFINITION = {
    "do": "define",
    "deployment": "d1",
    "segments": [["a", ["b"]], ["b", []]],
    "fronts": ["f0", "f1"],
    "ordering": "NONE",
    "progress": True,
}


def exact(half: tuple[int, int] | None = None, seed: int = 3) -> list[Operation]:
    """Return what two producers, a watcher and a reader see of the core itself, one call after the other.

    Args:
        half: a producer's epoch of which only the first part counts, once the next one settles that.
        seed: decides what they send.
    """
    core = Tracker("core")
    driver = Driver(core)
    flow = Flow("j", Random(seed), producers=2, epochs=6)
    operations: list[Operation] = []
    events: list[list[Any]] = []

    def add(client: str, kind: str, asked: dict[str, Any], **answer: Any) -> None:
        began = float(len(operations))
        operations.append(Operation(client, kind, "j", began, asked, began + 0.5, "ok", answer, "0.1"))

    driver.run(DEFINITION)
    add("p0", "define", {"fronts": flow.fronts}, log_id=LOG, created=True, last_seq=0)
    for producer in flow.fronts:
        name = producer.replace("f", "p")
        driver.run({"do": "open", "producer": name, "run": "r", "mode": "STAGED"})
        add(name, "open", {"producer": name, "run": "r1", "epoch": 0}, committed=-1)
    order = [(place, number) for number in range(6) for place in range(2)] + [(0, 6), (0, 7)]
    for place, number in order:
        line = flow.epoch(place, number)
        add(f"p{place}", "epoch", {"line": line})
        if (place, number) == half:
            begun = parts(line)[0]
            continue
        new = driver.run(begun)[1] if (place, number - 1) == half else []
        new += driver.run(line)[1]
        asked = {"producer": f"p{place}", "epoch": number}
        add(f"p{place}", "commit", asked, outcome="APPLIED", last_seq=len(events) + len(new))
        for body in new:
            events.append([len(events) + 1, body])
            add("w", "event", {"watch": "w/1"}, seq=len(events), log_id=LOG, body=body)
        status = core.view(JOB).status()
        add(
            "r",
            "status",
            {},
            last_seq=len(events),
            log_id=LOG,
            open=status.open_substreams,
            ended=status.ended_substreams,
            in_flight=status.in_flight,
            committed={each.producer: each.committed_epoch for each in status.producers},
        )
        add("r", "list", {"after": 0}, last_seq=len(events), log_id=LOG, events=deepcopy(events))
    add("end", "final", {}, log_id=LOG, events=events, times=[float(seq) for seq, _ in events], status={})
    return operations


EXACT = exact()


def of(operations: list[Operation], kind: str) -> list[Operation]:
    return [each for each in operations if each.kind == kind]


def renumbered(operations: list[Operation]) -> None:
    final = of(operations, "final")[0].answer
    final["events"] = [[seq, body] for seq, (_, body) in enumerate(final["events"], 1)]


def without_an_epoch(operations: list[Operation]) -> None:
    """Leave the last epoch of producer 1 out, as if it had never been."""
    events = of(operations, "final")[0].answer["events"]
    events[:] = [each for each in events if each[1][1:4] not in (["a", "p1", "5"], ["b", "p1", "5"])]
    renumbered(operations)


def without_an_end(operations: list[Operation]) -> None:
    events = of(operations, "final")[0].answer["events"]
    place = next(n for n, (_, body) in enumerate(events) if body[0] == "ENDED" and body[3].startswith("w"))
    del events[place]
    renumbered(operations)


def with_a_false_end(operations: list[Operation]) -> None:
    events = of(operations, "final")[0].answer["events"]
    events.insert(5, [0, ["ENDED", "a", "t1", "w99", 1000, 0, "COMPLETE", 0]])
    renumbered(operations)


def with_an_end_twice(operations: list[Operation]) -> None:
    events = of(operations, "final")[0].answer["events"]
    place = next(n for n, (_, body) in enumerate(events) if body[0] == "ENDED" and body[3].startswith("w"))
    events.insert(place + 1, events[place])
    renumbered(operations)


def with_a_gap_in_the_log(operations: list[Operation]) -> None:
    del of(operations, "final")[0].answer["events"][7]


def with_a_gap_in_a_watch(operations: list[Operation]) -> None:
    operations.remove(of(operations, "event")[4])


def with_an_event_of_its_own(operations: list[Operation]) -> None:
    of(operations, "event")[4].answer["body"] = ["ADVANCED", "a", 77]


def with_an_event_too_many(operations: list[Operation]) -> None:
    last = of(operations, "event")[-1]
    more = {**last.answer, "seq": last.answer["seq"] + 1}
    operations.append(replace(last, answer=more))


def with_an_old_status(operations: list[Operation]) -> None:
    """Put an earlier status in the place of the last one."""
    first, *_, last = of(operations, "status")
    last.answer = dict(first.answer)


def with_a_wrong_status(operations: list[Operation]) -> None:
    of(operations, "status")[3].answer["in_flight"] += 1


def with_half_an_epoch(operations: list[Operation]) -> None:
    status = of(operations, "status")[3]
    status.answer["last_seq"] -= 1


def with_an_old_run(operations: list[Operation]) -> None:
    late = of(operations, "open")[0]
    operations.append(replace(late, began=1e6, ended=1e6 + 1, answer={"committed": 2}))


def with_another_order(operations: list[Operation]) -> None:
    """Have the first epoch confirmed, and sent, after all others."""
    commit = of(operations, "commit")[0]
    commit.began, commit.ended = 1e6, 1e6 + 1


def with_an_event_before_its_cause(operations: list[Operation]) -> None:
    operations.remove(of(operations, "status")[0])
    operations.remove(of(operations, "list")[0])
    of(operations, "event")[0].ended = 0.1


def with_another_log(operations: list[Operation]) -> None:
    of(operations, "define")[0].answer["log_id"] = "log-0"


def with_a_loss_that_nobody_is_told(operations: list[Operation]) -> None:
    without_an_epoch(operations)
    fault = {"fault": "promote older"}
    operations.append(Operation("nemesis", "fault", "", 0.0, fault, 1e6, "ok", {"lost": 3}))


def with_a_loss_that_nobody_accepted(operations: list[Operation]) -> None:
    with_another_log(operations)
    operations.append(Operation("nemesis", "fault", "", 0.0, {"fault": "older redis"}, 1e6, "ok", {"lost": 3}))


def with_a_job_that_is_gone(operations: list[Operation]) -> None:
    of(operations, "final")[0].answer.update(log_id="", events=[], times=[])
    operations.append(Operation("nemesis", "fault", "", 0.0, {"fault": "older redis"}, 1e6, "ok", {"lost": 3}))


def with_a_refusal(operations: list[Operation]) -> None:
    commit = of(operations, "commit")[2]
    operations.append(replace(commit, outcome="refused", answer={"reason": "UNKNOWN_JOB"}))


def with_two_leaders(operations: list[Operation]) -> None:
    statuses = of(operations, "status")
    for operation in statuses[3:6]:
        operation.by = "1.1"


def with_time_that_goes_back(operations: list[Operation]) -> None:
    of(operations, "final")[0].answer["times"][5] = 0.0


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (without_an_epoch, "lost"),
        (without_an_end, "not what the model has"),
        (with_a_false_end, "not what the model has"),
        (with_an_end_twice, "not what the model has"),
        (with_a_gap_in_the_log, "gap in the log"),
        (with_a_gap_in_a_watch, "gap in a watch"),
        (with_an_event_of_its_own, "two events with one number"),
        (with_an_event_too_many, "an event that is gone"),
        (with_an_old_status, "stale"),
        (with_a_wrong_status, "a wrong status"),
        (with_half_an_epoch, "half an epoch"),
        (with_an_old_run, "stale"),
        (with_another_order, "order"),
        (with_an_event_before_its_cause, "an event before its cause"),
        (with_another_log, "another log without a loss"),
        (with_a_loss_that_nobody_is_told, "loss without another log"),
        (with_a_loss_that_nobody_accepted, "a loss that nobody accepted"),
        (with_a_job_that_is_gone, "a loss that nobody accepted"),
        (with_a_refusal, "refused with UNKNOWN_JOB"),
        (with_two_leaders, "two leaders"),
        (with_time_that_goes_back, "time goes back"),
    ],
)
def test_a_damage_is_found(damage: Callable[[list[Operation]], None], found: str) -> None:
    operations = deepcopy(EXACT)
    damage(operations)
    verdict = judge(operations)
    assert found in {finding.kind for finding in verdict.findings}, verdict.shown()


def test_an_exact_history_shows_nothing() -> None:
    verdict = judge(EXACT)
    assert not verdict.findings, verdict.shown()
    assert verdict.figures["commits"] == 14


def test_calls_of_unknown_outcome_may_have_taken_effect_or_not() -> None:
    operations = deepcopy(EXACT)
    commit = of(operations, "commit")[-1]
    commit.outcome, commit.answer = "unknown", {"error": "no answer"}
    assert not judge(operations).findings


def test_a_loss_that_readers_are_told_excuses_what_is_missing() -> None:
    operations = deepcopy(EXACT)
    with_a_loss_that_nobody_is_told(operations)
    final = of(operations, "final")[0]
    of(operations, "event").clear()
    kept = [each for each in operations if each.kind not in ("event", "list", "status")]
    final.answer["log_id"] = "log-2"
    kinds = {finding.kind for finding in judge(kept).findings}
    assert not kinds & {"lost", "loss without another log", "another log without a loss"}


@pytest.mark.parametrize(("seed", "epochs"), [(3, range(1, 5)), (5, range(1))], ids=["a later one", "the first"])
def test_after_a_loss_an_epoch_may_count_by_its_first_part(seed: int, epochs: range) -> None:
    """Its second part and its commit are lost, and its producer goes on behind it."""
    begun = next(
        (line["producer"], line["epoch"])
        for line in (each.asked["line"] for each in of(exact(seed=seed), "epoch"))
        if len(line["units"]) > 1 and parts(line)[0]["entries"] and line["epoch"] in epochs
    )
    operations = exact((int(begun[0][1:]), begun[1]), seed)
    assert {finding.kind for finding in judge(operations).findings} == {"not what the model has"}
    operations.append(Operation("nemesis", "fault", "", 0.0, {"fault": "older redis"}, 1e6, "ok", {"lost": 3}))
    assert not judge(operations).findings


def test_a_job_that_is_lost_before_all_was_seen_is_defined_again() -> None:
    steps = iter([(140, 137), (None, 137), (2, 0), (2, 2)])  # what the job's status and a watcher have
    watcher, defined = SimpleNamespace(seq=0), list[int]()

    def status() -> dict[str, int] | None:
        last, watcher.seq = next(steps)
        return None if last is None else {"last_seq": last}

    reader = SimpleNamespace(status=status, pause=lambda: None)
    turns = count()
    see_all(reader, [watcher], lambda: defined.append(watcher.seq), lambda: next(turns) > 9)  # type: ignore[arg-type, list-item]
    assert (defined, [*steps]) == ([137], [])


def test_a_history_is_the_same_in_its_file(tmp_path: Path) -> None:
    with recorded(tmp_path / "history.jsonl") as history:
        history.end(history.begin("p0", "commit", "j", producer="p0", epoch=3), "ok", "0.1", outcome="APPLIED")
        history.begin("p0", "commit", "j", producer="p0", epoch=4)  # it never ends
        history.note("w", "event", "j", {"watch": "w/1"}, seq=1, log_id=LOG, body=["ADVANCED", "a", 10])
    assert read(tmp_path / "history.jsonl") == history.operations
    assert [each.outcome for each in history.operations] == ["ok", "ok", "unknown"]
