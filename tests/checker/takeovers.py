"""Time without service for clients when the leader is lost: many takeovers, one after the other, judged as any run.

python -m tests.checker.takeovers --faults 300                     # on a Redis that is started for it
python -m tests.checker.takeovers --journal sqlite --faults 30
python -m tests.checker.takeovers --faults 20 --open 1000000       # with so many open substreams beside
python -m tests.checker.takeovers --faults 20 --json figures.json  # adds to the figures in the file
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from tests.checker.cluster import Cluster, Place
from tests.checker.crowd import Size
from tests.checker.faults import KINDS
from tests.checker.history import History, Operation
from tests.checker.plan import Plan
from tests.checker.run import run

_HELD: Final = {"requests": True, "answers": True, "late": False}
#: How the leader is lost, and what else that needs.
LOSSES: Final[dict[str, dict[str, Any]]] = {
    "kill": {},
    "stop": {},
    "sleep": {},
    "isolate": _HELD,
    "cut journal": _HELD,
}
_KINDS: Final = {
    "redis": tuple(LOSSES),
    "sqlite": ("kill", "stop"),  # a process that sleeps or is cut off keeps its lock on a file
    "objects": ("kill", "stop", "sleep"),  # files, to which no line leads
}
_SIZE: Final = Size(groups=3, producers=2, epochs=20, patient=True)
_LOOK_S: Final = 0.01
_SETTLE_S: Final = 1.0  # from the moment at which the standby stands by: it has read the journal then
_SETTLE_AT: Final = 100_000  # open substreams that a standby reads in a second, at least
_GIVEN_UP_S: Final = 120.0


def main() -> int:
    given = _arguments()
    figures: dict[str, Any] = {"gaps": {}, "found": {}, "commits": 0}
    if given.json and given.json.exists():
        figures = json.loads(given.json.read_text())
    kinds = given.only or _KINDS[given.journal]
    plan = Plan(given.seed, 0, (), _SIZE, given.journal, lease=given.lease, open_substreams=given.open)
    takeovers = Takeovers(list(islice(cycle(kinds), given.faults)), given.open)
    with tempfile.TemporaryDirectory() as directory:
        outcome = run(plan, Path(directory) / "run", lambda line: print(f"  {line}", flush=True), takeovers.play)
    print(outcome.verdict.shown(), flush=True)
    for kind, *gap in takeovers.gaps:
        figures["gaps"].setdefault(kind, []).append([round(each, 3) for each in gap])
    figures["commits"] += outcome.verdict.figures["commits"]
    figures["found"] = dict(Counter(figures["found"]) + Counter(finding.kind for finding in outcome.verdict.findings))
    if given.json:
        given.json.write_text(json.dumps(figures))
    print(table(figures))
    return int(bool(figures["found"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", choices=tuple(_KINDS), default="redis")
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=LOSSES, default=(), metavar="KIND", help=", ".join(LOSSES))
    parser.add_argument(
        "--lease", type=float, default=0, help="seconds, of a journal in Redis or an object store; 0: the default"
    )
    parser.add_argument("--open", type=int, default=0, help="substreams that stay open beside the clients' work")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="figures, to which those of this call are added")
    return parser.parse_args()


class Takeovers:
    """A thief of the leader, again and again, each time when its standby is there.

    Args:
        kinds: how, each time.
        open_substreams: how many a standby has to read.

    Attributes:
        gaps: kinds, each with the seconds until the last group of clients had a commit confirmed by the next leader,
            and until the last of their watchers had its event.
    """

    def __init__(self, kinds: Sequence[str], open_substreams: int = 0) -> None:
        self._kinds = kinds
        self._settle_s = _SETTLE_S + open_substreams / _SETTLE_AT
        self.gaps: list[tuple[str, float, float]] = []

    def play(self, cluster: Cluster, history: History, say: Callable[[str], None]) -> None:
        """Take the leader away, and wait for the next one, as often as there are kinds."""
        for number, kind in enumerate(self._kinds, 1):
            leader = self._settled(cluster, history)
            operation = history.begin("nemesis", "fault", "", fault=kind, target="leader")
            _, end = KINDS[kind].strike(cluster, str(leader.number), LOSSES[kind])
            commits = _first_commits(history, operation.began, by=1 - leader.number)
            commit = max(_end(each) for each in commits) - operation.began
            event = _first_events(history, commits) - operation.began
            end()
            history.end(operation, "ok", place=leader.number)
            self.gaps.append((kind, commit, event))
            say(f"{number:4} of {len(self._kinds)}  {kind:12} {commit:6.2f} s to a commit, {event:6.2f} s to an event")

    def _settled(self, cluster: Cluster, history: History) -> Place:
        """Wait until a leader serves everybody, and a standby stands by. Return the leader's place."""
        while True:
            leader = cluster.leader()
            if leader is not None and cluster.places[1 - leader.number].stands_by:
                time.sleep(self._settle_s)
                _first_commits(history, history.now(), by=leader.number)
                if cluster.leader() is leader and cluster.places[1 - leader.number].stands_by:
                    return leader
            time.sleep(_LOOK_S)


def _first_commits(history: History, after: float, by: int) -> list[Operation]:
    """Wait until each group has a commit that a place has confirmed, and return the first of each."""
    firsts: dict[str, Operation] = {}
    place = 0
    while len(firsts) < _SIZE.groups:
        if history.now() > after + _GIVEN_UP_S:
            raise TimeoutError(f"only {list(firsts)} have had an answer of place {by} in {_GIVEN_UP_S:g} s")
        operations = history.operations[place:]
        place += len(operations)
        for each in operations:
            is_new = each.kind == "commit" and each.outcome == "ok" and (each.ended or 0) > after
            if is_new and each.by.startswith(f"{by}."):
                firsts.setdefault(each.client.partition("-")[0], each)
        time.sleep(_LOOK_S)
    return list(firsts.values())


def _first_events(history: History, commits: Sequence[Operation]) -> float:
    """Wait until all watchers have the events of commits. Return when the last one had them."""
    missing = {f"{each.job}/w{number}": each.answer["last_seq"] for each in commits for number in range(2)}
    place, last, until = 0, 0.0, history.now() + _GIVEN_UP_S
    while missing:
        if history.now() > until:
            raise TimeoutError(f"{list(missing)} have not had their events in {_GIVEN_UP_S:g} s")
        operations = history.operations[place:]
        place += len(operations)
        for each in operations:
            if (
                each.kind == "event"
                and each.outcome == "ok"
                and each.answer["seq"] >= missing.get(each.client, math.inf)
            ):
                del missing[each.client]
                last = max(last, _end(each))
        time.sleep(_LOOK_S)
    return last


def _end(operation: Operation) -> float:
    return operation.ended or 0.0


def table(figures: dict[str, Any]) -> str:
    """Return figures as a table."""
    lines = [
        "| the leader | times | until a commit: p50 | p99 | max | until an event: p50 | p99 | max |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, values in figures["gaps"].items():
        cells = [f"{value:.2f} s" for column in zip(*values, strict=True) for value in _quantiles(column)]
        lines.append(f"| {kind} | {len(values)} | {' | '.join(cells)} |")
    found = figures["found"] or "nothing lost, doubled, false or out of order"
    return "\n".join([*lines, f"{figures['commits']} commits confirmed; found: {found}"])


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1]


if __name__ == "__main__":
    sys.exit(main())
