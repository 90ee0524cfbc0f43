"""The command: plays rounds and says what came of them."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.chaos.plan import DRIVERS, WEIGHTS, drawn, faults
from tests.chaos.rounds import Outcome, Round
from tests.chaos.table import summary, table

_KILLS = ("kill worker", "kill executor", "kill driver", "kill tracker")


def main() -> int:
    """Plays rounds until one of the limits is reached.

    Returns:
        0 if all rounds were exact; with a protection taken out: if damage was found.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="at most so many")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next have the next numbers")
    parser.add_argument("--kills", type=int, help="until so many of each kind of kill were injected")
    parser.add_argument("--minutes", type=float, help="begin no round after so many")
    parser.add_argument("--faults", type=int, default=16, help="in a round")
    parser.add_argument("--files", type=int, default=24, help="of rows that are fed in a round")
    parser.add_argument("--without", choices=("units", "commit", "seal"), help="take a protection out")
    parser.add_argument("--only", nargs="+", choices=tuple(WEIGHTS), help="these kinds of faults")
    parser.add_argument("--json", type=Path, help="write what came of it there, too, after each round")
    given = parser.parse_args()
    outcomes: list[Outcome] = []
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    for seed in range(given.seed, given.seed + given.rounds):
        if given.minutes is not None and time.monotonic() - began > 60 * given.minutes:
            break
        if given.kills is not None and all(
            sum(outcome.injected[kind] for outcome in outcomes) >= given.kills for kind in _KILLS
        ):
            break
        kinds = given.only or [kind for kind in WEIGHTS if given.without != "seal" or kind not in DRIVERS]
        path = root / f"round-{seed}"
        round_began = time.monotonic()

        def say(text: str, seed: int = seed, since: float = round_began) -> None:
            print(f"round {seed} {time.monotonic() - since:6.1f} s  {text}", flush=True)

        plan = faults(seed, drawn(seed, given.faults, kinds))
        outcome = Round(seed, path, plan, given.files, given.without, say).play()
        outcomes.append(outcome)
        traits = [trait for trait in ("seal", "audit", "splits", "drains") if getattr(outcome.shape, trait)]
        say(f"{'NOT EXACT' if outcome.problems else 'exact'} ({', '.join(traits) or 'plain'})")
        for problem in outcome.problems:
            say(f"    {problem}")
        if outcome.problems:
            say(f"    kept: {path}; again: {_again(seed, given)}")
        else:
            shutil.rmtree(path)
        if given.json is not None:
            rounds = [
                {**asdict(one.shape), "seconds": round(one.seconds, 1), "problems": one.problems} for one in outcomes
            ]
            content = {"command": sys.argv[1:], "faults": summary(outcomes), "rounds": rounds}
            given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(outcomes))
    damaged = any(outcome.problems for outcome in outcomes)
    return int(damaged != (given.without is not None))


def _again(seed: int, given: argparse.Namespace) -> str:
    """The command that plays one round again."""
    command = f"python -m tests.chaos --rounds 1 --seed {seed} --faults {given.faults} --files {given.files}"
    without = "" if given.without is None else f" --without {given.without}"
    only = "" if given.only is None else f" --only {shlex.join(given.only)}"
    return command + without + only


if __name__ == "__main__":
    sys.exit(main())
