"""Mutated messages over the real wire: ``python -m tests.fuzz --requests 1000000``.

Prints how they were answered. Exit status 1: a fault was found; the first ones are printed with their bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.server.processes import launcher

from .sending import many, one_by_one, view


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--one-by-one", type=int, default=5_000, help="of which each refusal is held against the state")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with launcher() as servers, tempfile.TemporaryDirectory() as directory:
        server = servers.start(Path(directory), "sqlite", "--snapshot-every", "1")
        started = time.monotonic()
        outcome = one_by_one(server, given.seed, given.one_by_one)
        print(f"{outcome.sent} one by one, {outcome.refusals} refusals held against the state before", flush=True)
        while outcome.sent < given.requests and not outcome.faults:
            more = many(server, given.seed + outcome.sent, min(50_000, given.requests - outcome.sent), given.threads)
            outcome.sent += more.sent
            outcome.answers += more.answers
            outcome.faults += more.faults
            rate = outcome.sent / (time.monotonic() - started)
            print(f"{outcome.sent} requests, {rate:.0f}/s, {len(outcome.faults)} faults", flush=True)
        before = view(server)
        log = server.log
        errors = [line for line in log.splitlines() if "level=error" in line]
        snapshots = log.count("kept a snapshot")
        server.kill()
        server = servers.start(Path(directory), "sqlite")
        same = view(server) == before
        errors += [line for line in server.log.splitlines() if "level=error" in line][len(errors) :]
        server.kill()
    for said, count in outcome.answers.most_common():
        print(f"{count:>9}  {said}")
    print(f"snapshots: {snapshots}; errors in the log: {len(errors)}; the same after kill -9 and restart: {same}")
    for fault in [*outcome.faults[:5], *errors[:5]]:
        print(fault)
    return 1 if outcome.faults or errors or not same else 0


if __name__ == "__main__":
    sys.exit(main())
