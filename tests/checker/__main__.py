"""Checks the tracker: clients work while faults strike, and what they saw is judged.

python -m tests.checker                                       # one run of a minute, with a seed that it prints
python -m tests.checker --minutes 60 --seed 7                 # runs with the seeds 7, 8, …, for an hour
python -m tests.checker --seed 7 --runs 1 --shrink            # and a plan that fails is cut down
python -m tests.checker --plan checker/7/plan.json            # a run's faults again
python -m tests.checker --show "no fencing"                   # a planted fault is found
python -m tests.checker --judge checker/7/history.jsonl       # only judge
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import SystemRandom

from tests.checker.crowd import Size
from tests.checker.faults import KINDS
from tests.checker.history import read
from tests.checker.judge import judge
from tests.checker.plan import Plan, draw, planted, shrink
from tests.checker.plants import PLANTS
from tests.checker.run import Run, run

_TRIES = 3  # of a smaller plan, before it counts as one that does not fail


def main() -> int:
    given = _arguments()
    if given.judge:
        verdict = judge(read(given.judge))
        print(verdict.shown())
        return int(bool(verdict.findings))
    until = time.monotonic() + 60 * given.minutes
    seed = SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    failed = 0
    for number in count():
        if given.plan:
            plan = Plan.read(given.plan.read_text())
        elif given.show:
            plan = planted(given.show, seed + number)
        else:
            size = Size(given.groups, given.producers)
            plan = draw(seed + number, given.seconds, given.journal, size, given.only, given.pace)
        plan = replace(plan, plant=given.plant or plan.plant)
        outcome = _run(plan, given.directory, f"{plan.seed}")
        if outcome.verdict.findings:
            failed += 1
            if given.shrink:
                _shrink(plan, given.directory, {finding.kind for finding in outcome.verdict.findings})
            break
        if (given.runs and number + 1 >= given.runs) or (not given.runs and time.monotonic() > until):
            break
    return int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0, help="new runs begin until then; at least one is made")
    parser.add_argument("--runs", type=int, default=0, help="so many runs, however long they take")
    parser.add_argument("--seed", type=int, help="of the first run; the next one has the next seed")
    parser.add_argument("--seconds", type=float, default=45, help="of each run, in which faults strike")
    parser.add_argument("--pace", type=float, default=2, help="seconds between two faults, on the average")
    parser.add_argument("--journal", choices=("redis", "sqlite", "objects"), default="redis")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=(), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--groups", type=int, default=2, help="of clients, each with a job at a time")
    parser.add_argument("--producers", type=int, default=3, help="in each group")
    parser.add_argument("--plant", choices=PLANTS, default="", help="plant a fault, to see that it is found")
    parser.add_argument("--show", choices=PLANTS, help="plant a fault, and play the plan that shows it")
    parser.add_argument("--plan", type=Path, help="play the faults of this file")
    parser.add_argument("--shrink", action="store_true", help="cut a plan down that shows a fault")
    parser.add_argument("--judge", type=Path, help="only judge a history")
    parser.add_argument("--directory", type=Path, default=Path("checker"), help="of plans, histories and logs")
    return parser.parse_args()


def _run(plan: Plan, directory: Path, name: str) -> Run:
    names = (f"{name}-{number}" if number else name for number in count())
    where = next(path for each in names if not (path := directory / each).exists())
    print(f"seed {plan.seed}, {len(plan.faults)} faults in {plan.seconds:g} s, in {where}", flush=True)
    outcome = run(plan, where, lambda line: print(f"  {line}", flush=True))
    print(outcome.verdict.shown(), flush=True)
    return outcome


def _shrink(plan: Plan, directory: Path, kinds: set[str]) -> None:
    def fails(smaller: Plan) -> bool:
        return any(
            kinds & {finding.kind for finding in _run(smaller, directory, f"{plan.seed}-smaller").verdict.findings}
            for _ in range(_TRIES)
        )

    smallest = shrink(plan, fails)
    (directory / f"{plan.seed}-smallest.json").write_text(smallest.as_json())
    print("\n".join(["the smallest plan that has shown it:", *(fault.shown() for fault in smallest.faults)]))


if __name__ == "__main__":
    sys.exit(main())
