"""Attacks a server and prints what another client notices: ``python -m tests.attacks [NAME…]``.

Each attack of `attacks.ATTACKS` runs against a server of its own for a while, again and again; beside it a client in
a process of its own sends one small committing report each 50 ms. The table says how the attack was answered, how
much memory the server took for it (and keeps), and how long the other client's reports took. With `--front` they go
through the Envoy of deploy/envoy, and strangers without a token carry the attacks on HTTP/2 out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.attacks import clients
from tests.attacks.attacks import ATTACKS, UNBORNE, Beside, Memory
from tests.attacks.front import Front
from tests.server.processes import ROOT, Servers, launcher
from tracker.client.credentials import VARIABLES

EVERY = ATTACKS | UNBORNE


class Seen(NamedTuple):
    """Outcome of an attack."""

    answers: Counter[str]
    memory: Memory  #: beyond what the server had before
    front: Memory  #: the same of what is in front of it, if anything is
    journal: int  #: MiB that the journal has grown
    took: list[float]  #: ms, each of the other client's reports


def run(
    servers: Servers,
    directory: Path,
    name: str,
    scale: float,
    seconds: float,
    journal: str,
    quotas: bool = False,
    front: bool = False,
    after: float = 0,
) -> Seen:
    """Run one attack, for at least so many seconds; the other client goes on after it for so many.

    Quotas are the attacker's. With a front, all calls go through it, and the server behind has no limits of the attack.
    """
    attack = EVERY[name]
    limits = [argument for limit in attack.limits for argument in ("--limit", limit)]
    tokens = clients.write(directory, quotas) if quotas or front else []
    server = servers.start(directory, journal, *([] if front else limits), *tokens)
    clients.use(server, directory if tokens else None)
    reached = server
    other = None
    try:
        prepared = attack.prepare(server, scale)
        reached = Front(directory, server) if front else server
        shown = {name: getattr(clients.credentials(reached, "good"), name) for name in ("ca", "token_file")}
        other = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.good_client", reached.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {VARIABLES[name]: value for name, value in shown.items() if value},
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        size = journal_size(directory)
        beside, before_it = Beside(server), Beside(reached)
        started = time.monotonic()
        answers: Counter[str] = Counter()
        while time.monotonic() - started < seconds or not answers:
            answers += attack.strike(reached, scale, prepared)
        time.sleep(after)
        said, _ = other.communicate()
        assert other.returncode == 0, "the other client was not served"
        grown = (journal_size(directory) - size) >> 20
        return Seen(answers, beside.stop(), before_it.stop() if front else Memory(0, 0), grown, json.loads(said))
    finally:
        if other is not None and other.poll() is None:
            other.kill()
            other.wait()
        if reached is not server:
            reached.kill()
        server.kill()


def journal_size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("tracker.db*") if file.exists())


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="attacks whose names contain one of these; none: all")
    parser.add_argument("--scale", type=float, default=1.0, help="1: as large as the names say")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack, at least")
    parser.add_argument("--journal", choices=["sqlite", "memory"], default="sqlite")
    parser.add_argument("--quotas", action="store_true", help="the attacker has a token with quotas")
    parser.add_argument("--front", action="store_true", help="through Envoy, with all attacks that need it")
    parser.add_argument("--after", type=float, default=3.0, help="seconds for which the other client goes on")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; scale {given.scale}, {given.journal}\n")
    line = "{:<70} {:<34} {:>14} {:>14} {:>7} {:>10} {:>7} {:>7} {:>5}"
    print(line.format("attack", "answers", "memory, kept", "front's, kept", "journal", "other: p50", "p99", "max", "n"))
    with launcher() as servers:
        for name in EVERY if given.front or given.names else ATTACKS:
            if given.names and not any(part in name for part in given.names):
                continue
            with tempfile.TemporaryDirectory() as directory:
                how = given.scale, given.seconds, given.journal, given.quotas, given.front, given.after
                try:
                    seen = run(servers, Path(directory), name, *how)
                except AssertionError as failed:
                    print(f"{name:<70} {failed}", flush=True)
                    continue
            answers = ", ".join(f"{answer} {count}" for answer, count in seen.answers.most_common(3))
            times = [quantile(seen.took, 0.5), quantile(seen.took, 0.99), max(seen.took)]
            took = [f"{each.most}, {each.kept} MiB" for each in (seen.memory, seen.front)]
            shown = [*took, f"{seen.journal} MiB", *(f"{ms:.1f} ms" for ms in times)]
            print(line.format(name, answers, *shown, len(seen.took)), flush=True)


if __name__ == "__main__":
    main()
