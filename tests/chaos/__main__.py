"""The command: plays rounds and prints what came of them."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

from examples.services import jars
from tests.chaos.plan import BROKERS, EVENLY, SERVERS, STORES, WEIGHTS, drawn, faults, is_over_kafka
from tests.chaos.rounds import Round
from tests.chaos.spark_home import ARCHIVE, archive, spark_home
from tests.chaos.table import kills, read, table, write


def main() -> int:
    """Play rounds until one of the limits is reached.

    Returns:
        0 if all rounds were exact; with a protection taken out: if damage was found. A round that could not come to
        its end is neither, unless something was counted, announced or released wrongly.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="at most so many")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next have the next numbers")
    parser.add_argument("--kills", type=int, help="until so many of each kind of process were killed")
    parser.add_argument("--minutes", type=float, help="begin no round after so many")
    parser.add_argument("--faults", type=int, default=16, help="in a round")
    parser.add_argument("--files", type=int, default=24, help="of rows that are fed in a round")
    parser.add_argument("--without", choices=("units", "commit", "labels"), help="take a protection out")
    parser.add_argument("--lake", action="store_true", help="in a store of objects; results in files, Delta or Iceberg")
    parser.add_argument("--connect", action="store_true", help="over Spark Connect")
    parser.add_argument("--only", nargs="+", choices=tuple(WEIGHTS), help="these kinds of faults")
    parser.add_argument("--json", type=Path, help="write what came of it there, too, after each round")
    parser.add_argument("--resume", action="store_true", help="go on with the run that --json has, if it has one")
    given = parser.parse_args()
    if given.resume and given.json is None:
        parser.error("--resume goes on with what --json FILE has: give both")
    outcomes = read(given.json) if given.resume and given.json.exists() else []
    first = max((outcome.shape.seed + 1 for outcome in outcomes), default=given.seed)
    kafka = not given.lake and _has_kafka(needed=given.without == "labels")
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    home = spark_home(root / "spark")
    if given.rounds > 1 and (classes := archive(home)) is not None:
        os.environ[ARCHIVE] = str(classes)
    for seed in range(first, first + given.rounds):
        if given.minutes is not None and time.monotonic() - began > 60 * given.minutes:
            break
        if given.kills is not None:
            killed = kills(outcomes)
            print(f"so far: {', '.join(f'{kind} {number}' for kind, number in killed.items())}", flush=True)
            if min(killed.values()) >= given.kills:
                break
        path = root / f"round-{seed}"
        round_began = time.monotonic()

        def say(text: str, seed: int = seed, since: float = round_began) -> None:
            print(f"round {seed} {time.monotonic() - since:6.1f} s  {text}", flush=True)

        over_kafka = kafka and is_over_kafka(seed, given.without)
        there = ((over_kafka, BROKERS), (given.lake, STORES), (given.connect, SERVERS))
        left_out = {kind for has, kinds in there if not has for kind in kinds}
        kinds = [kind for kind in given.only or WEIGHTS if kind not in left_out]
        plan = faults(seed, drawn(seed, given.faults, kinds, WEIGHTS if given.kills is None else EVENLY))
        on = {"kafka": over_kafka, "home": home, "lake": given.lake, "connect": given.connect}
        outcome = Round(seed, path, plan, given.files, given.without, say, **on).play()
        outcomes.append(outcome)
        say(f"{'NOT EXACT' if outcome.problems else 'exact'} ({', '.join(outcome.shape.traits) or 'plain'})")
        for problem in outcome.problems:
            say(f"    {problem}")
        if outcome.problems:
            say(f"    kept: {path}; again: {_again(seed, given)}")
        else:
            shutil.rmtree(path)
        if given.json is not None:
            write(given.json, sys.argv[1:], outcomes)
    print(table(outcomes))
    if given.without is None:
        return int(any(outcome.problems for outcome in outcomes))
    found = [problem for outcome in outcomes for problem in outcome.damage]
    print(f"without {given.without}: {len(found)} problems that only damage explains", *found[:6], sep="\n    ")
    return int(not found)


def _has_kafka(needed: bool) -> bool:
    try:
        jars.broker()
    except jars.MissingError as error:
        if needed:
            raise
        print(f"no round goes over Kafka: {error}", flush=True)
        return False
    return True


def _again(seed: int, given: argparse.Namespace) -> str:
    """Return the command that plays one round again."""
    command = f"python -m tests.chaos --rounds 1 --seed {seed} --faults {given.faults} --files {given.files}"
    kills = "" if given.kills is None else f" --kills {given.kills}"
    without = "" if given.without is None else f" --without {given.without}"
    only = "" if given.only is None else f" --only {shlex.join(given.only)}"
    places = "".join(f" --{place}" for place in ("lake", "connect") if getattr(given, place))
    return command + kills + without + places + only


if __name__ == "__main__":
    sys.exit(main())
