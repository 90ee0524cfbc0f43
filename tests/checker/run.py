"""A run: clients work on a cluster while a plan's faults strike; then what they saw is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.checker.answering import Answering
from tests.checker.cluster import Cluster
from tests.checker.crowd import Crowd
from tests.checker.faults import KINDS
from tests.checker.history import History, recorded
from tests.checker.judge import Verdict, judge
from tests.checker.nemesis import Nemesis
from tests.checker.plan import Plan

_FINISH_S: Final = 90.0  # for the work in hand, once all faults are over
_OPTIONS: Final = "lease=1"  # of the journal's address


@dataclass(frozen=True)
class Run:
    """What came of a run."""

    verdict: Verdict
    history: Path


def run(plan: Plan, directory: Path, say: Callable[[str], None] = lambda _: None) -> Run:
    """Carries out a plan, and judges what clients saw.

    Args:
        plan: the plan.
        directory: of logs, data, the plan and the history; it must not exist.
        say: gets lines for people.
    """
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(plan.as_json())
    file = directory / "history.jsonl"
    with recorded(file) as history:
        stuck = _work(plan, directory, history, say)
    verdict = judge(history.operations, stuck)
    return Run(verdict, file)


def _work(plan: Plan, directory: Path, history: History, say: Callable[[str], None]) -> list[str]:
    """Returns who has not come to an end."""
    cluster = Cluster(directory, plan.journal, plan.size.groups, history, plan.plant, _OPTIONS)
    try:
        for kind in dict.fromkeys(fault.kind for fault in plan.faults):
            KINDS[kind].prepare(cluster)
        cluster.start()
        cluster.wait_until_it_serves()
        answering = Answering(cluster.process)
        with answering.installed():
            addresses = [cluster.addresses(group) for group in range(plan.size.groups)]
            crowd = Crowd(addresses, plan.size, plan.seed, history, answering)
            crowd.start()
            Nemesis(cluster, history).play(plan, say)
            stuck = crowd.finish(_FINISH_S)
        cluster.restart_all()  # what was confirmed must also be in the journal
        crowd.look_at_the_end(cluster.direct)
    finally:
        cluster.end()
    return stuck
