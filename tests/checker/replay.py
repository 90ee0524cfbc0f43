"""Carries out a job's epochs on the reference model, in the order of the event log.

Each epoch closes a marker, whose end is in the log, so the log has the order in which the epochs took effect. The
model, which knows nothing of journals, leaders or networks, must come to the same events, one for one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from tests.checker.flow import FIRST, Line, parts
from tests.model.lines import JOB, Driver
from tests.model.reference import ReferenceTracker

Epoch: TypeAlias = tuple[str, int]  # producer, number
Body: TypeAlias = list[Any]


@dataclass
class Replayed:
    """A log as the model replays it.

    Args:
        order: the epochs, each with the number of its first event and of its last one.
        problem: where log and model part; empty: nowhere.
        seq: the last event before that.
        statuses: the job's status after some events.
    """

    order: list[tuple[Epoch, int, int]] = field(default_factory=list)
    problem: str = ""
    seq: int = 0
    statuses: dict[int, dict[str, Any]] = field(default_factory=dict)


def marker(body: Body) -> Epoch | None:
    """Return the epoch whose marker has ended, on the first segment; None for another event."""
    if body[0] == "ENDED" and body[1] == FIRST and body[2].startswith("p"):
        return body[2], int(body[3])
    return None


def skipped(epochs: Mapping[Epoch, Line], log: Sequence[Body]) -> list[Epoch]:
    """Return the epochs in two parts at which a producer was when records were lost: the log goes on behind them."""
    ended = {found for body in log if (found := marker(body))}
    there = sorted(ended | {(producer, -1) for producer, _ in ended})  # all of them start behind -1
    return [
        (producer, number + 1)
        for (producer, number), (other, later) in pairwise(there)
        if producer == other and later > number + 1 and len(epochs[producer, number + 1]["units"]) > 1
    ]


def replay(
    definition: Line,
    epochs: Mapping[Epoch, Line],
    log: Sequence[Body],
    looks: set[int],
    begun: Collection[Epoch] = (),
) -> Replayed:
    """Carry out a log in the model.

    Args:
        definition: the job's.
        epochs: what they contain.
        log: the bodies of its events, from the first on.
        looks: after which events the status is wanted.
        begun: epochs of which only the first part counts, as their producer's next report settles.
    """
    model = ReferenceTracker("model")
    driver, replayed = Driver(model), Replayed()
    driver.run(definition)
    opened: set[str] = set()
    done: set[Epoch] = set()
    while replayed.seq < len(log):
        epoch = next((found for body in log[replayed.seq :] if (found := marker(body))), None)
        if epoch is None or epoch not in epochs:
            what = f"epoch {epoch}, which no client has begun" if epoch else "no epoch of a client"
            replayed.problem = f"event {replayed.seq + 1}, {log[replayed.seq]}, belongs to {what}"
            return replayed
        if epoch in done:
            replayed.problem = f"epoch {epoch} has taken effect a second time, after event {replayed.seq}"
            return replayed
        if epoch[0] not in opened:
            opened.add(epoch[0])
            driver.run({"do": "open", "producer": epoch[0], "run": "r", "mode": "STAGED"})
        first, expected = replayed.seq + 1, list[list[Any]]()
        for each in sorted(each for each in begun if _is_next(each, done) and each[0] in opened):
            trial = deepcopy(driver)
            _, settled = trial.run(parts(epochs[each])[0])
            if settled and settled == list(log[replayed.seq : replayed.seq + len(settled)]):
                replayed.seq += len(settled)
            elif each[0] == epoch[0]:
                expected += settled
            else:
                continue
            driver = trial
            done.add(each)
        expected += driver.run(epochs[epoch])[1]
        done.add(epoch)
        logged = log[replayed.seq : replayed.seq + len(expected)]
        if _comparable(logged) != _comparable(expected):
            replayed.problem = f"after event {replayed.seq}, epoch {epoch}: {_difference(expected, logged)}"
            return replayed
        replayed.seq += len(expected)
        replayed.order.append((epoch, first, replayed.seq))
        if replayed.seq in looks:
            replayed.statuses[replayed.seq] = _status(model)
    return replayed


def _is_next(epoch: Epoch, done: Collection[Epoch]) -> bool:
    """Return whether an epoch follows on its producer's last one."""
    producer, number = epoch
    return epoch not in done and (number == 0 or (producer, number - 1) in done)


def _comparable(bodies: Sequence[Body]) -> list[Body]:
    """Sort late entries: they come in a report's order, and the client combines entries in its own."""
    return sorted(body for body in bodies if body[0] == "LATE") + [body for body in bodies if body[0] != "LATE"]


def _difference(expected: Sequence[Body], found: Sequence[Body]) -> str:
    missing = [body for body in expected if body not in found]
    surplus = [body for body in found if body not in expected]
    if missing or surplus:
        return f"the model has {missing[:3]}, and the log {surplus[:3]}"
    return f"the model has the order {list(expected)[:4]}, and the log {list(found)[:4]}"


def _status(model: ReferenceTracker) -> dict[str, Any]:
    status = model.job_status(JOB)
    return {
        "open": status.open_substreams,
        "ended": status.ended_substreams,
        "in_flight": status.in_flight,
        "committed": {
            each.producer: each.committed_epoch for each in status.producers if each.committed_epoch is not None
        },
    }
