"""A run: clients work on a cluster while a plan's faults strike; then what they saw is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from tests.checker.answering import Answering
from tests.checker.cluster import Cluster
from tests.checker.crowd import Crowd
from tests.checker.faults import KINDS
from tests.checker.history import History, recorded
from tests.checker.judge import Verdict, judge
from tests.checker.nemesis import Nemesis
from tests.checker.plan import Plan
from tracker.client import JobSpec, TrackerClient

_FINISH_S: Final = 90.0  # for the work in hand, once all faults are over
_OPEN_AT_ONCE: Final = 20_000  # substreams in one report


@dataclass(frozen=True)
class Run:
    """Outcome of a run."""

    verdict: Verdict
    history: Path


#: Lets faults strike, and returns when they are over; it gets a `say`, too.
Play: TypeAlias = Callable[[Cluster, History, Callable[[str], None]], None]


def run(plan: Plan, directory: Path, say: Callable[[str], None] = lambda _: None, play: Play | None = None) -> Run:
    """Carry out a plan, and judge what clients saw.

    Args:
        plan: the plan.
        directory: of logs, data, the plan and the history; it must not exist.
        say: gets lines for people.
        play: what happens in place of the plan's faults.
    """
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(plan.as_json())
    file = directory / "history.jsonl"
    with recorded(file) as history:
        stuck = _work(plan, directory, history, say, play or partial(_play, plan))
    verdict = judge(history.operations, stuck)
    return Run(verdict, file)


def _play(plan: Plan, cluster: Cluster, history: History, say: Callable[[str], None]) -> None:
    Nemesis(cluster, history).play(plan, say)


def _work(plan: Plan, directory: Path, history: History, say: Callable[[str], None], play: Play) -> list[str]:
    """Return those who have not come to an end."""
    options = f"lease={plan.lease}" if plan.lease else ""
    cluster = Cluster(directory, plan.journal, plan.size.groups, history, plan.plant, options)
    try:
        for kind in dict.fromkeys(fault.kind for fault in plan.faults):
            KINDS[kind].prepare(cluster)
        cluster.start()
        cluster.wait_until_it_serves()
        if plan.open_substreams:
            open_substreams(cluster.direct, plan.open_substreams)
        answering = Answering(cluster.process)
        with answering.installed():
            addresses = [cluster.addresses(group) for group in range(plan.size.groups)]
            crowd = Crowd(addresses, plan.size, plan.seed, history, answering)
            crowd.start()
            play(cluster, history, say)
            cluster.heal()
            stuck = crowd.finish(_FINISH_S)
        cluster.restart_all()  # what was confirmed must also be in the journal
        crowd.look_at_the_end(cluster.direct)
    finally:
        cluster.end()
    return stuck


def open_substreams(address: str, count: int) -> None:
    """Open substreams of a job that nobody works on, and which so stay open."""
    with TrackerClient(address, timeout=60, retry_for=600) as client:
        client.define_job(JobSpec(job="open", deployment="d1", segments={"raw": []}))
        producer = client.open_producer("open", "p", "r")
        for first in range(0, count, _OPEN_AT_ONCE):
            numbers = range(first, min(count, first + _OPEN_AT_ONCE))
            labels, ones, zeros = np.array(numbers) + 1, np.ones(len(numbers), int), np.zeros(len(numbers), int)
            report = producer.epoch()
            report.add_columns(
                "raw", ["all"] * len(numbers), [str(each) for each in numbers], None, labels, ones, zeros
            )
            report.report(commit=True)
